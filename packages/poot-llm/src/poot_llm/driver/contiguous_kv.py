"""Contiguous KV: each row owns `capacity` positions. What a row held last is kept until another prompt takes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from poot_llm.blocks.step import ROW, StepShape
from poot_llm.driver.kv import Ids, KvLayout, KvUse, Lease, Placement, SlotMaps


@dataclass(slots=True)
class _Row:
    """The ids whose K and V a row holds, and under which identity."""

    identity: Hashable = None
    ids: list[int] = field(default_factory=list)
    taken: bool = False


class ContiguousKv(KvLayout):
    """`rows` rows of `capacity` positions. With `cache`, a prompt takes the free row whose content it shares most of,
    and computes the rest alone: the next message of a conversation, say. Of others it takes the emptiest. `worth` says
    of how many more positions of any other row, taken or not, a copy is made; where it is None, none is.
    """

    fixed_rows = True

    def __init__(self, rows: int, capacity: int, cache: bool, worth: Callable[[int], bool] | None = None) -> None:
        self.shares = cache and worth is not None
        self._rows = [_Row() for _ in range(rows)]
        self._capacity = capacity
        self._cache = cache
        self._worth = worth
        self._reused = 0

    def take(self, ids: Sequence[int], positions: int, identity: Hashable, shared: int) -> Lease | None:
        """See `KvLayout`."""
        if positions > self._capacity:
            return None
        limit = min(shared, len(ids) - 1)
        best: tuple[tuple[int, int], int] | None = None
        for place, row in enumerate(self._rows):
            if row.taken:
                continue
            kept = _common(row.ids, ids, limit) if self._cache and row.identity == identity else 0
            worth = kept, -len(row.ids)
            if best is None or worth > best[0]:
                best = worth, place
        if best is None:
            return None
        (kept, _), place = best
        held, source = self._rows[place].ids, None
        if self._cache:
            most, donor = max((_common(row.ids, ids, limit), -i) for i, row in self._of(identity))
            if most > kept and self._worth is not None and self._worth(most - kept):
                source, kept, held = -donor, most, self._rows[-donor].ids
                place = min(self._free(), key=lambda i: len(self._rows[i].ids))
        row = self._rows[place]
        row.identity, row.taken, row.ids = identity, True, held[:kept]
        self._reused += kept
        return Lease(place, kept, identity, shared, room=self._capacity, source=source)

    def _of(self, identity: Hashable) -> Iterator[tuple[int, _Row]]:
        """Rows that hold something of an identity; one that holds nothing, where there is none."""
        found = [(i, row) for i, row in enumerate(self._rows) if row.identity == identity]
        return iter(found or [(0, _Row())])

    def _free(self) -> list[int]:
        return [i for i, row in enumerate(self._rows) if not row.taken]

    def next_row(self) -> int:
        """See `KvLayout`."""
        return next((place for place, row in enumerate(self._rows) if not row.taken), 0)

    def extend(self, lease: Lease, positions: int) -> bool:
        """See `KvLayout`."""
        return positions <= self._capacity

    def computed(self, lease: Lease, ids: Ids, count: int) -> None:
        """See `KvLayout`."""
        held = self._rows[lease.row].ids
        known = min(count, lease.shared)
        if self._cache and known > len(held):
            held += ids(len(held), known)

    def give_back(self, lease: Lease) -> None:
        """See `KvLayout`."""
        self._rows[lease.row].taken = False

    def forget(self, leases: Iterable[Lease]) -> None:
        """See `KvLayout`."""
        for row in self._rows:
            row.ids = []

    def slots(self, shape: StepShape, placed: Placement) -> SlotMaps:
        """See `KvLayout`: a step among rows is told which one it has."""
        return {} if shape.among is None else {ROW: placed.held.astype(np.int32)}

    def use(self) -> KvUse:
        """See `KvLayout`."""
        taken = sum(row.taken for row in self._rows)
        return KvUse(len(self._rows), taken, None, None, None, None, self._reused, 0)


def _common(held: Sequence[int], ids: Sequence[int], limit: int) -> int:
    """How many ids two sequences begin with in common, `limit` at most."""
    most = min(len(held), limit)
    for place in range(most):
        if held[place] != ids[place]:
            return place
    return most
