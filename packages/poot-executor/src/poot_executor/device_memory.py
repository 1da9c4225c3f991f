"""The buffers of one device, for devices that make them one by one: which are live, bytes by kind, what a slice may be.

What is left to a device: making a buffer, which it then keeps with `_keep`, and `_give_back` for what it was made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.device import Buffer, BufferKind, BufferSlice

Bytes = NDArray[np.uint8]


class DeviceMemory(ABC):
    """Every buffer that a device has allocated and not freed. A buffer counts with the bytes that were taken for it,
    which may be more than its own."""

    def __init__(self) -> None:
        self._live: dict[Buffer, int] = {}
        self._used = dict.fromkeys(BufferKind, 0)

    @abstractmethod
    def _give_back(self, handle: Any) -> None:
        """What a buffer was made of goes back to the runtime."""

    @property
    def used(self) -> Mapping[BufferKind, int]:
        """Bytes that are allocated, by kind, as they are now."""
        return MappingProxyType(dict(self._used))

    def _keep(self, kind: BufferKind, nbytes: int, handle: Any, taken: int) -> Buffer:
        """A live buffer of `nbytes` bytes, for which `taken` were taken."""
        buffer = Buffer(kind, nbytes, handle)
        self._live[buffer] = taken
        self._used[kind] += taken
        return buffer

    def holds(self, buffer: Buffer) -> bool:
        """Whether a buffer is one of this device's and not freed."""
        return buffer in self._live

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; a second time does nothing. Its handle is None afterwards."""
        if buffer in self._live:
            self._used[buffer.kind] -= self._live.pop(buffer)
            handle, buffer.handle = buffer.handle, None
            self._give_back(handle)

    def free_all(self) -> None:
        """Give every buffer back."""
        for buffer in tuple(self._live):
            self.free(buffer)

    def forget(self) -> None:
        """Leave every buffer to the lost device, which may still write to it. They stay counted."""
        self._live.clear()

    def check(self, piece: BufferSlice) -> None:
        """Raise ValueError for a slice of a freed buffer, or one that leaves its buffer."""
        buffer, end = piece.buffer, piece.offset + piece.nbytes
        if buffer not in self._live:
            raise ValueError(f"a {buffer.kind.value} buffer is not one of this device's, or was freed")
        if piece.offset < 0 or piece.nbytes < 0 or end > buffer.nbytes:
            raise ValueError(
                f"bytes {piece.offset} to {end} leave a {buffer.kind.value} buffer of {buffer.nbytes} bytes"
            )


def whole_units(nbytes: int, unit: int) -> int:
    """Bytes rounded up to whole units, of which a buffer has one at least: a runtime makes none of 0 bytes."""
    return max(-(-nbytes // unit), 1) * unit


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
