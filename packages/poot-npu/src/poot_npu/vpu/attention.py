"""Recognizing attention over a state that the step has just updated: softmax(chain(q · Kᵀ), masked) · V, by structure.

K and V are states of which the step replaces rows. A model does not update them: it takes the old state as it lies and
the new rows beside it, and the host writes the rows behind the step (`window.py`). So nothing of the state's size is
copied, and only the positions that a step can see are swept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from openvino import opset15 as op

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.graph.keys import StateKey
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node
from poot_npu.vpu.rewrite import splat, through

LOWEST = float(np.finfo(np.float32).min)
_CHAIN = frozenset("mul div add sub tanh neg min max".split())
_COLUMN_OPS = frozenset("le lt ge gt eq ne and or not broadcast reshape".split())


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """K or V: a state f32[positions, heads, width] of which `update` (a scatter_update) replaces rows."""

    key: StateKey
    update: Equation

    @property
    def index(self) -> Value:
        """Positions of the new rows, i32[m]; a negative one is dropped."""
        return self.update.inputs[1]

    @property
    def rows(self) -> Value:
        """The new rows, f32[m, heads, width]."""
        return self.update.inputs[2]


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention of one row of a batch. `output` is the matmul with V, `query` f32[1, heads, group · tokens, width].

    `chain` are the equations from the product with K to the masked scores, in order. `mask` and `seen` say which
    positions a token sees, and which rows of V may enter: both functions of an iota over positions, and of `leaves`.
    """

    output: Value
    query: Value
    chain: tuple[Equation, ...]
    keys: Source
    values: Source
    mask: Value
    seen: Value
    leaves: tuple[Value, ...]
    tokens: int
    group: int
    capacity: int


def find_attentions(graph: Graph) -> list[Attention]:
    """Every attention of this structure. What is like it in part is none, and is computed as the graph says."""
    updates = {pair.after: pair.key for pair in graph.state}
    befores = {pair.key: pair.before for pair in graph.state}
    found = []
    for equation in graph.equations:
        if equation.op == "matmul" and len(equation.output.shape) == 4 and equation.output.shape[0] == 1:
            attention = _attention(graph, equation, updates, befores)
            if attention is not None:
                found.append(attention)
    return found


def _attention(
    graph: Graph, product: Equation, updates: dict[Value, StateKey], befores: dict[StateKey, Value]
) -> Attention | None:
    masked = _softmax_of(graph, product.inputs[0])
    values = _moved(graph, product.inputs[1], (0, 2, 1, 3))
    if masked is None or values is None or masked.op != "select" or values.op != "select":
        return None
    if splat(graph, masked.inputs[2]) != LOWEST or splat(graph, values.inputs[2]) != 0:
        return None
    scores = _chain(graph, masked.inputs[1])
    if scores is None:
        return None
    chain, first = scores
    keys = _moved(graph, first.inputs[1], (0, 2, 3, 1))
    sources = [
        _source(graph, value, updates, befores) for value in (values.inputs[1], None if keys is None else keys.output)
    ]
    if None in sources:
        return None
    v, k = sources
    assert v is not None and k is not None
    capacity = v.update.output.shape[0]
    shape = masked.output.shape
    if len(shape) != 5 or shape[0] != 1 or k.index != v.index or k.update.output.shape[:2] != v.update.output.shape[:2]:
        return None
    if shape[1] != k.update.output.shape[1] or shape[4] != capacity:
        return None
    mask, seen = _condition(graph, masked.inputs[0]), _condition(graph, values.inputs[0])
    if mask.shape != (1, shape[3], capacity) or seen.type.count != capacity:
        return None
    leaves = [of_columns(graph, value, capacity) for value in (mask, seen)]
    given = [leaf for found in leaves if found is not None for leaf in found]
    if None in leaves or any(leaf.dtype is not DType.I32 for leaf in given):
        return None
    query = first.inputs[0]
    return Attention(product.output, query, chain, k, v, mask, seen, tuple(given), shape[3], shape[2], capacity)


def _softmax_of(graph: Graph, value: Value) -> Equation | None:
    """What a softmax over the last axis is of: exp(x - max x) / Σ exp(x - max x)."""
    quotient = through(graph, value, "reshape")
    if quotient is None or quotient.op != "div":
        return None
    power = graph.equation(quotient.inputs[0])
    total = through(graph, quotient.inputs[1], "reshape", "broadcast")
    if power is None or total is None or power.op != "exp" or total.op != "sum" or total.inputs[0] != power.output:
        return None
    shifted = graph.equation(power.inputs[0])
    if shifted is None or shifted.op != "sub":
        return None
    greatest = through(graph, shifted.inputs[1], "reshape", "broadcast")
    last = len(power.output.shape) - 1
    if greatest is None or greatest.op != "reduce_max" or greatest.inputs[0] != shifted.inputs[0]:
        return None
    if greatest.params["axis"] != last or total.params["axis"] != last:
        return None
    return graph.equation(shifted.inputs[0])


def _moved(graph: Graph, value: Value, permutation: tuple[int, ...]) -> Equation | None:
    """What is under a transpose."""
    equation = graph.equation(value)
    if equation is None or equation.op != "transpose" or equation.params["permutation"] != permutation:
        return None
    return graph.equation(equation.inputs[0])


def _chain(graph: Graph, value: Value) -> tuple[tuple[Equation, ...], Equation] | None:
    """Elementwise equations with one number each, down to a matmul."""
    chain: list[Equation] = []
    equation = graph.equation(value)
    while equation is not None and equation.op != "matmul":
        if equation.op == "reshape":
            equation = graph.equation(equation.inputs[0])
            continue
        if equation.op not in _CHAIN:
            return None
        rest = [v for v in equation.inputs if splat(graph, v) is None]
        if len(rest) != 1:
            return None
        chain.append(equation)
        equation = graph.equation(rest[0])
    return None if equation is None else (tuple(reversed(chain)), equation)


def _source(
    graph: Graph, value: Value | None, updates: dict[Value, StateKey], befores: dict[StateKey, Value]
) -> Source | None:
    """The state under [1, positions, heads, width]."""
    if value is None:
        return None
    update = through(graph, value, "reshape")
    if update is None or update.op != "scatter_update" or update.output not in updates:
        return None
    key = updates[update.output]
    if update.inputs[0] != befores[key] or len(update.output.shape) != 3 or value.shape != (1, *update.output.shape):
        return None
    return Source(key, update)


def _condition(graph: Graph, value: Value) -> Value:
    """A condition before it is spread over heads and columns."""
    equation = graph.equation(value)
    while equation is not None and equation.op in ("broadcast", "reshape"):
        value = equation.inputs[0]
        equation = graph.equation(value)
    return value


def of_columns(graph: Graph, value: Value, capacity: int) -> list[Value] | None:
    """The values that a condition over positions takes beside an iota over its last axis; None where it is not of that
    form."""
    found = _columns(graph, value, capacity)
    return None if found is None else list(dict.fromkeys(found[1]))


def _columns(graph: Graph, value: Value, capacity: int) -> tuple[bool, list[Value]] | None:
    """(Does it depend on the column, leaves); None where it cannot be followed."""
    if value.shape[-1:] != (capacity,) or capacity == 1:
        return False, [value]
    equation = graph.equation(value)
    if equation is None:
        return None
    if equation.op == "iota":
        return (True, []) if equation.params["axis"] == len(value.shape) - 1 else None
    if equation.op == "broadcast" and equation.inputs[0].shape[-1] == 1:
        return False, [equation.inputs[0]]
    if equation.op not in _COLUMN_OPS or (equation.op == "reshape" and not _keeps_places(equation)):
        return None
    below = [_columns(graph, operand, capacity) for operand in equation.inputs]
    sure = [found for found in below if found is not None]
    if len(sure) < len(below):
        return None
    return any(depends for depends, _ in sure), [leaf for _, leaves in sure for leaf in leaves]


def _keeps_places(equation: Equation) -> bool:
    """Whether a reshape only adds or drops dimensions of 1."""
    before, after = ([n for n in shape if n != 1] for shape in (equation.inputs[0].shape, equation.output.shape))
    return before == after


def condition_at(low: Lowering, value: Value, capacity: int, columns: Node) -> Node:
    """The node of a condition at other columns than all: i32[n] of them. Its last axis is n."""
    if value.shape[-1:] != (capacity,) or capacity == 1:
        return low.nodes[value]
    equation = low.graph.equation(value)
    assert equation is not None
    if equation.op == "iota":
        return columns
    if equation.op in ("broadcast", "reshape"):
        return condition_at(low, equation.inputs[0], capacity, columns)
    operands = [condition_at(low, operand, capacity, columns) for operand in equation.inputs]
    return _CONDITIONS[equation.op](*operands)


_CONDITIONS: dict[str, Callable[..., Node]] = {
    "le": op.less_equal, "lt": op.less, "ge": op.greater_equal, "gt": op.greater, "eq": op.equal, "ne": op.not_equal,
    "and": op.logical_and, "or": op.logical_or, "not": op.logical_not,
}  # fmt: skip


def upper_bounds(graph: Graph, value: Value) -> list[Value]:
    """Values x of which the condition says that a column is at most x: i32, one for each condition of a conjunction."""
    equation = graph.equation(value)
    if equation is None:
        return []
    if equation.op == "and":
        return [x for operand in equation.inputs for x in upper_bounds(graph, operand)]
    if equation.op in ("broadcast", "reshape"):
        return upper_bounds(graph, equation.inputs[0])
    sides = {"le": (0, 1), "ge": (1, 0)}.get(equation.op)
    if sides is None:
        return []
    column = through(graph, equation.inputs[sides[0]], "broadcast", "reshape")
    bound = graph.equation(equation.inputs[sides[1]])
    if column is None or column.op != "iota" or bound is None or bound.op != "broadcast":
        return []
    return [bound.inputs[0]] if bound.inputs[0].shape[-1] == 1 else []
