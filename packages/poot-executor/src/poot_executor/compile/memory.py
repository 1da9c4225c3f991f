"""Where every value lies: one arena by lifetimes, one block each for inputs, outputs and constants, states and weights
by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A value's life in the arena: bytes, and the first and last command that touch it."""

    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Offsets by span, the arena's size, and the most bytes alive at once, which no plan is below."""

    offsets: tuple[int, ...]
    nbytes: int
    floor: int


def align(nbytes: int, alignment: int) -> int:
    """Rounded up to a multiple."""
    return -(-nbytes // alignment) * alignment


def plan_arena(spans: Sequence[Span], alignment: int) -> ArenaPlan:
    """Give each span the lowest offset at which it meets no span alive with it, largest first."""
    sizes = [align(span.nbytes, alignment) for span in spans]
    offsets = [0] * len(spans)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(spans)), key=lambda i: (-sizes[i], spans[i].first)):
        alive = sorted((offsets[j], offsets[j] + sizes[j]) for j in placed if _together(spans[i], spans[j]))
        at = 0
        for low, high in alive:
            if at + sizes[i] <= low:
                break
            at = max(at, high)
        offsets[i] = at
        placed.append(i)
        total = max(total, at + sizes[i])
    return ArenaPlan(tuple(offsets), total, _floor(spans, sizes))


def _together(a: Span, b: Span) -> bool:
    return a.first <= b.last and b.first <= a.last


def _floor(spans: Sequence[Span], sizes: Sequence[int]) -> int:
    change: dict[int, int] = {}
    for span, size in zip(spans, sizes, strict=True):
        change[span.first] = change.get(span.first, 0) + size
        change[span.last + 1] = change.get(span.last + 1, 0) - size
    most = alive = 0
    for at in sorted(change):
        alive += change[at]
        most = max(most, alive)
    return most


@dataclass(slots=True)
class Block:
    """A block of fields at aligned offsets."""

    alignment: int
    nbytes: int = 0

    def add(self, nbytes: int) -> int:
        """The offset of a new field."""
        offset = self.nbytes
        self.nbytes += align(max(nbytes, 4), self.alignment)
        return offset
