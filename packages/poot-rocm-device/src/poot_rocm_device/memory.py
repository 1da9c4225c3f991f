"""Buffers: which pool each kind lies in, and their count by kind.

What the host writes before each step and reads after it lies in fine-grained memory of the host, which both see without
a copy: a step's packets begin with an acquire from the system and end with a release to it. Everything else lies in the
GPU's own memory, which the host does not touch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poot_executor.device import Buffer, BufferKind, BufferSlice
from poot_executor.device_memory import Bytes, DeviceMemory, whole_units
from poot_executor.errors import OutOfMemory
from poot_rocm_device.agents import Gpu, Pools, free_bytes
from poot_rocm_device.errors import OutOfDeviceMemory
from poot_rocm_device.host_memory import host_memory
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


class Memory(DeviceMemory):
    """The buffers of one device."""

    def __init__(self, hsa: Hsa, gpu: Gpu, pools: Pools) -> None:
        super().__init__()
        self._hsa = hsa
        self._gpu = gpu
        self._pools = pools

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A buffer; one that the host sees is zero, of any other the caller has to see to it. Raises OutOfMemory."""
        size = whole_units(nbytes, UNIT)
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
        return self._keep(kind, nbytes, allocation, size)

    def _refused(self, kind: BufferKind, nbytes: int) -> OutOfMemory:
        shared = kind in _SHARED
        free, limit = (None, None) if shared else (free_bytes(self._hsa, self._gpu), self._gpu.memory or None)
        return OutOfMemory(nbytes, free, limit, kind.value)

    def _give_back(self, handle: Any) -> None:
        assert isinstance(handle, Allocation)
        self._hsa.free(handle.address)


def allocation_of(buffer: Buffer) -> Allocation:
    """A live buffer's memory."""
    allocation = buffer.handle
    assert isinstance(allocation, Allocation)
    return allocation


def address_of(piece: BufferSlice) -> int:
    """Where a slice begins, for both the GPU and, where it sees it, the host."""
    return allocation_of(piece.buffer).address + piece.offset
