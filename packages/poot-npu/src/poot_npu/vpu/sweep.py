"""How many positions of its windows a step must sweep, from the bounds of its masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import from_bytes
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_executor.graph.keys import SlotKey
from poot_executor.graph.ops import OPS
from poot_npu.vpu.attention import Attention
from poot_npu.vpu.conditions import upper_bounds

STEP = 128
"""Positions by which windows grow."""
MAX_BOUND_ELEMENTS = 4096


@dataclass(frozen=True, slots=True)
class Swept:
    """What a step sweeps: how many positions; the last that it sees in each row, from the row `first` on."""

    length: int
    lasts: list[int]
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """How many positions a step must sweep: more than any token sees; and of which rows.

    `first` i32[1] is the row of the states that the step's one row is; None: its rows are the first ones.
    `bounds` are pairs of i32 values [rows, ...]: the greatest are the last positions that a token of a row sees, and
    that hold something of the row. `equations` compute them of slots.
    """

    rows: int
    capacity: int
    bounds: tuple[tuple[Value, Value], ...]
    equations: tuple[Equation, ...]
    given: dict[Value, Callable[[], Any]] = field(default_factory=dict)
    first: Value | None = None

    def look(self) -> Swept:
        """Of the slots as they are: a multiple of STEP positions, or all. All too where a token sees none and its row
        holds something, since softmax then weighs all alike. Of a row that holds nothing the result is 0, however many
        positions are weighed.
        """
        values = {value: read() for value, read in self.given.items()}
        for equation in self.equations:
            operands = [values[v] for v in equation.inputs]
            values[equation.output] = OPS[equation.op].evaluate(operands, equation.params, equation.output.type)
        first = 0 if self.first is None else int(np.reshape(values[self.first], -1)[0])
        every = Swept(self.capacity, [self.capacity - 1] * self.rows, first)
        if not self.bounds:
            return every
        lasts = np.full(self.rows, -1)
        for pair in self.bounds:
            tokens, held = (np.reshape(values[bound], (self.rows, -1)) for bound in pair)
            if ((tokens.min(axis=1) < 0) & (held.max(axis=1) >= 0)).any():
                return every
            lasts = np.maximum(lasts, np.maximum(tokens.max(axis=1), held.max(axis=1)))
        most = max(int(lasts.max()), 0)
        return Swept(min(-(-(most + 1) // STEP) * STEP, self.capacity), lasts.tolist(), first)


def sweep_of(graph: Graph, attentions: Iterable[Attention], slot: Callable[[SlotKey], NDArray[np.uint8]]) -> Sweep:
    """The sweep of a step with these attentions; all positions where a mask has no upper bound of slots alone."""
    rows, capacity, first, pairs = 1, 0, None, []
    for found in attentions:
        rows, capacity, first = found.rows, found.capacity, found.row
        mine = [upper_bounds(graph, condition)[:1] for condition in (found.mask, found.seen)]
        if not all(mine) or (rows > 1 and any(bound.shape[0] != rows for (bound,) in mine)):
            return _every(graph, rows, capacity, first, slot)
        pairs.append((mine[0][0], mine[1][0]))
    distinct = tuple(dict.fromkeys(pairs))
    needed = {bound for pair in distinct for bound in pair}
    found = _computed(graph, needed if first is None else {*needed, first}, slot)
    if found is None or sum(equation.output.type.count for equation in found[0]) > MAX_BOUND_ELEMENTS:
        return _every(graph, rows, capacity, first, slot)
    return Sweep(rows, capacity, distinct, *found, first)


def _every(
    graph: Graph, rows: int, capacity: int, first: Value | None, slot: Callable[[SlotKey], NDArray[np.uint8]]
) -> Sweep:
    found = _computed(graph, set() if first is None else {first}, slot)
    assert found is not None, "the row of an attention is of slots alone"
    return Sweep(rows, capacity, (), *found, first)


def _computed(
    graph: Graph, needed: set[Value], slot: Callable[[SlotKey], NDArray[np.uint8]]
) -> tuple[tuple[Equation, ...], dict[Value, Callable[[], Any]]] | None:
    """What computes these values, and reads what they are of; None where that is more than slots."""
    needed, equations, given = set(needed), [], {}
    for equation in reversed(graph.equations):
        if equation.output in needed:
            equations.append(equation)
            needed.update(equation.inputs)
    for value in needed:
        found = graph.definition(value)
        if isinstance(found, Input):
            read = _reader(found, slot)
            if read is None:
                return None
            given[value] = read
    return tuple(reversed(equations)), given


def _reader(entry: Input, slot: Callable[[SlotKey], NDArray[np.uint8]]) -> Callable[[], Any] | None:
    type, data = entry.value.type, entry.data
    if data is not None:
        return lambda: data
    if isinstance(entry.key, SlotKey):
        memory = slot(entry.key)[: type.nbytes]
        return lambda: from_bytes(memory, type.dtype, type.shape)
    return None
