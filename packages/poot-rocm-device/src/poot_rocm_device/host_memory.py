"""Memory of the host that a GPU sees, as numpy sees it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from poot_executor.device_memory import Bytes
from poot_rocm_device.agents import Gpu
from poot_rocm_device.hsa import Hsa


@dataclass(frozen=True, slots=True, eq=False)
class HostMemory:
    """Memory at `address`, for both; `view` is its bytes. It stays until it is freed."""

    address: int
    view: Bytes


def host_memory(hsa: Hsa, pool: int, gpu: Gpu, nbytes: int) -> HostMemory:
    """New memory of a host's pool that the GPU may use, all zero. Raises OutOfDeviceMemory."""
    address = hsa.allocate(pool, nbytes)
    try:
        hsa.allow_access(gpu.agent, address)
    except BaseException:
        hsa.free(address)
        raise
    view = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    view[:] = 0
    return HostMemory(address, view)
