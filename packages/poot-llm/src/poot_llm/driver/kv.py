"""Where sequences keep K and V: what a driver asks of a layout, paged or contiguous. No device is touched here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from poot_executor.graph.keys import SlotKey
from poot_llm.blocks.step import StepShape
from poot_llm.driver.prefix_cache import CachedBlock

Ids = Callable[[int, int], Sequence[int]]
"""The ids of a sequence from one place to before another."""
SlotMaps = dict[SlotKey, NDArray[np.int32]]


@dataclass(slots=True, eq=False)
class Lease:
    """What an open sequence has of the KV states: a row, and with paged KV blocks. `kept` positions of its prompt were
    there before: in the row itself, or in another one, `source`, from which they are still to be copied. The layout
    alone changes it.

    `room` positions can be held as it is. `table` i32[blocks of a row] is the row of SLOT_MAP; the first `len(chain)`
    blocks are indexed by content. `shared` positions from the start may be indexed: those behind depend on more than
    their ids. The layout has to hear of what is computed once that is `due` positions.
    """

    row: int
    kept: int
    identity: Hashable
    shared: int
    room: int = 0
    due: int = 0
    source: int | None = None
    blocks: list[int] = field(default_factory=list)
    table: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    chain: list[CachedBlock] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Placed:
    """A sequence in a step: its lease, the step's row, and the positions [start, start + count) that it computes."""

    lease: Lease
    row: int
    start: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """All sequences of a step, as arrays i64[sequences] of what `Placed` says of each; `held` are the leases' rows."""

    rows: NDArray[np.int64]
    held: NDArray[np.int64]
    start: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, placed: Iterable[Placed]) -> Placement:
        """Of each in their order."""
        items = list(placed)
        columns = (
            [item.row for item in items], [item.lease.row for item in items], [item.start for item in items],
            [item.count for item in items],
        )  # fmt: skip
        return cls(*np.array(columns, np.int64))

    def following(self) -> Placement:
        """The same sequences one step on, each with the position after those of this step."""
        return Placement(self.rows, self.held, self.start + self.count, np.ones_like(self.count))


@dataclass(frozen=True, slots=True)
class KvUse:
    """Counts of a layout. `blocks` is None where there are none. `reused` are prompt positions found computed."""

    rows: int
    rows_taken: int
    blocks: int | None
    blocks_held: int | None
    blocks_cached: int | None
    blocks_free: int | None
    reused: int
    evicted: int


class KvLayout(ABC):
    """Rows of open sequences, with room for their positions."""

    fixed_rows: bool
    """Whether a sequence's row in a step is that of its lease, or any."""
    shares: bool
    """Whether open sequences share what they have in common."""

    @abstractmethod
    def take(self, ids: Sequence[int], positions: int, identity: Hashable, shared: int) -> Lease | None:
        """A row with room for `positions`, None where there is none. What is known of the first `shared` ids is kept,
        never all of them: the last one's logits are wanted.
        """

    @abstractmethod
    def next_row(self) -> int:
        """The row that a prompt of which nothing is known would take; 0 where none is free."""

    @abstractmethod
    def extend(self, lease: Lease, positions: int) -> bool:
        """Room for as many positions in all, or False with nothing changed."""

    @abstractmethod
    def computed(self, lease: Lease, ids: Ids, count: int) -> None:
        """A step that succeeded has computed the first `count` ids. Below `lease.due` of them it may be left out."""

    @abstractmethod
    def give_back(self, lease: Lease) -> None:
        """Its row and blocks are free. What was computed may be found again."""

    @abstractmethod
    def forget(self, leases: Iterable[Lease]) -> None:
        """The states were reset: nothing is known any more. Open leases keep their rows and blocks."""

    @abstractmethod
    def slots(self, shape: StepShape, placed: Placement) -> SlotMaps:
        """The slots of a step beside those that every layout has."""

    @abstractmethod
    def use(self) -> KvUse:
        """Counts as they are now."""
