"""Which blocks of a paged pool are free, and how many hold on to each that is not."""

from __future__ import annotations

import heapq

from poot_executor.errors import PootError

RESERVED = 0
"""The block that stands for none: nobody gets it, so it stays zero."""


class BlockError(PootError):
    """A block that is given back or shared without being held: the accounts of the pool are wrong."""


class BlockPool:
    """Reference counts of blocks 1 to `count` - 1. The lowest free ones are taken first."""

    __slots__ = ("_free", "_references")

    def __init__(self, count: int) -> None:
        if count < 2:
            raise BlockError(f"a pool of {count} blocks has none to give: block 0 is reserved")
        self._references = [0] * count
        self._free = list(range(1, count))

    @property
    def count(self) -> int:
        """Blocks that can be held."""
        return len(self._references) - 1

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many hold on to a block."""
        return self._references[block]

    def take(self, count: int) -> list[int] | None:
        """Free blocks, each held once from now on: all of them, or None."""
        if count > len(self._free):
            return None
        taken = [heapq.heappop(self._free) for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, block: int) -> None:
        """Hold on to a block that somebody holds. Raises BlockError where nobody does."""
        if block == RESERVED or not self._references[block]:
            raise BlockError(f"block {block} cannot be shared: nobody holds it")
        self._references[block] += 1

    def give_back(self, block: int) -> None:
        """Let go of a block; it is free once nobody holds it. Raises BlockError where nobody does."""
        if block == RESERVED or not self._references[block]:
            raise BlockError(f"block {block} was given back and nobody holds it")
        self._references[block] -= 1
        if not self._references[block]:
            heapq.heappush(self._free, block)
