"""Sub-allocation: a few large blocks of memory, cut into pieces. It knows nothing of Vulkan but that blocks cost much.

A block belongs to one memory type. A piece larger than half a block gets a block of its own. An empty block of the
usual size is kept for the next piece, one a type, and given back where memory runs out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Source(Protocol):
    """Where blocks come from."""

    def allocate(self, type: int, nbytes: int) -> Any | None:
        """A block's memory; None where there is not enough."""
        ...

    def release(self, type: int, nbytes: int, memory: Any) -> None:
        """Give a block's memory back."""
        ...


@dataclass(slots=True, eq=False)
class Block:
    """Memory of one type and its free ranges, [start, stop), sorted, apart and not empty."""

    type: int
    nbytes: int
    memory: Any
    free: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free.append((0, self.nbytes))

    @property
    def empty(self) -> bool:
        """Whether no piece is taken."""
        return self.free == [(0, self.nbytes)]

    def take(self, nbytes: int, alignment: int) -> int | None:
        """The offset of a piece, taken from the smallest free range that holds it; None where none does."""
        best: tuple[int, int, int] | None = None
        for place, (start, stop) in enumerate(self.free):
            offset = -(-start // alignment) * alignment
            if offset + nbytes <= stop and (best is None or stop - start < best[0]):
                best = (stop - start, place, offset)
        if best is None:
            return None
        _, place, offset = best
        start, stop = self.free[place]
        rest = [(start, offset), (offset + nbytes, stop)]
        self.free[place : place + 1] = [(low, high) for low, high in rest if low < high]
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Take a piece back, joined with the free ranges that it touches."""
        start, stop = offset, offset + nbytes
        place = bisect_left(self.free, (start, stop))
        if place < len(self.free) and self.free[place][0] == stop:
            stop = self.free.pop(place)[1]
        if place > 0 and self.free[place - 1][1] == start:
            start = self.free.pop(place - 1)[0]
        insort(self.free, (start, stop))


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Bytes [offset, offset + nbytes) of a block."""

    block: Block
    offset: int
    nbytes: int


class Allocator:
    """Pieces of memory. `block_bytes` is the usual size of a block of each type."""

    def __init__(self, source: Source, block_bytes: Sequence[int]) -> None:
        self._source = source
        self._block_bytes = tuple(block_bytes)
        self._blocks: list[Block] = []

    @property
    def blocks(self) -> int:
        """Blocks that are allocated."""
        return len(self._blocks)

    def take(self, type: int, nbytes: int, alignment: int) -> Piece | None:
        """A piece whose offset is a multiple of `alignment`; None where there is not enough memory."""
        usual = self._block_bytes[type]
        if nbytes <= usual // 2:
            for block in self._blocks:
                offset = block.take(nbytes, alignment) if block.type == type else None
                if offset is not None:
                    return Piece(block, offset, nbytes)
            sizes = (usual, nbytes)
        else:
            sizes = (nbytes,)
        made = self._grow(type, sizes)
        if made is None:
            return None
        offset = made.take(nbytes, alignment)
        assert offset == 0
        return Piece(made, offset, nbytes)

    def _grow(self, type: int, sizes: Sequence[int]) -> Block | None:
        """A new block of the first of the sizes that there is memory for."""
        for size in sizes:
            memory = self._source.allocate(type, size)
            if memory is None and self.trim():
                memory = self._source.allocate(type, size)
            if memory is not None:
                block = Block(type, size, memory)
                self._blocks.append(block)
                return block
        return None

    def give(self, piece: Piece) -> None:
        """Take a piece back."""
        block = piece.block
        block.give(piece.offset, piece.nbytes)
        if not block.empty:
            return
        kept = any(b is not block and b.empty and b.type == block.type for b in self._blocks)
        if kept or block.nbytes != self._block_bytes[block.type]:
            self._release(block)

    def trim(self) -> bool:
        """Give empty blocks back; whether there was one."""
        empty = [block for block in self._blocks if block.empty]
        for block in empty:
            self._release(block)
        return bool(empty)

    def _release(self, block: Block) -> None:
        self._blocks.remove(block)
        self._source.release(block.type, block.nbytes, block.memory)
