"""Opening a GPU: its architecture, a compiler, the caches, a device."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.cache import CompileCache, source_digest
from poot_executor.compile.target import Target
from poot_executor.errors import DeviceNotFound, Unsupported
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.settings import DeviceSettings
from poot_rocm_device.agents import Gpu, pools
from poot_rocm_device.architecture import Architecture, architecture_named
from poot_rocm_device.caps import caps_of
from poot_rocm_device.device import Compiler, RocmDevice
from poot_rocm_device.queue import RING_PACKETS
from poot_rocm_device.runtime import Runtime


def known_architecture(gpu: Gpu) -> Architecture:
    """What a GPU's kernels are compiled for. Raises DeviceNotFound."""
    try:
        return architecture_named(gpu.name)
    except Unsupported as error:
        raise DeviceNotFound(f"{gpu.product} cannot be used: {error}") from error


def open_gpu(
    runtime: Runtime,
    gpu: Gpu,
    compiler: Compiler,
    settings: DeviceSettings,
    *,
    packets: int = RING_PACKETS,
    fragments: Sequence[FragmentShape] = (),
) -> RocmDevice:
    """A device on a GPU whose kernels a compiler makes, with those of its architecture's matrix fragments.

    Raises DeviceNotFound.
    """
    found = pools(runtime.hsa, gpu)
    if found is None:
        raise DeviceNotFound(f"the runtime gives no memory of its own kind for {gpu.product}: look at rocminfo")
    target = Target("rocm", caps_of(known_architecture(gpu), fragments=fragments))
    emitter = f"{source_digest('poot_rocm_device')}\n{compiler.identity}"
    cache = CompileCache(settings.cache, emitter=emitter)
    return RocmDevice(runtime, gpu, found, target, compiler, cache, timeout=settings.timeout, packets=packets)
