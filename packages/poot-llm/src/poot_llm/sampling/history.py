"""Which ids a sequence holds, and how often its answer does: what penalties look at."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class History:
    """The distinct ids of a prompt and its answer with their number in the answer, kept as tokens are committed.

    Entries stay where they are, in the order of first occurrence: `ids` and `counts` are i32 arrays of which the first
    `len` entries count. A token costs constant time.
    """

    __slots__ = ("_added", "_counts", "_ids", "_places")

    def __init__(self, prompt: Iterable[int], answer: Iterable[int] = ()) -> None:
        self._places: dict[int, int] = {}
        self._added: list[int] = []
        self._ids = np.empty(16, np.int32)
        self._counts = np.empty(16, np.int32)
        for token in prompt:
            self._place(token)
        for token in answer:
            self.add(token)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ids(self) -> NDArray[np.int32]:
        """i32[len]: each id once."""
        return self._ids[: len(self)]

    @property
    def counts(self) -> NDArray[np.int32]:
        """i32[len]: occurrences in the answer, 0 for an id of the prompt alone."""
        return self._counts[: len(self)]

    def add(self, token: int) -> None:
        """One more token of the answer."""
        place = self._place(token)
        self._counts[place] += 1
        self._added.append(place)

    @property
    def additions(self) -> int:
        """Tokens of the answer."""
        return len(self._added)

    def write(self, ids: NDArray[np.int32], counts: NDArray[np.int32], before: int | None) -> None:
        """Put the entries into the beginning of two arrays: those that changed since there were `before` additions, or
        all of them.
        """
        if before is None:
            ids[: len(self)], counts[: len(self)] = self.ids, self.counts
            return
        for place in self._added[before:]:
            ids[place], counts[place] = self._ids[place], self._counts[place]

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
            self._ids[place], self._counts[place] = token, 0
        return place
