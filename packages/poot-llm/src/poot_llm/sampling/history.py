"""Which ids a sequence holds, and how often its answer does: what penalties look at."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class History:
    """The distinct ids of a prompt and its answer with their number in the answer, kept as tokens are committed.

    Entries stay where they are, in the order of first occurrence. A token costs constant time. `length` is the number
    of entries: the history's `len`, for those who ask often.
    """

    __slots__ = ("_added", "_counts", "_ids", "_places", "length")

    def __init__(self, prompt: Iterable[int], answer: Iterable[int] = ()) -> None:
        self.length = 0
        self._places: dict[int, int] = {}
        self._added: list[int] = []
        self._ids: list[int] = []
        self._counts: list[int] = []
        for token in prompt:
            self._place(token)
        for token in answer:
            self.add(token)

    def __len__(self) -> int:
        return self.length

    @property
    def ids(self) -> NDArray[np.int32]:
        """i32[len]: each id once."""
        return np.array(self._ids, np.int32)

    @property
    def counts(self) -> NDArray[np.int32]:
        """i32[len]: occurrences in the answer, 0 for an id of the prompt alone."""
        return np.array(self._counts, np.int32)

    def add(self, token: int) -> None:
        """One more token of the answer."""
        place = self._places.get(token)
        if place is None:
            place = self._place(token)
        self._counts[place] += 1
        self._added.append(place)

    @property
    def additions(self) -> int:
        """Tokens of the answer."""
        return len(self._added)

    def write_changes(self, before: int, ids: NDArray[np.int32], counts: NDArray[np.int32]) -> int:
        """Write the entries that changed since there were `before` additions to where ids and counts are kept, i32 of
        at least `length` each. Returns the additions until now.
        """
        for place in self._added[before:]:
            ids[place], counts[place] = self._ids[place], self._counts[place]
        return len(self._added)

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self.length
            self.length += 1
            self._ids.append(token)
            self._counts.append(0)
        return place
