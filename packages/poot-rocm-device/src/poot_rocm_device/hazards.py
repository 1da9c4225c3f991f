"""Which dispatches may overlap: those of which none writes what another one touches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Range = tuple[int, int]
"""Addresses [begin, end)."""


@dataclass(slots=True)
class Overlapping:
    """The dispatches since the last barrier, by what they touch."""

    _reads: list[Range] = field(default_factory=list)
    _writes: list[Range] = field(default_factory=list)

    def add(self, reads: Iterable[Range], writes: Iterable[Range]) -> bool:
        """Take one more; whether it has to wait for all before itself, which are then done."""
        reads, writes = list(reads), list(writes)
        waits = _meet(writes, self._writes) or _meet(writes, self._reads) or _meet(reads, self._writes)
        if waits:
            self._reads, self._writes = [], []
        self._reads += reads
        self._writes += writes
        return waits


def _meet(some: list[Range], others: list[Range]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
