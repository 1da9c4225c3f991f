"""Known answers before a device is used: arithmetic and operations of waves that were never seen on the hardware."""

from __future__ import annotations

from poot_executor.errors import DeviceError, DeviceNotFound, Unsupported
from poot_executor.known_answers import SUBGROUP, Case, answer_of, cases, subgroup_width
from poot_executor.known_arithmetic import arithmetic_cases
from poot_executor.settings import DeviceSettings
from poot_rocm_device.agents import Gpu
from poot_rocm_device.device import Compiler, RocmDevice
from poot_rocm_device.opening import open_gpu
from poot_rocm_device.runtime import Runtime


def open_proved(runtime: Runtime, gpu: Gpu, compiler: Compiler, settings: DeviceSettings) -> RocmDevice:
    """A device that gave the known answers of all that its caps state. Raises DeviceNotFound, naming the first wrong
    one."""
    device = open_gpu(runtime, gpu, compiler, settings)
    stated = [case for case in cases() if case.feature in device.target.caps.features]
    # The caps state no contraction, no flushing, and an fma that rounds once.
    for case in (*stated, *arithmetic_cases()):
        reason = wrong_answer(device, case)
        if reason is not None:
            device.close()
            raise DeviceNotFound(
                f"{gpu.product} gave a wrong answer where the right one is known ({case.feature}: {reason}), so nothing"
                " that it computes can be relied on: please report this"
            )
    return device


def wrong_answer(device: RocmDevice, case: Case) -> str | None:
    """What is wrong with what the device gives, or why it gives nothing; None where all is right."""
    try:
        answer = answer_of(device, case)
    except (DeviceError, Unsupported) as error:
        return str(error)
    if case.feature == SUBGROUP and subgroup_width(answer) != device.target.caps.subgroup_width:
        return f"waves of {subgroup_width(answer)} lanes, where {device.target.caps.subgroup_width} are documented"
    return case.wrong(case.given, answer)
