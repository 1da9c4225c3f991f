"""Products of warpgroups that were begun and not waited for: where the wait has to be.

A product runs beside what follows it. It is waited for before anything touches its sums, before a barrier that it may
not outlive, and at the end of a block; but a loop may carry sums in flight into its next round, where nothing but the
next product touches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_executor.kernel.ir import Block, Op, Val

PRODUCT = "warpgroup_mma"


@dataclass(slots=True)
class Flight:
    """A product in flight: the values that are its sums, the barriers since, and how many there may be."""

    sums: tuple[Val, ...]
    behind: int
    barriers: int = 0


class Flights:
    """The products in flight at a place in a kernel's text."""

    def __init__(self) -> None:
        self._flying: list[Flight] = []

    def begin(self, op: Op) -> int:
        """A product begins. Returns how many may stay in flight: those that may outlive the next barrier, and so none
        of a loop's round before."""
        self._flying = [flight for flight in self._flying if flight.barriers < flight.behind]
        self._flying.append(Flight(op.results, op.attrs["behind"]))
        return len(self._flying)

    def has(self, value: Val) -> bool:
        """Whether a value is in flight."""
        return any(value is total for flight in self._flying for total in flight.sums)

    def must_land(self, op: Op) -> bool:
        """Whether the products in flight are to be waited for before an operation."""
        if not self._flying or op.kind == PRODUCT:
            return False
        if op.kind == "barrier":
            if any(flight.barriers >= flight.behind for flight in self._flying):
                return True
            for flight in self._flying:
                flight.barriers += 1
            return False
        return self._touches(op) or any(inner.kind == "barrier" or self._touches(inner) for inner in _inside(op))

    def _touches(self, op: Op) -> bool:
        if op.kind == PRODUCT:
            return True
        return any(self.has(value) for value in op.operands)

    def land(self) -> None:
        """They were waited for."""
        self._flying.clear()

    def __bool__(self) -> bool:
        return bool(self._flying)

    def carries(self, body: Block) -> bool:
        """Whether a loop may go into its next round, and end, with the sums in flight: they are what it carries, and a
        round comes to its product past one barrier at most."""
        yields = body.ops[-1].operands
        carried = all(any(total is value for value in yields) for flight in self._flying for total in flight.sums)
        return carried and all(f.barriers + _barriers_before_product(body) <= f.behind for f in self._flying)

    def leave(self, results: Sequence[Val], yields: Sequence[Val]) -> None:
        """After the loop, its results are what is in flight."""
        place = dict(zip(yields, results, strict=True))
        for flight in self._flying:
            flight.sums = tuple(place[total] for total in flight.sums)


def _inside(op: Op) -> list[Op]:
    return [inner for block in op.blocks for inner in block.walk()]


def _barriers_before_product(body: Block) -> int:
    """Barriers of a round before its first product; many where they cannot be counted."""
    count = 0
    for op in body.ops:
        if op.kind == PRODUCT:
            return count
        count += op.kind == "barrier"
        if any(inner.kind in ("barrier", PRODUCT) for inner in _inside(op)):
            return len(body.ops)
    return len(body.ops)
