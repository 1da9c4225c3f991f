"""Who touched which word: how the interpreter finds races.

A group's barriers cut its run into epochs. Two accesses of one word by different threads are
ordered only where both threads are of one group and a barrier lies between them. All arrays here
are flat, one entry a word or one entry an access.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOBODY, SEVERAL = -1, -2

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Actors:
    """Who makes each access: `thread`, unique over the grid, its `group`, and the group's
    `epoch`.
    """

    thread: Ints
    group: Ints
    epoch: Ints

    def repeated(self, times: int) -> Actors:
        """Each actor `times` in a row: a vector access is one access an element."""
        return Actors(*(np.repeat(x, times) for x in (self.thread, self.group, self.epoch)))


class Touches:
    """The accesses of one kind (reads, writes or atomics) so far: for each word its thread, group
    and epoch, or SEVERAL."""

    def __init__(self, words: int) -> None:
        self.thread = np.full(words, NOBODY, np.int64)
        self.group = np.full(words, NOBODY, np.int64)
        self.epoch = np.zeros(words, np.int64)

    def unordered(self, words: Ints, by: Actors) -> NDArray[np.bool_]:
        """For each access: whether another thread touched the word and nothing orders the two."""
        group = self.group[words]
        here = (group == by.group) & (self.epoch[words] == by.epoch) & (self.thread[words] != by.thread)
        return here | ((group != NOBODY) & (group != by.group))

    def mark(self, words: Ints, by: Actors) -> None:
        """Record accesses that happen at once."""
        stale = self.epoch[words] != by.epoch
        thread = self.thread[words]
        _claim(self.thread, words, stale | (thread == NOBODY) | (thread == by.thread), by.thread)
        group = self.group[words]
        _claim(self.group, words, (group == NOBODY) | (group == by.group), by.group)
        self.epoch[words] = by.epoch


def _claim(owner: Ints, words: Ints, free: NDArray[np.bool_], by: Ints) -> None:
    """Give each word to the one who touches it, or to SEVERAL where it is not free or touched twice
    here."""
    claimed = np.where(free, by, SEVERAL)
    owner[words] = claimed
    owner[words[owner[words] != claimed]] = SEVERAL


class Tracker:
    """All accesses of one array. Each method gives a mask of the accesses that race."""

    def __init__(self, words: int) -> None:
        self.reads = Touches(words)
        self.writes = Touches(words)
        self.atomics = Touches(words)

    def read(self, words: Ints, by: Actors) -> NDArray[np.bool_]:
        """Plain loads."""
        race = self.writes.unordered(words, by) | self.atomics.unordered(words, by)
        self.reads.mark(words, by)
        return race

    def write(self, words: Ints, by: Actors, changes: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Plain stores. `changes` says which words another thread's earlier write is lost in; None:
        every such write counts.

        Two writes of one value are then no race, as long as nobody reads in between.
        """
        race = self.reads.unordered(words, by) | self.atomics.unordered(words, by)
        rewritten = self.writes.unordered(words, by)
        self.writes.mark(words, by)
        if changes is None:
            return race | rewritten | (self.writes.thread[words] == SEVERAL)
        return race | (rewritten & changes)

    def atomic(self, words: Ints, by: Actors) -> NDArray[np.bool_]:
        """Atomic changes, which race with everything but each other."""
        race = self.reads.unordered(words, by) | self.writes.unordered(words, by)
        self.atomics.mark(words, by)
        return race
