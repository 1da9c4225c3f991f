"""Opening a GPU: its best architecture, the caches, a device."""

from __future__ import annotations

from collections.abc import Set

from poot_executor.cache import CompileCache, source_digest
from poot_executor.compile.target import Target
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_ptx_device.architecture import best_architecture
from poot_ptx_device.caps import caps_of
from poot_ptx_device.device import PtxDevice
from poot_ptx_device.native import Gpu, Native
from poot_ptx_device.program import machine_code_context


def open_gpu(native: Native, gpu: Gpu, settings: DeviceSettings, *, options: Set[str] | None = None) -> PtxDevice:
    """A device on a GPU. `options` are features of `caps`, instead of the architecture's own. Raises DeviceNotFound."""
    architecture = best_architecture(gpu.capability)
    if architecture is None:
        raise DeviceNotFound(too_old(gpu))
    target = Target("ptx", caps_of(architecture, options=options))
    texts = CompileCache(settings.cache, emitter=source_digest("poot_ptx_device"))
    machine_code = CompileCache(settings.cache, emitter=machine_code_context(gpu, native.version()))
    return PtxDevice(native, gpu.ordinal, target, texts, machine_code, timeout=settings.timeout)


def too_old(gpu: Gpu) -> str:
    """Why a GPU is not used."""
    major, minor = gpu.capability
    return f"{gpu.name} has compute capability {major}.{minor}, the kernels need 8.0 (Ampere) or newer"
