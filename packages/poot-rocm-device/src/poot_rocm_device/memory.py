"""Buffers: which pool each kind lies in, and their count by kind.

What the host writes before each step and reads after it lies in fine-grained memory of the host, which both see without
a copy: a step's packets begin with an acquire from the system and end with a release to it. Everything else lies in the
GPU's own memory, which the host does not touch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from poot_executor.device import Buffer, BufferKind, BufferSlice
from poot_executor.errors import OutOfMemory
from poot_rocm_device.agents import Gpu, Pools, free_bytes
from poot_rocm_device.errors import OutOfDeviceMemory
from poot_rocm_device.host_memory import Bytes, host_memory
from poot_rocm_device.hsa import Hsa

UNIT = 256
"""Buffers are whole multiples of it: a kernel reads up to the end of the vector that its last element lies in."""

LARGEST = 1 << 48
"""No GPU addresses more; asking a runtime for as much is asking for an overflow."""

_SHARED = frozenset({BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.STAGING})


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """What a buffer's handle is: its address, its whole size, and the host's view where there is one."""

    address: int
    nbytes: int
    view: Bytes | None


class Memory:
    """The buffers of one device."""

    def __init__(self, hsa: Hsa, gpu: Gpu, pools: Pools) -> None:
        self._hsa = hsa
        self._gpu = gpu
        self._pools = pools
        self._live: set[Buffer] = set()
        self._used = dict.fromkeys(BufferKind, 0)

    @property
    def used(self) -> Mapping[BufferKind, int]:
        """Bytes that are allocated, by kind."""
        return MappingProxyType(dict(self._used))

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A buffer; one that the host sees is zero, of any other the caller has to see to it. Raises OutOfMemory."""
        size = max(UNIT, -(-nbytes // UNIT) * UNIT)
        if size > LARGEST:
            raise self._refused(kind, nbytes)
        try:
            if kind in _SHARED:
                made = host_memory(self._hsa, self._pools.host, self._gpu, size)
                allocation = Allocation(made.address, size, made.view)
            else:
                allocation = Allocation(self._hsa.allocate(self._pools.device, size), size, None)
        except OutOfDeviceMemory as error:
            raise self._refused(kind, nbytes) from error
        buffer = Buffer(kind, nbytes, allocation)
        self._live.add(buffer)
        self._used[kind] += size
        return buffer

    def _refused(self, kind: BufferKind, nbytes: int) -> OutOfMemory:
        shared = kind in _SHARED
        free, limit = (None, None) if shared else (free_bytes(self._hsa, self._gpu), self._gpu.memory or None)
        return OutOfMemory(nbytes, free, limit, kind.value)

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
        self._hsa.free(allocation.address)

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
    """Where a slice begins, for both the GPU and, where it sees it, the host."""
    return allocation_of(piece.buffer).address + piece.offset
