"""Known answers before a device is used: arithmetic, waves and matrices, which were never seen on the hardware."""

from __future__ import annotations

import logging

from poot_executor.errors import DeviceError, DeviceNotFound, Unsupported
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.known_answers import SUBGROUP, Case, answer_of, cases, subgroup_width
from poot_executor.known_arithmetic import arithmetic_cases
from poot_executor.known_fragments import fragment_case
from poot_executor.settings import DeviceSettings
from poot_rocm_device.agents import Gpu
from poot_rocm_device.caps import products
from poot_rocm_device.device import Compiler, RocmDevice
from poot_rocm_device.opening import known_architecture, open_gpu
from poot_rocm_device.runtime import Runtime

logger = logging.getLogger(__name__)


def open_proved(runtime: Runtime, gpu: Gpu, compiler: Compiler, settings: DeviceSettings) -> RocmDevice:
    """A device that gave the known answers of all that its caps state, each matrix fragment that was right among it.

    Raises DeviceNotFound, naming the first wrong answer.
    """
    shapes = list(products(known_architecture(gpu)))
    while True:
        device = _right(open_gpu(runtime, gpu, compiler, settings, fragments=shapes))
        wrong = _wrong_fragment(device)
        if wrong is None:
            return device
        # The next one is asked of a new device: this one may be lost.
        device.close()
        shape, reason = wrong
        logger.warning("rocm: matrix fragments %s are switched off: %s", shape, reason)
        shapes.remove(shape)


def _right(device: RocmDevice) -> RocmDevice:
    """The device, which is closed and refused at a wrong answer."""
    stated = [case for case in cases() if case.feature in device.target.caps.features]
    # The caps state no contraction, no flushing, and an fma that rounds once.
    for case in (*stated, *arithmetic_cases()):
        reason = wrong_answer(device, case)
        if reason is not None:
            device.close()
            raise DeviceNotFound(
                f"{device.gpu.product} gave a wrong answer where the right one is known ({case.feature}: {reason}), so"
                " nothing that it computes can be relied on: please report this"
            )
    return device


def _wrong_fragment(device: RocmDevice) -> tuple[FragmentShape, str] | None:
    """The first matrix product that is wrong, and what is wrong with it; None where none is."""
    caps = device.target.caps
    for shape in caps.fragments:
        reason = wrong_answer(device, fragment_case(shape, caps.subgroup_width or 1))
        if reason is not None:
            return shape, reason
    return None


def wrong_answer(device: RocmDevice, case: Case) -> str | None:
    """What is wrong with what the device gives, or why it gives nothing; None where all is right."""
    try:
        answer = answer_of(device, case)
    except (DeviceError, Unsupported) as error:
        return str(error)
    if case.feature == SUBGROUP and subgroup_width(answer) != device.target.caps.subgroup_width:
        return f"waves of {subgroup_width(answer)} lanes, where {device.target.caps.subgroup_width} are documented"
    return case.wrong(case.given, answer)
