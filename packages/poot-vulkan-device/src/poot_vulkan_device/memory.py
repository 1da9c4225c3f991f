"""Buffers: which memory each kind lies in, and their count by kind.

Each buffer is a Vulkan buffer of its own, so that robust access keeps a stray index of one away from all others; its
memory is a piece of a block that it shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from poot_executor.device import Buffer, BufferKind, MemoryInfo
from poot_executor.device_memory import Bytes, DeviceMemory, whole_units
from poot_executor.errors import OutOfMemory
from poot_vulkan_device.adapter import Adapter, Kind
from poot_vulkan_device.allocator import Allocator, Piece
from poot_vulkan_device.api import Handle
from poot_vulkan_device.errors import VulkanError
from poot_vulkan_device.native import Native

BLOCK_BYTES = 64 << 20
"""A block of device memory."""

HOST_BLOCK_BYTES = 16 << 20
"""A block of memory that only the host is near to, which is pinned."""

_TO_HOST = frozenset({BufferKind.OUTPUT, BufferKind.STAGING})
_FROM_HOST = frozenset({BufferKind.INPUT})


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """What a buffer's handle is: the Vulkan buffer, its memory, and the host's view of it where there is one."""

    buffer: Handle
    piece: Piece
    view: Bytes | None


class _Blocks:
    """Blocks of a device's memory, each mapped as a whole where the host can see it. No heap is filled beyond its
    size.
    """

    def __init__(self, native: Native) -> None:
        self._native = native
        self._used = [0] * len(native.adapter.heaps)
        self.views: dict[Handle, Bytes] = {}

    def allocate(self, type: int, nbytes: int) -> Handle | None:
        adapter = self._native.adapter
        heap = adapter.memory[type].heap
        if nbytes > min(adapter.limits.allocation_bytes, adapter.heaps[heap] - self._used[heap]):
            return None
        memory = self._native.allocate(type, nbytes)
        if memory is None:
            return None
        if adapter.memory[type].mapped:
            try:
                self.views[memory] = np.frombuffer(self._native.map(memory, nbytes), np.uint8)
            except VulkanError as error:
                self._native.free(memory)
                if error.out_of_memory:
                    return None
                raise
        self._used[heap] += nbytes
        return memory

    def release(self, type: int, nbytes: int, memory: Handle) -> None:
        self._used[self._native.adapter.memory[type].heap] -= nbytes
        self.views.pop(memory, None)
        self._native.free(memory)


class Memory(DeviceMemory):
    """Every buffer that a device has allocated.

    Inputs, outputs and staging are always seen by the host. The others are where that costs nothing, on a CPU and an
    integrated GPU; `staged` says that they never are.
    """

    def __init__(self, native: Native, *, staged: bool) -> None:
        super().__init__()
        self._native = native
        self._staged = staged
        self._blocks = _Blocks(native)
        self._allocator = Allocator(self._blocks, block_sizes(native.adapter))

    @property
    def blocks(self) -> int:
        """Allocations of the driver that are held."""
        return self._allocator.blocks

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A buffer with undefined content. Raises OutOfMemory."""
        size = whole_units(nbytes, 4)
        limit = self._native.adapter.limits.allocation_bytes
        if size > limit:
            raise OutOfMemory(nbytes, self.info().free, limit, kind.value)
        try:
            handle, piece = self._bound(kind, nbytes, size)
        except VulkanError as error:
            if error.out_of_memory:
                raise OutOfMemory(nbytes, self.info().free, limit, kind.value) from error
            raise
        whole = self._blocks.views.get(piece.block.memory)
        visible = whole is not None and not self._hidden(kind)
        view = whole[piece.offset : piece.offset + size] if whole is not None and visible else None
        return self._keep(kind, nbytes, Region(handle, piece, view), size)

    def _bound(self, kind: BufferKind, nbytes: int, size: int) -> tuple[Handle, Piece]:
        """A Vulkan buffer and the memory that it lies in, or neither."""
        native = self._native
        handle, needed, alignment, allowed = native.create_buffer(size)
        piece = None
        try:
            piece = self._piece(kind, nbytes, needed, alignment, allowed)
            native.bind(handle, piece.block.memory, piece.offset)
        except BaseException:
            native.destroy_buffer(handle)
            if piece is not None:
                self._allocator.give(piece)
            raise
        return handle, piece

    def _piece(self, kind: BufferKind, nbytes: int, needed: int, alignment: int, allowed: int) -> Piece:
        """Memory of the best type that has some. Raises OutOfMemory."""
        for type in types_for(self._native.adapter, kind, staged=self._staged):
            piece = self._allocator.take(type, needed, alignment) if allowed >> type & 1 else None
            if piece is not None:
                return piece
        info = self.info()
        raise OutOfMemory(nbytes, info.free, info.limit, kind.value)

    def _hidden(self, kind: BufferKind) -> bool:
        """Whether the host must not touch buffers of a kind although it could."""
        if kind in _TO_HOST | _FROM_HOST:
            return False
        return self._staged or self._native.adapter.kind not in (Kind.CPU, Kind.INTEGRATED)

    def _give_back(self, handle: Any) -> None:
        assert isinstance(handle, Region)
        self._native.destroy_buffer(handle.buffer)
        self._allocator.give(handle.piece)

    def free_all(self) -> None:
        """Give every buffer and block back."""
        super().free_all()
        self._allocator.trim()

    def info(self) -> MemoryInfo:
        """Bytes by kind; what the heap of device memory has, and has left where the driver says so."""
        adapter = self._native.adapter
        heap = next((t.heap for t in adapter.memory if t.device_local), 0)
        budget = self._native.budget()
        free = None if budget is None else max(0, budget[0][heap] - budget[1][heap])
        return MemoryInfo(self.used, free, adapter.heaps[heap])


def types_for(adapter: Adapter, kind: BufferKind, *, staged: bool) -> list[int]:
    """The memory types that a kind of buffer may lie in, the best first."""
    types = list(range(len(adapter.memory)))
    if kind in _TO_HOST:
        # Cached, or every byte that the host reads crosses the bus by itself.
        return sorted(
            (t for t in types if adapter.memory[t].mapped),
            key=lambda t: (not adapter.memory[t].cached, adapter.memory[t].device_local),
        )
    if kind in _FROM_HOST:
        return sorted((t for t in types if adapter.memory[t].mapped), key=lambda t: not adapter.memory[t].device_local)
    direct = adapter.kind in (Kind.CPU, Kind.INTEGRATED) and not staged
    # Nothing is moved to the host's memory in silence where the device's is full: that is OutOfMemory.
    near = (t for t in types if adapter.memory[t].device_local)
    if not direct:
        return list(near)
    return sorted(near, key=lambda t: (not adapter.memory[t].mapped, not adapter.memory[t].cached))


def block_sizes(adapter: Adapter) -> list[int]:
    """The usual size of a block of each memory type: an eighth of a small heap."""
    sizes = []
    for type in adapter.memory:
        usual = BLOCK_BYTES if type.device_local else HOST_BLOCK_BYTES
        sizes.append(min(usual, adapter.limits.allocation_bytes, max(1 << 16, adapter.heaps[type.heap] // 8)))
    return sizes


def words(nbytes: int) -> int:
    """Bytes rounded up to whole words."""
    return -(-nbytes // 4) * 4
