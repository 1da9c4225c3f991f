"""Buffers, their count by kind, and how host bytes get in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.device import Buffer, BufferKind, BufferSlice
from poot_executor.errors import OutOfMemory
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.native import READBACK, STORAGE, Handle, Native


class Memory:
    """Every buffer that a device has allocated. Sizes are rounded up to whole words, which is all that WebGPU copies
    and binds."""

    def __init__(self, native: Native, limit: int) -> None:
        self._native = native
        self._limit = limit
        self._used: dict[BufferKind, int] = dict.fromkeys(BufferKind, 0)
        self._live: set[Buffer] = set()

    @property
    def used(self) -> Mapping[BufferKind, int]:
        """Bytes by kind."""
        return dict(self._used)

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A zero-filled buffer. Raises OutOfMemory."""
        buffer = Buffer(kind, nbytes, self._create(kind, nbytes, STORAGE))
        self._live.add(buffer)
        return buffer

    def readback(self, nbytes: int) -> Buffer:
        """A buffer that the device copies into and the host maps. Raises OutOfMemory."""
        buffer = Buffer(BufferKind.STAGING, nbytes, self._create(BufferKind.STAGING, nbytes, READBACK))
        self._live.add(buffer)
        return buffer

    def _create(self, kind: BufferKind, nbytes: int, usage: int) -> Handle:
        size = words(max(nbytes, 1))
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
        self._used[kind] += size
        return handle

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; a second time does nothing."""
        if buffer in self._live:
            self._live.remove(buffer)
            self._used[buffer.kind] -= words(max(buffer.nbytes, 1))
            self._native.release_buffer(buffer.handle)
            buffer.handle = None

    def free_all(self) -> None:
        """Give every buffer back."""
        for buffer in list(self._live):
            self.free(buffer)

    def forget(self) -> None:
        """Leave every buffer to the lost device."""
        self._live.clear()

    def check(self, piece: BufferSlice) -> None:
        """Raise ValueError for a slice of a freed buffer, or one that leaves its buffer."""
        buffer = piece.buffer
        if buffer not in self._live:
            raise ValueError(f"a {buffer.kind.value} buffer is not one of this device's, or was freed")
        if piece.offset < 0 or piece.nbytes < 0 or piece.offset + piece.nbytes > buffer.nbytes:
            end = piece.offset + piece.nbytes
            raise ValueError(
                f"bytes {piece.offset} to {end} leave a {buffer.kind.value} buffer of {buffer.nbytes} bytes"
            )


def words(nbytes: int) -> int:
    """Bytes rounded up to whole words."""
    return -(-nbytes // 4) * 4


def host_bytes(data: bytes | memoryview | NDArray[Any]) -> NDArray[np.uint8]:
    """Host data as flat bytes, without a copy where it is contiguous."""
    given = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
    return np.ascontiguousarray(given).reshape(-1).view(np.uint8)


def host_target(out: memoryview | NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes to write to. Raises ValueError where they do not lie in one piece or must not be written."""
    array = np.asarray(out)
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError("read needs a contiguous, writeable target")
    return array.reshape(-1).view(np.uint8)
