"""Buffers and their count by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poot_executor.device import Buffer, BufferKind, BufferSlice
from poot_executor.device_memory import DeviceMemory, whole_units
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


class Memory(DeviceMemory):
    """Every buffer that a device has allocated."""

    def __init__(self, native: Native, stream: Handle) -> None:
        super().__init__()
        self._native = native
        self._stream = stream

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A zero-filled buffer. Raises OutOfMemory."""
        size = whole_units(nbytes, UNIT)
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
        return self._keep(kind, nbytes, allocation, size)

    def _give_back(self, handle: Any) -> None:
        assert isinstance(handle, Allocation)
        self._native.free(handle.address)
        if handle.shadow is not None:
            self._native.host_free(handle.shadow.address)

    def drop_shadow(self, allocation: Allocation) -> None:
        """From now on the device's memory alone counts."""
        if allocation.shadow is not None:
            self._native.host_free(allocation.shadow.address)
            allocation.shadow = None


def allocation_of(buffer: Buffer) -> Allocation:
    """A live buffer's memory."""
    allocation = buffer.handle
    assert isinstance(allocation, Allocation)
    return allocation


def address_of(piece: BufferSlice) -> int:
    """Where a slice begins on the device."""
    return allocation_of(piece.buffer).address + piece.offset
