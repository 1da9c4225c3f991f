"""Opening a GPU: its best architecture, the caches, a device, and what it has to prove."""

from __future__ import annotations

import logging
from collections.abc import Set

from poot_executor.cache import CompileCache, source_digest
from poot_executor.compile.target import Target
from poot_executor.dtype import DType
from poot_executor.errors import DeviceNotFound, OutOfMemory
from poot_executor.kernel.warpgroups import FEATURE as WARPGROUP
from poot_executor.known_answers import answer_of
from poot_executor.known_warpgroups import warpgroup_case
from poot_executor.settings import DeviceSettings
from poot_ptx_device.architecture import best_architecture, warpgroup_architecture
from poot_ptx_device.caps import OPTIONS, caps_of
from poot_ptx_device.device import PtxDevice
from poot_ptx_device.errors import CudaError
from poot_ptx_device.native import Gpu, Native
from poot_ptx_device.program import machine_code_context

logger = logging.getLogger(__name__)


def open_gpu(native: Native, gpu: Gpu, settings: DeviceSettings, *, options: Set[str] | None = None) -> PtxDevice:
    """A device on a GPU. `options` are features of `caps`, instead of all that the architecture has; products of
    warpgroups are among its features only where the GPU has them and they gave their known answers: on an H200 they
    read a prompt of 2,048 tokens in 0.63 of the time (8B, bf16), and take 0.37 for a step of 64 rows. Raises
    DeviceNotFound.
    """
    architecture = best_architecture(gpu.capability)
    if architecture is None:
        raise DeviceNotFound(too_old(gpu))
    plain = caps_of(architecture, options=None if options is None else options - {WARPGROUP})
    texts = CompileCache(settings.cache, emitter=source_digest("poot_ptx_device"))
    machine_code = CompileCache(settings.cache, emitter=machine_code_context(gpu, native.version()))
    target = Target("ptx", plain)
    device = PtxDevice(native, gpu.ordinal, target, texts, machine_code, timeout=settings.timeout)
    exact = warpgroup_architecture(gpu.capability)
    if options is None:
        options = OPTIONS | {WARPGROUP}
    if WARPGROUP not in options or exact is None:
        return device
    try:
        device.settle(caps_of(exact, options=options))
        reason = _wrong_products(device)
        if reason is not None:
            logger.warning("ptx: products of warpgroups are switched off: %s", reason)
            device.settle(plain)
    except BaseException:
        device.close()
        raise
    return device


def _wrong_products(device: PtxDevice) -> str | None:
    """What is wrong with products of warpgroups, or why they do not run; None where nothing is. Raises what a lost
    device raises."""
    for case in (warpgroup_case(DType.BF16), warpgroup_case(DType.F16)):
        try:
            answer = answer_of(device, case)
        except (CudaError, OutOfMemory) as error:
            return f"{case.feature}: {error}"
        reason = case.wrong(case.given, answer)
        if reason is not None:
            return reason
    return None


def too_old(gpu: Gpu) -> str:
    """Why a GPU is not used."""
    major, minor = gpu.capability
    return f"{gpu.name} has compute capability {major}.{minor}, the kernels need 8.0 (Ampere) or newer"
