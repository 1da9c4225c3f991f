"""A softmax by structure: which quotient of exponentials a contraction reads, and of what.

    p = exp(x − m) / t,  m = max x,  t = Σ exp(x − m)

With a sink s, a score that no value belongs to, either x has it as its first or last column, which a slice leaves out
of p; or m = max(max x, s) and t = Σ exp(x − m) + exp(s − m).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poot_executor.compile.region import Region
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value


@dataclass(frozen=True, slots=True, eq=False)
class Normalized:
    """What a contraction reads as probabilities: the `root` of their region, the `quotient`, the dtype that they are
    `rounded` to. The contraction has `columns` of them from `first` on."""

    root: Value
    quotient: Equation
    rounded: DType
    first: int
    columns: int


def normalized(graph: Graph, value: Value, by_root: Mapping[Value, Region]) -> Normalized | str:
    """The probabilities that a contraction reads through casts, a slice of columns and reshapes of whole rows; or why
    they are none."""
    columns, first = value.shape[-1], 0
    left: Value | None = None
    narrow: set[DType] = set()
    while True:
        if left is None and value in by_root:
            left = value
        equation = graph.equation(value)
        if equation is None or equation.op not in ("reshape", "cast", "slice"):
            break
        source = equation.inputs[0]
        if equation.op == "reshape" and source.shape[-1:] != value.shape[-1:]:
            return "its left operand is reshaped across rows"
        if equation.op == "slice":
            if not _whole_rows(equation):
                return "its left operand is a part of a softmax"
            first += equation.params["start"][-1]
        if equation.op == "cast" and value.dtype is not DType.F32:
            narrow.add(value.dtype)
        value = source
    if left is None or equation is None or not all(d.is_float for d in narrow):
        return "its left operand is no softmax"
    if len(narrow) > 1:
        return "the probabilities are rounded twice"
    return Normalized(left, equation, narrow.pop() if narrow else DType.F32, first, columns)


def _whole_rows(move: Equation) -> bool:
    """Does a slice take a run of columns of every row?"""
    shape, params = move.inputs[0].shape, move.params
    lead = range(len(shape) - 1)
    whole = all(params["start"][a] == 0 and params["stop"][a] == shape[a] for a in lead)
    return whole and all(step == 1 for step in params["step"])


def softmax_of(
    graph: Graph, found: Normalized, greatest: Equation, total: Equation
) -> tuple[Value, Value | None] | None:
    """x and the sink's score a row (None without one), where the quotient is a softmax of x by these reductions."""
    if greatest.op != "reduce_max" or total.op != "sum":
        return None
    powers, x = total.inputs[0], greatest.inputs[0]
    below = _divided(graph, found.quotient, powers)
    shifted = _shifted(graph, powers)
    if below is None or shifted is None or _flat(graph, shifted[0]) != _flat(graph, x):
        return None
    if powers.shape[-1] != x.shape[-1]:
        return None
    x = _flat(graph, x) if _flat(graph, x).shape[-1:] == x.shape[-1:] else x
    most = spread(graph, shifted[1])
    if spread(graph, below) == total.output and most == greatest.output:
        return _without_sink(graph, x, found)
    return _beside_sink(graph, x, most, below, greatest, total) if found.columns == x.shape[-1] else None


def _without_sink(graph: Graph, x: Value, found: Normalized) -> tuple[Value, Value | None] | None:
    """x as it is, or taken apart where its first or last column is left out."""
    if found.columns == x.shape[-1]:
        return x, None
    joined = graph.equation(x)
    if joined is None or joined.op != "concat" or joined.params["axis"] != len(x.shape) - 1 or len(joined.inputs) != 2:
        return None
    place = 0 if found.first == 0 else 1
    rest, sink = joined.inputs[place], joined.inputs[1 - place]
    starts = found.first == (0 if place == 0 else sink.shape[-1])
    return (rest, sink) if starts and sink.shape[-1] == 1 and rest.shape[-1] == found.columns else None


def _beside_sink(
    graph: Graph, x: Value, most: Value, below: Value, greatest: Equation, total: Equation
) -> tuple[Value, Value | None] | None:
    """x and the sink, where that is a term of the maximum and of the sum."""
    sink = _other(graph, most, "max", greatest.output)
    term = _other(graph, spread(graph, below), "add", total.output)
    shifted = None if term is None else _shifted(graph, term)
    if (
        sink is None
        or shifted is None
        or _flat(graph, shifted[0]) != _flat(graph, sink)
        or spread(graph, shifted[1]) != most
    ):
        return None
    return (x, sink) if sink.type.count * x.shape[-1] == x.type.count else None


def _other(graph: Graph, value: Value, op: str, one: Value) -> Value | None:
    """The other operand of an operation that has `one`, reshaped or repeated, as one of its two."""
    equation = graph.equation(value)
    if equation is None or equation.op != op:
        return None
    rest = [v for v in equation.inputs if spread(graph, v) != one]
    return rest[0] if len(rest) == 1 else None


def _divided(graph: Graph, quotient: Equation, powers: Value) -> Value | None:
    """t where the quotient is powers / t, or powers times the reciprocal of t."""
    if quotient.op == "div":
        return quotient.inputs[1] if _flat(graph, quotient.inputs[0]) == _flat(graph, powers) else None
    others = [v for v in quotient.inputs if _flat(graph, v) != _flat(graph, powers)]
    if quotient.op != "mul" or len(others) != 1:
        return None
    inner = graph.equation(spread(graph, others[0]))
    return inner.inputs[0] if inner is not None and inner.op == "recip" else None


def _shifted(graph: Graph, power: Value) -> tuple[Value, Value] | None:
    """a and b where a value is exp(a − b), or exp(a + (−b))."""
    outer = graph.equation(_flat(graph, power))
    inner = graph.equation(_flat(graph, outer.inputs[0])) if outer is not None and outer.op == "exp" else None
    if inner is None or inner.op not in ("sub", "add"):
        return None
    if inner.op == "sub":
        return inner.inputs[0], inner.inputs[1]
    for place, value in enumerate(inner.inputs):
        negated = graph.equation(spread(graph, value))
        if negated is not None and negated.op == "neg":
            return inner.inputs[1 - place], negated.inputs[0]
    return None


def _flat(graph: Graph, value: Value) -> Value:
    """The value under reshapes: the same elements in the same order."""
    equation = graph.equation(value)
    return _flat(graph, equation.inputs[0]) if equation is not None and equation.op == "reshape" else value


def spread(graph: Graph, value: Value) -> Value:
    """The value under reshapes and broadcasts."""
    equation = graph.equation(value)
    through = equation is not None and equation.op in ("reshape", "broadcast")
    return spread(graph, equation.inputs[0]) if equation is not None and through else value
