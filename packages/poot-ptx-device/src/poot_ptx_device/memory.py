"""Buffers and their count by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poot_executor.device import Buffer, BufferKind, BufferSlice
from poot_executor.errors import OutOfMemory
from poot_ptx_device.native import Handle, Native
from poot_ptx_device.pinned import Pinned, pin
from poot_ptx_device.results import OutOfDeviceMemory

UNIT = 16
"""Buffers are whole multiples of this many bytes: the widest load does not leave one."""

LARGEST = 1 << 47
"""No device has so much; the driver is not asked for more, whose sizes are 64 bits."""


@dataclass(slots=True, eq=False)
class Allocation:
    """A buffer's memory on the device. `shadow` is the host's copy of an input block: what is written there reaches the
    device as a part of each replay that reads the block.
    """

    address: int
    nbytes: int
    shadow: Pinned | None = None


class Memory:
    """Every buffer that a device has allocated."""

    def __init__(self, native: Native, stream: Handle) -> None:
        self._native = native
        self._stream = stream
        self._used: dict[BufferKind, int] = dict.fromkeys(BufferKind, 0)
        self._live: set[Buffer] = set()

    @property
    def used(self) -> Mapping[BufferKind, int]:
        """Bytes by kind."""
        return dict(self._used)

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A zero-filled buffer. Raises OutOfMemory."""
        size = max(-(-nbytes // UNIT) * UNIT, UNIT)
        free, whole = self._native.memory_info()
        if size > LARGEST:
            raise OutOfMemory(nbytes, free, whole, kind.value)
        try:
            allocation = Allocation(self._native.allocate(size), size)
        except OutOfDeviceMemory as error:
            raise OutOfMemory(nbytes, free, whole, kind.value) from error
        try:
            self._native.zero(allocation.address, size, self._stream)
            if kind is BufferKind.INPUT:
                allocation.shadow = pin(self._native, size)
        except OutOfDeviceMemory as error:
            self._native.free(allocation.address)
            raise OutOfMemory(nbytes, free, whole, kind.value) from error
        buffer = Buffer(kind, nbytes, allocation)
        self._live.add(buffer)
        self._used[kind] += size
        return buffer

    def holds(self, buffer: Buffer) -> bool:
        """Whether a buffer is one of this device's and not freed."""
        return buffer in self._live

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; a second time does nothing."""
        if buffer not in self._live:
            return
        self._live.remove(buffer)
        allocation = allocation_of(buffer)
        self._used[buffer.kind] -= allocation.nbytes
        buffer.handle = None
        self._native.free(allocation.address)
        if allocation.shadow is not None:
            self._native.host_free(allocation.shadow.address)

    def drop_shadow(self, allocation: Allocation) -> None:
        """From now on the device's memory alone counts."""
        if allocation.shadow is not None:
            self._native.host_free(allocation.shadow.address)
            allocation.shadow = None

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


def allocation_of(buffer: Buffer) -> Allocation:
    """A live buffer's memory."""
    allocation = buffer.handle
    assert isinstance(allocation, Allocation)
    return allocation


def address_of(piece: BufferSlice) -> int:
    """Where a slice begins on the device."""
    return allocation_of(piece.buffer).address + piece.offset
