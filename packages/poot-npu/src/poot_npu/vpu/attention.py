"""Recognizing attention over a state that the step has just updated: softmax(chain(q · Kᵀ), masked) · V, by structure.

K and V are states of which the step replaces rows. A model does not update them: it takes the old state as it lies and
the new rows beside it, and the host writes the rows behind the step (`window.py`). So nothing of the state's size is
copied, and only the positions that a step can see are swept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.graph.keys import SlotKey, StateKey
from poot_npu.vpu.conditions import conjunction, of_columns
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.rewrite import splat, through

LOWEST = float(np.finfo(np.float32).min)
_CHAIN = frozenset("mul div add sub tanh neg min max".split())


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """K or V: a state f32[positions, heads, width] of which `update` (a scatter_update) replaces rows. `start` i32[1]
    is the position where what is read of it begins; None is its first."""

    key: StateKey
    update: Equation
    start: Value | None = None

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
    """One attention. `output` is the matmul with V, `query` f32[rows, heads, group · tokens, width].

    Row r of a batch has the positions [r · capacity, (r + 1) · capacity) of the states, and its tokens' new rows go
    there or nowhere. Where there is a `start` i32[1], one row has the positions from it on: it is `row` · capacity, and
    slots alone say which row that is. `chain` are the equations from the product with K to the masked scores, in order.
    `mask` and `seen` say which positions a token sees, and which rows of V may enter: both functions of an iota over
    positions, and of `leaves`.
    """

    output: Value
    query: Value
    chain: tuple[Equation, ...]
    keys: Source
    values: Source
    mask: Value
    seen: Value
    leaves: tuple[Value, ...]
    rows: int
    tokens: int
    group: int
    capacity: int
    start: Value | None = None
    row: Value | None = None


def find_attentions(graph: Graph) -> list[Attention]:
    """Every attention of this structure. What is like it in part is none, and is computed as the graph says."""
    updates = {pair.after: pair.key for pair in graph.state}
    befores = {pair.key: pair.before for pair in graph.state}
    found = []
    for equation in graph.equations:
        if equation.op == "matmul" and len(equation.output.shape) == 4:
            attention = _attention(graph, equation, updates, befores)
            if attention is not None:
                found.append(attention)
    # One model sweeps as many positions of all its windows.
    return [a for a in found if (a.rows, a.capacity, a.start) == (found[0].rows, found[0].capacity, found[0].start)]


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
    shape = masked.output.shape
    if len(shape) != 5 or (k.index, k.start) != (v.index, v.start) or _sizes(k) != _sizes(v):
        return None
    rows, heads, group, tokens, capacity = shape
    start, row = k.start, _row_of(graph, k, rows, capacity)
    if _sizes(k) != (rows * capacity if row is None else _sizes(k)[0], heads) or (start is None) != (row is None):
        return None
    if (rows > 1 or row is not None) and not stays_in_its_row(graph, k.index, rows, tokens, capacity, start):
        return None
    mask, seen = _condition(graph, masked.inputs[0]), _condition(graph, values.inputs[0])
    if mask.shape != (rows, tokens, capacity) or seen.type.count != rows * capacity:
        return None
    if rows > 1 and (seen.shape[0], seen.shape[-1]) != (rows, capacity):
        return None
    leaves = [of_columns(graph, value, capacity, rows > 1) for value in (mask, seen)]
    given = [leaf for found in leaves if found is not None for leaf in found]
    if None in leaves or any(leaf.dtype is not DType.I32 for leaf in given):
        return None
    query = first.inputs[0]
    sizes = rows, tokens, group, capacity
    return Attention(product.output, query, chain, k, v, mask, seen, tuple(given), *sizes, start, row)


def stays_in_its_row(
    graph: Graph, index: Value, rows: int, tokens: int, capacity: int, begin: Value | None = None
) -> bool:
    """Whether token t of row r goes to r · capacity + n with 0 <= n < capacity, or nowhere: select(... and 0 <= n and
    n < capacity, n + iota over rows · capacity, -1). With `begin`, the one row begins there."""
    chosen = through(graph, index, "reshape")
    both = (rows, tokens)
    if chosen is None or chosen.op != "select" or chosen.output.shape != both or splat(graph, chosen.inputs[2]) != -1:
        return False
    total = graph.equation(chosen.inputs[1])
    if total is None or total.op != "add":
        return False
    terms = conjunction(graph, chosen.inputs[0])
    for n, start in (total.inputs, total.inputs[::-1]):
        low = any(term.op == "le" and splat(graph, term.inputs[0]) == 0 and term.inputs[1] == n for term in terms)
        limits = [splat(graph, term.inputs[1]) for term in terms if term.op == "lt" and term.inputs[0] == n]
        high = any(limit is not None and limit <= capacity for limit in limits)
        if low and high and (_starts(graph, start, capacity) if begin is None else _is(graph, start, begin)):
            return True
    return False


def _starts(graph: Graph, value: Value, capacity: int) -> bool:
    """Whether element (r, t) is r · capacity."""
    product = graph.equation(value)
    if product is None or product.op != "mul":
        return False
    for line, factor in (product.inputs, product.inputs[::-1]):
        found = graph.equation(line)
        if splat(graph, factor) == capacity and found is not None and found.op == "iota" and found.params["axis"] == 0:
            return True
    return False


def _is(graph: Graph, value: Value, other: Value) -> bool:
    """Whether a value is another one, spread."""
    found = through(graph, value, "broadcast", "reshape")
    return found is not None and found.output == other


def _sizes(source: Source) -> tuple[int, ...]:
    """(positions, heads)."""
    return source.update.output.shape[:2]


def _row_of(graph: Graph, source: Source, rows: int, capacity: int) -> Value | None:
    """Where a source starts at row · capacity, that row, i32[1]: slots alone say which it is, and it is one of the
    state's. None where there is none such."""
    start, positions = source.start, _sizes(source)[0]
    product = None if start is None else graph.equation(start)
    if product is None or product.op != "mul" or product.output.shape != (1,) or rows != 1 or positions % capacity:
        return None
    rest = [value for value in product.inputs if splat(graph, value) is None]
    factors = [splat(graph, value) for value in product.inputs if value not in rest]
    if len(rest) != 1 or factors != [capacity] or rest[0].dtype is not DType.I32 or not of_slots(graph, rest[0]):
        return None
    return rest[0] if Lowering(graph).within(rest[0], 0, positions // capacity - 1) else None


def of_slots(graph: Graph, value: Value) -> bool:
    """Whether nothing but slots and constants is behind a value, all of them of one element."""
    found = graph.definition(value)
    if isinstance(found, Equation):
        return value.type.count == 1 and all(of_slots(graph, operand) for operand in found.inputs)
    return found.data is not None or isinstance(found.key, SlotKey)


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
    """The state under [rows, capacity, heads, width]."""
    if value is None:
        return None
    update, start = through(graph, value, "reshape"), None
    if update is not None and update.op == "gather":
        start = _whole_row(graph, update.inputs[1], value.shape[:2])
        update = None if start is None else graph.equation(update.inputs[0])
    if update is None or update.op != "scatter_update" or update.output not in updates:
        return None
    key = updates[update.output]
    if update.inputs[0] != befores[key] or len(update.output.shape) != 3 or len(value.shape) != 4:
        return None
    if value.shape[2:] != update.output.shape[1:]:
        return None
    return Source(key, update, start)


def _whole_row(graph: Graph, index: Value, shape: tuple[int, ...]) -> Value | None:
    """Where a row begins, i32[1], if these are the positions from there on: start + iota."""
    total = graph.equation(index)
    if total is None or total.op != "add" or index.shape != shape or shape[0] != 1:
        return None
    for line, start in (total.inputs, total.inputs[::-1]):
        found, begin = graph.equation(line), through(graph, start, "broadcast", "reshape")
        if found is not None and found.op == "iota" and found.params["axis"] == 1 and begin is not None:
            return begin.output
    return None


def _condition(graph: Graph, value: Value) -> Value:
    """A condition before it is spread over heads and columns."""
    equation = graph.equation(value)
    while equation is not None and equation.op in ("broadcast", "reshape"):
        value = equation.inputs[0]
        equation = graph.equation(value)
    return value
