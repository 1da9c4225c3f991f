"""`PtxDriver`, what the entry point `ptx` names. Importing this module loads no native library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceLost, DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_ptx_device.errors import CudaError

if TYPE_CHECKING:
    from poot_ptx_device.device import PtxDevice
    from poot_ptx_device.native import Gpu, Native

NO_GPU = "the NVIDIA driver is loaded and sees no GPU: look at CUDA_VISIBLE_DEVICES and nvidia-smi"


class PtxDriver:
    """GPUs in the driver's order. A selector is a number, or part of a GPU's name."""

    def probe(self) -> list[Found | Missing]:
        """Every GPU, or why there is none."""
        from poot_ptx_device.opening import too_old

        try:
            native = _native()
            gpus = native.gpus()
        except DeviceNotFound as error:
            return [Missing(str(error))]
        except (CudaError, DeviceLost) as error:
            return [Missing(f"the NVIDIA driver does not answer ({error})")]
        version = native.version()
        found: list[Found | Missing] = []
        for gpu in gpus:
            if gpu.capability < (8, 0):
                found.append(Missing(too_old(gpu)))
                continue
            major, minor = gpu.capability
            facts = (
                f"compute {major}.{minor}, {gpu.memory / 2**30:.0f} GiB, CUDA {version // 1000}.{version % 1000 // 10}"
            )
            found.append(Found(str(gpu.ordinal), f"{gpu.name} ({facts})"))
        return found or [Missing(NO_GPU)]

    def open(self, selector: str, settings: DeviceSettings) -> PtxDevice:
        """Open a GPU. Raises DeviceNotFound with what there is."""
        from poot_ptx_device.opening import open_gpu

        native = _native()
        try:
            gpus = native.gpus()
            return open_gpu(native, gpus[choose(gpus, selector)], settings)
        except (CudaError, DeviceLost) as error:
            raise DeviceNotFound(f"the GPU did not open: {error}") from error


def choose(gpus: Sequence[Gpu], selector: str) -> int:
    """The place of the GPU that a selector names; "" is the first. Raises DeviceNotFound with what there is."""
    if not gpus:
        raise DeviceNotFound(NO_GPU)
    if selector.isdecimal():
        if int(selector) < len(gpus):
            return int(selector)
    else:
        for place, gpu in enumerate(gpus):
            if selector.lower() in gpu.name.lower():
                return place
    known = ", ".join(f"{gpu.ordinal}: {gpu.name}" for gpu in gpus)
    raise DeviceNotFound(f"ptx has no GPU {selector!r}; it has {known}")


def _native() -> Native:
    """The driver, initialized. Raises DeviceNotFound with what to do."""
    from poot_ptx_device.native import Native

    if sys.platform == "darwin":
        raise DeviceNotFound("macOS has no NVIDIA driver, and so no ptx: wgpu runs on its GPUs")
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceNotFound(
            f"the package cuda-bindings did not load ({error}): install it again, for this platform"
        ) from error
    native = Native(driver)
    try:
        native.initialize()
    # The bindings raise RuntimeError, or an error of their own, where there is no driver library.
    except (CudaError, DeviceLost, OSError, RuntimeError) as error:
        raise DeviceNotFound(
            f"the NVIDIA driver did not start ({_first_line(error)}): install it, or look at nvidia-smi"
        ) from error
    return native


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
