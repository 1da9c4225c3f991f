"""Memory of the host that a GPU sees, as numpy sees it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_rocm_device.agents import Gpu
from poot_rocm_device.hsa import Hsa

Bytes = NDArray[np.uint8]


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


def host_bytes(data: bytes | memoryview | NDArray[Any]) -> Bytes:
    """Host data as flat bytes, without a copy where it is contiguous."""
    given = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
    return np.ascontiguousarray(given).reshape(-1).view(np.uint8)


def host_target(out: memoryview | NDArray[Any]) -> Bytes:
    """The bytes to write to. Raises ValueError where they do not lie in one piece or must not be written."""
    array = np.asarray(out)
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("read needs a contiguous, writeable target")
    return array.reshape(-1).view(np.uint8)
