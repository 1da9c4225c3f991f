"""The order of regions, and which values live in the buffer of the value that they update.

A scatter updates its data in place when every read of the old value can come first. Then the result shares the data's
buffer; a state is updated that way. Where it cannot, the data is copied before; a state's copy is refused when it is
large.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from poot_executor.compile.classify import SCATTERS
from poot_executor.compile.launches import share_launches
from poot_executor.compile.locality import is_local
from poot_executor.compile.lower.draft import Operand
from poot_executor.compile.target import Caps
from poot_executor.compile.unit import Unit
from poot_executor.errors import GraphError, Unsupported
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.kernel.side_by_side import bound_together

COPY_LIMIT = 1 << 20
"""Bytes of a state that a program may copy a step; a KV pool is above it."""


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Units in order, and where their results lie.

    `in_place` maps a result to the value whose buffer it takes; `copied` are results whose data is copied first.
    `direct` maps a next state that is written straight into a state's buffer to that state; `late` are (next, state)
    pairs that are copied at the end. `staged` are states among the nexts of `late` that the step overwrites: they are
    kept from before the first unit.
    """

    units: tuple[Unit, ...]
    in_place: Mapping[Value, Value]
    copied: frozenset[Value]
    direct: Mapping[Value, Value]
    late: tuple[tuple[Value, Value], ...]
    staged: frozenset[Value]


def order_units(graph: Graph, units: Sequence[Unit], caps: Caps) -> Ordered:
    """Topological order that keeps the equations' own as far as reads before writes allow, with small dispatches joined
    to launches where the target asks for that. Raises Unsupported for a large state copy."""
    return _Orderer(graph, units, caps).run()


class _Orderer:
    def __init__(self, graph: Graph, units: Sequence[Unit], caps: Caps) -> None:
        self.graph, self.units, self.caps = graph, list(units), caps
        self.stored = frozenset({i.value for i in graph.inputs}.union(*(unit.roots for unit in units)))
        self.befores = {pair.before: pair for pair in graph.state}
        self.nexts: dict[Value, list[Value]] = {}
        for pair in graph.state:
            if pair.after != pair.before:
                self.nexts.setdefault(pair.after, []).append(pair.before)
        self.kept = {*graph.outputs.values(), *graph.checks}
        self.readers: dict[Value, set[int]] = {}
        makers: dict[Value, int] = {}
        for i, unit in enumerate(units):
            makers.update((root, i) for root in unit.roots)
            for value in unit.touches:
                self.readers.setdefault(value, set()).add(i)
        self.makers = makers
        self.after = [{makers[v] for v in u.touches if v in makers} for u in units]
        self.in_place: dict[Value, Value] = {}
        self.copied: set[Value] = set()
        self.direct: dict[Value, Value] = {}
        self.late: list[tuple[Value, Value]] = []

    def run(self) -> Ordered:
        for i, unit in enumerate(self.units):
            updates = unit.updates
            for root in unit.roots:
                if root in updates:
                    self._update(i, root, updates[root])
                self._replace(i, root)
        changed = {state for states in self.nexts.values() for state in states}
        for root, states in self.nexts.items():
            for state in states if root not in self.makers else ():
                if root in changed:
                    self._refuse_large(state, f"it becomes what {self.befores[root].key} is before the step")
                self.late.append((root, state))
        staged = frozenset(root for root, _ in self.late if root in changed)
        order = _topological(self.after)
        joined = share_launches(self.units, order, self.after, self.caps)
        return Ordered(tuple(joined), self.in_place, frozenset(self.copied), self.direct, tuple(self.late), staged)

    def _update(self, i: int, root: Value, old: Value) -> None:
        """Write an update over the value that it updates, or let that be copied first."""
        home = self._home(old)
        owned = old in self.befores or not isinstance(self.graph.definition(old), Input)
        # A state that is an output, or another's next, is copied before the first unit.
        needed = (old in self.kept or old in self.nexts) and old not in self.befores
        lost = home in self.befores and not self._leads_to(root, home)
        if owned and not needed and not lost and old not in self.units[i].reads and self._write_over(i, [old]):
            self.in_place[root] = old
            return
        if home in self.befores:
            self._refuse_large(home, "an old value of it is read later")
        self.copied.add(root)

    def _replace(self, i: int, root: Value) -> None:
        """Write a next state into a state's buffer where that is free by then; copy it to the others at the end."""
        for state in self.nexts.get(root, ()):
            if self._home(root) == state:
                continue
            residents = [state, *(v for v in self.in_place if self._home(v) == state)]
            free = root not in self.in_place and root not in self.direct
            free = free and not any(v in self.kept or v in self.nexts for v in residents[1:])
            own = residents == [state] and self._reads_own_place(i, root, state)
            free = free and (own or not any(v in self.units[i].reads for v in residents))
            if free and self._write_over(i, residents):
                self.direct[root] = state
                if own:
                    self.units[i] = _in_place_of(self.units[i], root, state)
            else:
                self._refuse_large(state, "what replaces it is computed while it is still needed, or lies elsewhere")
                self.late.append((root, state))

    def _reads_own_place(self, i: int, root: Value, state: Value) -> bool:
        """Does the unit compute every element of a next state from the state's own element, and others of it not?"""
        unit = self.units[i]
        (region,) = unit.regions
        return (
            region.kind == "pointwise"
            and len(unit.drafts) == 1
            and state in unit.reads
            and is_local(self.graph, root, state, 1, 1, self.stored - {root})
        )

    def _home(self, value: Value) -> Value:
        """The value whose buffer it lies in."""
        while value in self.in_place:
            value = self.in_place[value]
        return self.direct.get(value, value)

    def _write_over(self, i: int, values: Sequence[Value]) -> bool:
        """Make unit i come after every other reader of these values; False where that would be a circle."""
        others = {reader for v in values for reader in self.readers.get(v, ())} - {i}
        if any(_reaches(self.after, reader, i) for reader in others):
            return False
        self.after[i] |= others
        return True

    def _leads_to(self, root: Value, state: Value) -> bool:
        """Is the result an intermediate of a chain of updates that ends as the state's next value?"""
        chain = {root}
        for equation in self.graph.equations:
            if equation.op in SCATTERS and equation.inputs[0] in chain:
                chain.add(equation.output)
        return self.befores[state].after in chain

    def _refuse_large(self, state: Value, reason: str) -> None:
        if state.type.nbytes > COPY_LIMIT:
            raise Unsupported(
                f"update of state {self.befores[state].key}: {state.type}",
                f"{reason}: that would copy {state.type.nbytes:,} bytes a step",
            )


def _in_place_of(unit: Unit, root: Value, state: Value) -> Unit:
    """The unit with a state read through the buffer of what replaces it: one binding, as it is one memory."""
    (draft,) = unit.drafts
    named = [Operand(root) if operand == Operand(state) else operand for operand in draft.operands]
    operands = tuple(dict.fromkeys(named))
    kernel = bound_together(draft.kernel, [operands.index(operand) for operand in named])
    return replace(unit, drafts=(replace(draft, kernel=kernel, operands=operands),), reads=unit.reads - {state})


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
