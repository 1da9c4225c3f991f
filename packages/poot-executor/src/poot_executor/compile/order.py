"""The order of regions, and which values live in the buffer of the value that they update.

A scatter updates its data in place when every read of the old value can come first. Then the result shares the data's
buffer; a state is updated that way. Where it cannot, the data is copied before; a state's copy is refused when it is
large.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poot_executor.compile.classify import SCATTERS
from poot_executor.compile.lower.draft import Draft
from poot_executor.compile.region import Region
from poot_executor.errors import GraphError, Unsupported
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.graph.keys import Storage

COPY_LIMIT = 1 << 20
"""Bytes of a state that a program may copy a step; a KV pool is above it."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A region with its dispatches. `reads` are the stored values that they read, besides those that the region's roots
    update."""

    region: Region
    drafts: tuple[Draft, ...]
    reads: frozenset[Value]

    @property
    def touches(self) -> frozenset[Value]:
        """Every value that must be there before: read, updated in place or copied."""
        return self.reads | frozenset(self.region.updates.values())


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Units in order. `in_place` maps a result to the value whose buffer it takes; `copied` are results whose data is
    copied first.

    `direct` are next states written straight into their state's buffer, `late` those that are copied there at the end.
    """

    units: tuple[Unit, ...]
    in_place: Mapping[Value, Value]
    copied: frozenset[Value]
    direct: frozenset[Value]
    late: frozenset[Value]


def make_unit(graph: Graph, region: Region, drafts: Sequence[Draft]) -> Unit:
    reads = frozenset(o.value for d in drafts for o in d.operands) - set(region.roots)
    return Unit(region, tuple(drafts), reads)


def order_units(graph: Graph, units: Sequence[Unit]) -> Ordered:
    """Topological order that keeps the equations' own as far as reads before writes allow. Raises Unsupported for a
    large state copy."""
    before_of = {pair.after: pair.before for pair in graph.state if pair.after != pair.before}
    befores = {pair.before for pair in graph.state}
    readers: dict[Value, set[int]] = {}
    makers: dict[Value, int] = {}
    for i, unit in enumerate(units):
        makers.update((root, i) for root in unit.region.roots)
        for value in unit.touches:
            readers.setdefault(value, set()).add(i)
    after: list[set[int]] = [{makers[v] for v in u.touches if v in makers} for u in units]
    in_place: dict[Value, Value] = {}
    copied: set[Value] = set()
    direct: set[Value] = set()
    late: set[Value] = set()
    outputs = set(graph.outputs.values()) | set(graph.checks)

    def write_over(i: int, old: Value) -> bool:
        """Make unit i come after every other reader of `old`; False where that would be a circle."""
        others = readers.get(old, set()) - {i}
        if any(_reaches(after, reader, i) for reader in others):
            return False
        after[i] |= others
        return True

    for i, unit, root in ((i, u, r) for i, u in enumerate(units) for r in u.region.roots):
        old = unit.region.updates.get(root)
        if old is not None:
            owned = (_is_device(graph, old) and old not in outputs) or old in befores
            state = _origin(old, in_place)
            lost = state in befores and not _leads_to_state(graph, root, state, before_of)
            if owned and not lost and old not in unit.reads and write_over(i, old):
                in_place[root] = old
            else:
                _refuse_large(old, old in befores)
                copied.add(root)
        if root in before_of and root not in in_place:
            state = before_of[root]
            if state not in unit.reads and write_over(i, state):
                direct.add(root)
            else:
                _refuse_large(state, True)
                late.add(root)
    for root in before_of:
        if root not in makers and root not in late:
            late.add(root)
    return Ordered(
        tuple(units[i] for i in _topological(after)), in_place, frozenset(copied), frozenset(direct), frozenset(late)
    )


def _refuse_large(state: Value, is_state: bool) -> None:
    if is_state and state.type.nbytes > COPY_LIMIT:
        raise Unsupported(
            f"update of state {state}",
            f"its old value is read later: that would copy {state.type.nbytes:,} bytes a step",
        )


def _is_device(graph: Graph, value: Value) -> bool:
    defined = graph.definition(value)
    return not isinstance(defined, Input) or defined.storage is Storage.STATE


def _origin(value: Value, in_place: Mapping[Value, Value]) -> Value:
    while value in in_place:
        value = in_place[value]
    return value


def _leads_to_state(graph: Graph, root: Value, state: Value, before_of: Mapping[Value, Value]) -> bool:
    """Is the result an intermediate of a chain of updates that ends as the state's next value?"""
    frontier = {root}
    for equation in graph.equations:
        if equation.op in SCATTERS and equation.inputs[0] in frontier:
            frontier.add(equation.output)
    return any(before_of.get(v) == state for v in frontier)


def _reaches(after: Sequence[set[int]], start: int, goal: int) -> bool:
    """Must `goal` come before `start` already?"""
    seen, stack = set(), [start]
    while stack:
        node = stack.pop()
        if node == goal:
            return True
        if node not in seen:
            seen.add(node)
            stack.extend(after[node])
    return False


def _topological(after: Sequence[set[int]]) -> list[int]:
    waiting = [set(a) for a in after]
    followers: dict[int, list[int]] = {}
    for i, before in enumerate(after):
        for j in before:
            followers.setdefault(j, []).append(i)
    ready = [i for i, w in enumerate(waiting) if not w]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in followers.get(i, ()):
            waiting[j].discard(i)
            if not waiting[j]:
                heapq.heappush(ready, j)
    if len(order) != len(after):
        raise GraphError("regions depend on each other in a circle")
    return order
