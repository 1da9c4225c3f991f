"""Which weight rows a group of a contraction has, when an epilogue looks at several of them."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.kernel.handle import Handle


@dataclass(frozen=True, slots=True)
class RowMap:
    """A group's `columns` rows. Neighbouring ones, where they are whole blocks; else a run of places of one block, once
    in each of its
    pieces of `stride`: row = (block, piece, place), so that what lies `stride` apart (the two halves of a head) is
    together."""

    columns: int
    block: int
    stride: int

    @property
    def pieces(self) -> int:
        """Pieces of a block that a group has a run of; 1 where it has whole blocks."""
        plain = self.block < 2 or self.columns % self.block == 0
        return 1 if plain else self.block // self.stride

    def row(self, group: Handle, local: Handle) -> Handle:
        """The weight row of place `local` of a group."""
        if self.pieces == 1:
            return group * self.columns + local
        run = self.columns // self.pieces
        flat = group * run + local % run
        return flat // self.stride * self.block + local // run * self.stride + flat % self.stride

    def local(self, group: Handle, row: Handle) -> Handle:
        """The place in a group of a row that it has; the inverse of `row`."""
        if self.pieces == 1:
            return row - group * self.columns
        run = self.columns // self.pieces
        inner = row % self.block
        flat = row // self.block * self.stride + inner % self.stride
        return inner // self.stride * run + (flat - group * run)

    def groups(self, rows: int) -> int:
        """Groups that have all of a weight's rows."""
        return -(-rows // self.columns)
