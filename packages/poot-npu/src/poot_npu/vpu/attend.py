"""Attention in a model: the old state as it lies, up to the positions that are swept, and the new rows beside it.

With s the scores over old positions and t those over new rows, m = max(max s, max t):
softmax · V = (e^(s-m) · V_old + e^(t-m) · V_new) / (Σ e^(s-m) + Σ e^(t-m)).
An old position that the step overwrites has score -inf, and so has a new row that is dropped: they are not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import openvino
from openvino import opset15 as op

from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.graph.keys import StateKey
from poot_npu.vpu.attention import LOWEST, Attention, condition_at
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node, integer, longs, real, reshaped
from poot_npu.vpu.rewrite import Rewrite, splat


@dataclass(slots=True, eq=False)
class WindowNodes:
    """Parameters of one model over the states that it sweeps: `windows` f32[heads, positions, width] by state, and
    `columns` i32[positions]. With `dynamic` the number of positions may differ from step to step.
    """

    dynamic: bool
    windows: dict[StateKey, Node] = field(default_factory=dict)
    columns: Node = None
    _shared: dict[tuple[Value, ...], tuple[Node, ...]] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the model."""
        self.windows.clear()
        self.columns = None
        self._shared.clear()

    def window(self, key: StateKey, heads: int, positions: int, width: int) -> Node:
        """The parameter of a state."""
        if key not in self.windows:
            shape = openvino.PartialShape([heads, -1 if self.dynamic else positions, width])
            self.windows[key] = op.parameter(shape, openvino.Type.f32)
        return self.windows[key]

    def swept(self, positions: int) -> Node:
        """The positions that a window has: 0, 1, 2 ..."""
        if self.columns is None:
            shape = openvino.PartialShape([-1 if self.dynamic else positions])
            self.columns = op.parameter(shape, openvino.Type.i32)
        return self.columns

    def conditions(self, low: Lowering, found: Attention) -> tuple[Node, ...]:
        """(visible, else, seen) of old positions, then of new rows; made once for all layers that share them."""
        key = (found.mask, found.seen, found.keys.index)
        if key not in self._shared:
            columns, index = self.swept(found.capacity), low.nodes[found.keys.index]
            rows = found.keys.index.type.count
            hit = op.equal(reshaped(columns, [1, -1]), reshaped(index, [rows, 1]))
            gone = op.reduce_logical_or(hit, longs(0), False) if rows > 1 else reshaped(hit, [-1])
            dropped = op.less(index, integer(0))
            made: list[Node] = []
            for places, absent in ((columns, gone), (index, dropped)):
                mask, seen = (condition_at(low, c, found.capacity, places) for c in (found.mask, found.seen))
                made.append(op.logical_and(mask, op.logical_not(absent)))
                made.append(op.select(absent, real(-np.inf), real(LOWEST)))
                made.append(op.convert(seen, openvino.Type.f32))
            self._shared[key] = tuple(made)
        return self._shared[key]


def attention_rewrite(graph: Graph, found: Attention, made: WindowNodes) -> Rewrite:
    """The rewrite of an attention's output."""
    inputs = (found.query, found.keys.index, found.keys.rows, found.values.rows, *found.leaves)
    return Rewrite(tuple(dict.fromkeys(inputs)), lambda low: attended(graph, low, found, made))


def attended(graph: Graph, low: Lowering, found: Attention, made: WindowNodes) -> Node:
    """f32[1, heads, group · tokens, width of V]."""
    _, heads, queries, width = found.query.shape
    low.check(found.keys.update, found.keys.index, -(1 << 31), found.capacity - 1)
    query = reshaped(low.nodes[found.query], [heads, queries, width])
    chain = list(found.chain)
    if chain and chain[0].op == "mul":
        # On the few queries, or the plug-in moves it to the many keys.
        query = _applied(graph, low, chain.pop(0), query)
    few = found.keys.index.type.count == 1
    shape = [heads, found.group, found.tokens, -1]
    parts = []
    visible, other, seen, *new = made.conditions(low, found)
    same = found.mask == found.seen
    for rows, conditions in ((None, (visible, other, seen)), (found.keys.rows, tuple(new))):
        if rows is None:
            keys = made.window(found.keys.key, heads, found.capacity, width)
            values = made.window(found.values.key, heads, found.capacity, found.output.shape[-1])
        else:
            keys, values = (_by_head(low.nodes[v], v) for v in (found.keys.rows, found.values.rows))
        if rows is not None and few:
            scores = op.reduce_sum(op.multiply(query, keys), longs(-1), True)
        else:
            scores = op.matmul(query, keys, False, True)
        for equation in chain:
            scores = _applied(graph, low, equation, scores)
        scores = op.select(conditions[0], reshaped(scores, shape), conditions[1])
        parts.append((scores, values, conditions[2]))
    top = op.maximum(*(op.reduce_max(scores, longs(-1), True) for scores, _, _ in parts))
    total = weighted = None
    for number, (scores, values, may_enter) in enumerate(parts):
        power = op.exp(op.subtract(scores, top))
        mass = op.reduce_sum(power, longs(-1), True)
        entering = power if same else op.multiply(power, may_enter)
        spread = reshaped(entering, [heads, queries, -1])
        product = op.multiply(spread, values) if number and few else op.matmul(spread, values, False, False)
        total = mass if total is None else op.add(total, mass)
        weighted = product if weighted is None else op.add(weighted, product)
    return reshaped(op.divide(weighted, reshaped(total, [heads, queries, 1])), found.output.shape)


def _by_head(rows: Node, value: Value) -> Node:
    """New rows [m, heads, width] with heads first."""
    m, heads, width = value.shape
    if m == 1:
        return reshaped(rows, [heads, 1, width])
    return op.transpose(rows, longs([1, 0, 2]))


def _applied(graph: Graph, low: Lowering, equation: Equation, x: Node) -> Node:
    """An equation of the chain on scores of another number of positions: its other operand is one number."""
    function = _FUNCTIONS[equation.op]
    numbers = [splat(graph, value) for value in equation.inputs]
    return function(*(x if number is None else real(float(number)) for number in numbers))


_FUNCTIONS = {
    "mul": op.multiply, "div": op.divide, "add": op.add, "sub": op.subtract, "tanh": op.tanh, "neg": op.negative,
    "min": op.minimum, "max": op.maximum,
}  # fmt: skip
