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
from poot_npu.vpu.attention import LOWEST, Attention, Source
from poot_npu.vpu.conditions import condition_at
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node, integer, longs, real, reshaped
from poot_npu.vpu.rewrite import Rewrite, splat
from poot_npu.vpu.window import WindowUse


@dataclass(slots=True, eq=False)
class WindowNodes:
    """Parameters of one model over the states that it sweeps: `windows` f32[rows · heads, positions, width] by state,
    and `columns` i32[positions]. With `dynamic` the number of positions may differ from step to step.
    """

    dynamic: bool
    windows: dict[StateKey, Node] = field(default_factory=dict)
    uses: dict[StateKey, WindowUse] = field(default_factory=dict)
    columns: Node = None
    _shared: dict[tuple[Value, ...], tuple[Node, ...]] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the model."""
        self.windows.clear()
        self.uses.clear()
        self.columns = None
        self._shared.clear()

    def window(self, found: Attention, source: Source) -> Node:
        """The parameter of a state."""
        key, (_, heads, width) = source.key, source.update.output.shape
        if key not in self.windows:
            positions = -1 if self.dynamic else found.capacity
            shape = openvino.PartialShape([found.rows * heads, positions, width])
            self.windows[key] = op.parameter(shape, openvino.Type.f32)
            self.uses[key] = WindowUse(key, found.rows, found.capacity, heads, width)
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
            make = self._of_row if found.rows == 1 else self._of_rows
            self._shared[key] = tuple(make(low, found))
        return self._shared[key]

    def _of_row(self, low: Lowering, found: Attention) -> list[Node]:
        columns, index = self.swept(found.capacity), low.nodes[found.keys.index]
        if found.start is not None:
            index = op.subtract(index, low.nodes[found.start])
        tokens = found.keys.index.type.count
        hit = op.equal(reshaped(columns, [1, -1]), reshaped(index, [tokens, 1]))
        gone = op.reduce_logical_or(hit, longs(0), False) if tokens > 1 else reshaped(hit, [-1])
        dropped = op.less(index, integer(0))
        made: list[Node] = []
        for places, absent in ((columns, gone), (index, dropped)):
            mask, seen = (condition_at(low, c, found.capacity, lambda _, x=places: x) for c in (found.mask, found.seen))
            made += _given(mask, seen, absent)
        return made

    def _of_rows(self, low: Lowering, found: Attention) -> list[Node]:
        """Of scores f32[rows, heads, group, tokens, positions]."""
        rows, tokens = found.rows, found.keys.index.type.count // found.rows
        columns = self.swept(found.capacity)
        starts = np.arange(rows, dtype=np.int32).reshape(rows, 1) * found.capacity
        index = op.subtract(reshaped(low.nodes[found.keys.index], [rows, tokens]), op.constant(starts.astype(np.int32)))
        hit = op.equal(reshaped(columns, [1, 1, -1]), reshaped(index, [rows, tokens, 1]))
        gone = op.reduce_logical_or(hit, longs(1), True) if tokens > 1 else hit
        dropped = reshaped(op.less(index, integer(0)), [rows, 1, tokens])
        made: list[Node] = []
        for lead, places, absent in ((1, columns, gone), (rows, index, dropped)):
            mask, seen = (
                condition_at(low, c, found.capacity, lambda n, x=places, i=lead: reshaped(x, [i, *[1] * (n - 2), -1]))
                for c in (found.mask, found.seen)
            )
            apart = op.unsqueeze(seen, longs(list(range(1, 6 - len(found.seen.shape)))))
            made += _given(op.unsqueeze(mask, longs([1, 2])), apart, op.unsqueeze(absent, longs([1, 2])))
        return made


def _given(mask: Node, seen: Node, absent: Node) -> list[Node]:
    """(visible, else, seen)."""
    other = op.select(absent, real(-np.inf), real(LOWEST))
    return [op.logical_and(mask, op.logical_not(absent)), other, op.convert(seen, openvino.Type.f32)]


def attention_rewrite(graph: Graph, found: Attention, made: WindowNodes) -> Rewrite:
    """The rewrite of an attention's output."""
    starts = () if found.start is None else (found.start,)
    inputs = (found.query, found.keys.index, found.keys.rows, found.values.rows, *starts, *found.leaves)
    return Rewrite(tuple(dict.fromkeys(inputs)), lambda low: attended(graph, low, found, made))


def attended(graph: Graph, low: Lowering, found: Attention, made: WindowNodes) -> Node:
    """f32[rows, heads, group · tokens, width of V]."""
    rows, heads, queries, width = found.query.shape
    low.check(found.keys.update, found.keys.index, -(1 << 31), found.keys.update.output.shape[0] - 1)
    query = reshaped(low.nodes[found.query], [rows * heads, queries, width])
    chain = list(found.chain)
    if chain and chain[0].op == "mul":
        # On the few queries, or the plug-in moves it to the many keys.
        query = _applied(graph, low, chain.pop(0), query)
    few = found.keys.index.type.count == rows
    shape = [*([] if rows == 1 else [rows]), heads, found.group, found.tokens, -1]
    parts = []
    visible, other, seen, *new = made.conditions(low, found)
    for is_new, conditions in ((False, (visible, other, seen)), (True, tuple(new))):
        if is_new:
            keys, values = (_by_head(low.nodes[v], v, rows) for v in (found.keys.rows, found.values.rows))
        else:
            keys, values = (made.window(found, source) for source in (found.keys, found.values))
        if is_new and few:
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
        spread = reshaped(op.multiply(power, may_enter), [rows * heads, queries, -1])
        product = op.multiply(spread, values) if number and few else op.matmul(spread, values, False, False)
        total = mass if total is None else op.add(total, mass)
        weighted = product if weighted is None else op.add(weighted, product)
    return reshaped(op.divide(weighted, reshaped(total, [rows * heads, queries, 1])), found.output.shape)


def _by_head(new: Node, value: Value, rows: int) -> Node:
    """New rows [rows · tokens, heads, width] as [rows · heads, tokens, width]."""
    m, heads, width = value.shape
    if m == rows:
        return reshaped(new, [rows * heads, 1, width])
    if rows == 1:
        return op.transpose(new, longs([1, 0, 2]))
    moved = op.transpose(reshaped(new, [rows, m // rows, heads, width]), longs([0, 2, 1, 3]))
    return reshaped(moved, [rows * heads, m // rows, width])


def _applied(graph: Graph, low: Lowering, equation: Equation, x: Node) -> Node:
    """An equation of the chain on scores of another number of positions: its other operand is one number."""
    function = _FUNCTIONS[equation.op]
    numbers = [splat(graph, value) for value in equation.inputs]
    return function(*(x if number is None else real(float(number)) for number in numbers))


_FUNCTIONS = {
    "mul": op.multiply, "div": op.divide, "add": op.add, "sub": op.subtract, "tanh": op.tanh, "neg": op.negative,
    "min": op.minimum, "max": op.maximum,
}  # fmt: skip
