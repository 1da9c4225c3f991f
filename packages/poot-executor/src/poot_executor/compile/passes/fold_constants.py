"""Constant folding: what depends on constants alone is computed here, by the oracle's rules.

A result that is the same everywhere becomes a splat, a number broadcast, whatever its size. Otherwise
a result becomes a constant where it is small, or no larger than the constants it is made of. What
merely repeats (broadcast) or counts (iota, and arithmetic on it) stays: a kernel computes that for
less than it costs to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from poot_executor.errors import GraphError
from poot_executor.graph.graph import Equation, Graph, Input, TensorType, Value
from poot_executor.graph.op_row import OpKind
from poot_executor.graph.ops import op_named
from poot_executor.graph.rewrite import Rewriter, single_bits

SMALL_BYTES = 64 << 10
"""A constant up to this size is stored even where it is larger than what it is made of."""

WORK_BYTES = 16 << 20
"""Nothing larger than this is computed here, operands and results alike."""


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What a value of the new graph holds. `sources` are the constants it comes from; `counts` says
    that an iota is among them."""

    data: NDArray[Any]
    sources: frozenset[Value]
    counts: bool


def fold_constants(graph: Graph) -> Graph:
    """The graph with constant results in place of the equations that compute them."""
    rewriter = Rewriter(graph)
    known: dict[Value, _Known] = {}
    for item in graph.inputs:
        _input(rewriter, item, known)
    for equation in graph.equations:
        _equation(rewriter, equation, known)
    return rewriter.result()


def _input(rewriter: Rewriter, item: Input, known: dict[Value, _Known]) -> None:
    data, type = item.data, item.value.type
    if data is None:
        rewriter.keep_input(item)
    elif type.count > 1 and single_bits(data, type.dtype):
        _splat(rewriter, item.value, data, known)
    else:
        value = rewriter.keep_input(item)
        known[value] = _Known(data, frozenset([value]), False)


def _splat(rewriter: Rewriter, old: Value, data: NDArray[Any], known: dict[Value, _Known]) -> None:
    value = rewriter.splat(data.reshape(-1)[:1], old.type)
    rewriter.replace(old, value)
    broadcast = rewriter.equation(value, "broadcast")
    source = value if broadcast is None else broadcast.inputs[0]
    known[value] = _Known(data, frozenset([source]), False)


def _equation(rewriter: Rewriter, equation: Equation, known: dict[Value, _Known]) -> None:
    call, type, old = rewriter.call(equation), equation.output.type, equation.output
    operands = [known.get(v) for v in call.inputs]
    result = _evaluate(equation, operands)
    if result is None:
        rewriter.keep(equation)
        return
    if equation.op != "broadcast" and single_bits(result.data, type.dtype):
        _splat(rewriter, old, result.data, known)
    elif _stays(equation, result, type):
        known[rewriter.keep(equation)] = result
    else:
        value = rewriter.computed(result.data, type.dtype)
        rewriter.replace(old, value)
        known[value] = _Known(result.data, frozenset([value]), False)


def _evaluate(equation: Equation, operands: list[_Known | None]) -> _Known | None:
    known = [k for k in operands if k is not None]
    sizes = [v.type.nbytes for v in (*equation.inputs, equation.output)]
    if len(known) < len(operands) or max(sizes) > WORK_BYTES:
        return None
    row = op_named(equation.op)
    if row.kind is OpKind.CONTRACTION:
        return None  # the product of two constants is a job for whoever stores them
    try:
        data = row.evaluate([k.data for k in known], equation.params, equation.output.type)
    except GraphError:
        return None  # a fault, if it is ever run: the device reports it then
    sources = frozenset().union(*(k.sources for k in known))
    counts = equation.op == "iota" or any(k.counts for k in known)
    return _Known(data, sources, counts)


def _stays(equation: Equation, result: _Known, type: TensorType) -> bool:
    if result.counts or equation.op == "broadcast":
        return True
    held = sum(value.type.nbytes for value in result.sources)
    return type.nbytes > max(SMALL_BYTES, held)
