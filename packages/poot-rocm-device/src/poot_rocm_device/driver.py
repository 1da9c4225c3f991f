"""`RocmDriver`, what the entry point `rocm` names. Importing this module loads no native library."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceLost, DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_rocm_device.errors import HsaError, OutOfDeviceMemory

if TYPE_CHECKING:
    from poot_rocm_device.agents import Gpu
    from poot_rocm_device.device import RocmDevice
    from poot_rocm_device.runtime import Runtime

NO_GPU = "the HSA runtime sees no AMD GPU: look at ROCR_VISIBLE_DEVICES and rocminfo"
KFD = Path("/dev/kfd")
"""The kernel driver's file, which the runtime opens."""


class RocmDriver:
    """GPUs in the runtime's order. A selector is a number, or part of a GPU's name or of its instruction set's."""

    def probe(self) -> list[Found | Missing]:
        """Every GPU, or what is missing: the library, the kernel driver, a permission, a GPU, its instruction set, or a
        compiler for it."""
        from poot_rocm_device.compilers import find_compiler
        from poot_rocm_device.opening import known_architecture

        try:
            found = _gpus(_runtime())
        except DeviceNotFound as error:
            return [Missing(str(error))]
        said: list[Found | Missing] = []
        for gpu in found:
            try:
                find_compiler(known_architecture(gpu))
            except DeviceNotFound as error:
                said.append(Missing(str(error)))
                continue
            facts = f"{gpu.name}, {gpu.units} compute units, {gpu.memory / 2**30:.0f} GiB"
            said.append(Found(str(gpu.ordinal), f"{gpu.product} ({facts})"))
        return said or [Missing(NO_GPU)]

    def open(self, selector: str, settings: DeviceSettings) -> RocmDevice:
        """Open a GPU, which has to give its known answers. Raises DeviceNotFound with what there is."""
        from poot_rocm_device.compilers import find_compiler
        from poot_rocm_device.opening import known_architecture
        from poot_rocm_device.proving import open_proved

        runtime = _runtime()
        gpu = choose(_gpus(runtime), selector)
        compiler = find_compiler(known_architecture(gpu))
        try:
            return open_proved(runtime, gpu, compiler, settings)
        except (HsaError, DeviceLost, OutOfDeviceMemory) as error:
            raise DeviceNotFound(f"{gpu.product} did not open: {error}") from error


def choose(gpus: Sequence[Gpu], selector: str) -> Gpu:
    """The GPU that a selector names; "" is the first. Raises DeviceNotFound with what there is."""
    if not gpus:
        raise DeviceNotFound(NO_GPU)
    if selector.isdecimal():
        if int(selector) < len(gpus):
            return gpus[int(selector)]
    else:
        for gpu in gpus:
            if selector.lower() in f"{gpu.product} {gpu.name}".lower():
                return gpu
    known = ", ".join(f"{gpu.ordinal}: {gpu.product} ({gpu.name})" for gpu in gpus)
    raise DeviceNotFound(f"rocm has no GPU {selector!r}; it has {known}")


def _gpus(runtime: Runtime) -> Sequence[Gpu]:
    from poot_rocm_device.agents import gpus

    try:
        return gpus(runtime.hsa)
    except (HsaError, DeviceLost, OutOfDeviceMemory) as error:
        raise DeviceNotFound(f"the HSA runtime does not answer: {error}") from error


def _runtime() -> Runtime:
    """The process's runtime, begun. Raises DeviceNotFound with what to do."""
    from poot_rocm_device.libraries import runtime_library
    from poot_rocm_device.runtime import NotStarted, runtime_at

    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise DeviceNotFound("AMD's HSA runtime is for Linux on x86-64: elsewhere vulkan and wgpu run on AMD GPUs")
    try:
        return runtime_at(runtime_library())
    except OSError as error:
        raise DeviceNotFound(
            f"AMD's HSA runtime did not load ({error}): install ROCm's runtime, or set ROCM_PATH to where it is"
        ) from error
    except AttributeError as error:
        raise DeviceNotFound(f"AMD's HSA runtime is too old, 5.2 is the oldest that will do: {error}") from error
    except NotStarted as error:
        raise DeviceNotFound(f"{not_started(KFD)} ({error})") from error


def not_started(kfd: Path) -> str:
    """Why the runtime did not begin, as far as the kernel driver's file says. The runtime alone decides whether it
    does: this only words the refusal."""
    if not kfd.exists():
        return (
            f"there is no {kfd}: the kernel has no amdgpu driver, or no GPU that it can compute on; a container needs"
            " --device=/dev/kfd --device=/dev/dri"
        )
    try:
        with kfd.open("r+b", buffering=0):
            return "AMD's HSA runtime did not begin: look at rocminfo and dmesg"
    except PermissionError:
        return f"{kfd} is not this user's to open: add the user to its group (`ls -l {kfd}`), often render or video"
    except OSError as error:
        return f"{kfd} does not open: {error}: look at dmesg"
