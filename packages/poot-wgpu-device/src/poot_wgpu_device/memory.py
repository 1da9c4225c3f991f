"""Buffers and their count by kind."""

from __future__ import annotations

from typing import Any

from poot_executor.device import Buffer, BufferKind
from poot_executor.device_memory import DeviceMemory, whole_units
from poot_executor.errors import OutOfMemory
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.native import READBACK, STORAGE, Native


class Memory(DeviceMemory):
    """Every buffer that a device has allocated. Sizes are rounded up to whole words, which is all that WebGPU copies
    and binds."""

    def __init__(self, native: Native, limit: int) -> None:
        super().__init__()
        self._native = native
        self._limit = limit

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A zero-filled buffer. Raises OutOfMemory."""
        return self._create(kind, nbytes, STORAGE)

    def readback(self, nbytes: int) -> Buffer:
        """A buffer that the device copies into and the host maps. Raises OutOfMemory."""
        return self._create(BufferKind.STAGING, nbytes, READBACK)

    def _create(self, kind: BufferKind, nbytes: int, usage: int) -> Buffer:
        size = whole_units(nbytes, 4)
        # The library refuses a larger one as an invalid call, which it is not: it does not fit.
        if size > self._limit:
            raise OutOfMemory(nbytes, None, self._limit, kind.value)
        handle = self._native.create_buffer(size, usage)
        try:
            self._native.check("create_buffer")
        except WgpuError as error:
            self._native.release_buffer(handle)
            if error.kind != "out of memory":
                raise
            raise OutOfMemory(nbytes, None, None, kind.value) from error
        return self._keep(kind, nbytes, handle, size)

    def _give_back(self, handle: Any) -> None:
        self._native.release_buffer(handle)


def words(nbytes: int) -> int:
    """Bytes rounded up to whole words."""
    return -(-nbytes // 4) * 4
