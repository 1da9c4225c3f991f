"""The suite of devices that run kernels and stage faults: kernels, recordings and failures by hand, beside what every
device must pass.
"""

from __future__ import annotations

from poot_eval.conformance.accuracy import AccuracyConformance
from poot_eval.conformance.device_faults import DeviceFaultConformance
from poot_eval.conformance.kernel_operations import OperationConformance
from poot_eval.conformance.kernel_threads import ThreadConformance
from poot_eval.conformance.known import KnownAnswerConformance
from poot_eval.conformance.pieces import ByteConformance
from poot_eval.conformance.recordings import RecordingConformance


class KernelDeviceConformance(
    OperationConformance,
    ThreadConformance,
    AccuracyConformance,
    KnownAnswerConformance,
    ByteConformance,
    RecordingConformance,
    DeviceFaultConformance,
):
    """Inherit it as a whole, with a module-level fixture `device`, and `open_device(timeout=…)` that opens further
    ones; override nothing.
    """
