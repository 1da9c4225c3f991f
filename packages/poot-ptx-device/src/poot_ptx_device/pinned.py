"""Page-locked host memory, as numpy sees it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_ptx_device.native import Native


@dataclass(frozen=True, slots=True, eq=False)
class Pinned:
    """Memory at `address` of the host; `view` is its bytes. It stays until `free`."""

    address: int
    view: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """How long it is."""
        return self.view.size


def pin(native: Native, nbytes: int) -> Pinned:
    """New page-locked memory, all zero. Raises OutOfDeviceMemory."""
    address = native.host_allocate(nbytes)
    view = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    view[:] = 0
    return Pinned(address, view)
