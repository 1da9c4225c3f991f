"""Where every value lies: one arena by lifetimes, one block each for inputs, outputs and constants, states and weights
by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRIES = 20_000
"""Spans that are placed in search of a smaller arena."""


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
    """Give each span the lowest offset at which it meets no span alive with it, in the best of several orders.

    Where even that takes more than must be alive at once, what ends highest is placed earlier and all is tried again, a
    bounded number of times.
    """
    if not spans:
        return ArenaPlan((), 0, 0)
    sizes = [align(span.nbytes, alignment) for span in spans]
    floor = _floor(spans, sizes)
    meets = _meetings(spans)
    everything = range(len(spans))
    lengths = [span.last - span.first + 1 for span in spans]
    orders = [
        sorted(everything, key=lambda i: (-sizes[i], spans[i].first)),
        sorted(everything, key=lambda i: (spans[i].first, -lengths[i], -sizes[i])),
        sorted(everything, key=lambda i: (-lengths[i], -sizes[i], spans[i].first)),
        sorted(everything, key=lambda i: (-sizes[i] * lengths[i], spans[i].first)),
    ]
    best, least, order = [0] * len(spans), -1, orders[0]
    tries = 0
    while least != floor and (tries < len(orders) or tries * len(spans) < TRIES):
        if tries < len(orders):
            order = orders[tries]
        offsets = _placed(order, sizes, meets)
        total = max(at + size for at, size in zip(offsets, sizes, strict=True))
        if least < 0 or total < least:
            best, least = offsets, total
        ends = [at + size for at, size in zip(offsets, sizes, strict=True)]
        order = _earlier(order, ends.index(max(ends)))
        tries += 1
    return ArenaPlan(tuple(best), least, floor)


def _placed(order: Sequence[int], sizes: Sequence[int], meets: Sequence[Sequence[int]]) -> list[int]:
    """Offsets by span, each the lowest that is free of those placed before."""
    offsets = [-1] * len(sizes)
    for i in order:
        at = 0
        for low, size in sorted((offsets[j], sizes[j]) for j in meets[i] if offsets[j] >= 0):
            if at + sizes[i] <= low:
                break
            at = max(at, low + size)
        offsets[i] = at
    return offsets


def _earlier(order: Sequence[int], span: int) -> list[int]:
    """The order with one span at half of its place."""
    at = order.index(span)
    rest = [i for i in order if i != span]
    return [*rest[: at // 2], span, *rest[at // 2 :]]


def _meetings(spans: Sequence[Span]) -> list[list[int]]:
    """The spans that are alive at some time with each."""
    meets: list[list[int]] = [[] for _ in spans]
    alive: list[int] = []
    for i in sorted(range(len(spans)), key=lambda i: spans[i].first):
        alive = [j for j in alive if spans[j].last >= spans[i].first]
        for j in alive:
            meets[i].append(j)
            meets[j].append(i)
        alive.append(i)
    return meets


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
