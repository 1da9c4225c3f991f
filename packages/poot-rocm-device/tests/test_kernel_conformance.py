"""The device contract over the simulated runtime, on emitted text: each kernel is compiled for this processor.

Recordings, faults and bytes run always, everything else as a sweep: compiling is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from poot_eval.conformance import DeviceConformance, KernelDeviceConformance
from poot_eval.conformance.device_faults import DeviceFaultConformance
from poot_eval.conformance.memory import MemoryConformance
from poot_eval.conformance.pieces import ByteConformance
from poot_eval.conformance.recordings import RecordingConformance
from poot_eval.hsa import FakeRuntime
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.runtime import Runtime


@pytest.fixture(scope="module")
def open_device(
    module_library: Path, tmp_path_factory: pytest.TempPathFactory, hosting: ModuleType
) -> Callable[..., RocmDevice]:
    """`open_device(timeout=60.0)`: one more device of one GPU."""
    kernels = hosting.Hosting(tmp_path_factory.mktemp("libraries"))
    fake, runtime = FakeRuntime(module_library), Runtime(str(module_library))
    return lambda **settings: hosting.open_hosting(fake, runtime, kernels, **settings)


@pytest.fixture(scope="module")
def device(open_device: Callable[..., RocmDevice]) -> Iterator[RocmDevice]:
    with open_device() as opened:
        yield opened


@pytest.mark.slow
class TestRocmMechanics(RecordingConformance, DeviceFaultConformance, ByteConformance, MemoryConformance):
    """What does not depend on which kernels there are."""


@pytest.mark.sweep
class TestRocm(DeviceConformance):
    """Inherits every contract test; overrides none."""


@pytest.mark.sweep
class TestRocmKernels(KernelDeviceConformance):
    """Inherits every test of devices that run kernels; overrides none."""
