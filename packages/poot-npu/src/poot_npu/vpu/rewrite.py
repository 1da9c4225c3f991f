"""Rewrites: values of a graph that are computed in another way than their equation says, recognized by structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_npu.vpu.elementwise import equals_number, exp, is_no_number_below_infinity, is_not_a_number
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node, narrowed


@dataclass(frozen=True, slots=True, eq=False)
class Rewrite:
    """A value from other values: `build` makes its node, whose operands are those of `inputs`."""

    inputs: tuple[Value, ...]
    build: Callable[[Lowering], Node]


Rewrites = Mapping[Value, Rewrite]


def splat(graph: Graph, value: Value) -> float | int | None:
    """The one number that a value holds everywhere, through broadcasts and reshapes; None where it holds others."""
    found = graph.definition(value)
    while isinstance(found, Equation) and found.op in ("broadcast", "reshape"):
        found = graph.definition(found.inputs[0])
    if not isinstance(found, Input) or found.data is None or found.data.size == 0:
        return None
    first = found.data.reshape(-1)[0]
    return first.item() if bool(np.all(found.data == first)) else None


def through(graph: Graph, value: Value, *ops: str) -> Equation | None:
    """The equation under operations that only move a value."""
    found = graph.equation(value)
    while found is not None and found.op in ops:
        found = graph.equation(found.inputs[0])
    return found


def float_flags(graph: Graph) -> dict[Value, Rewrite]:
    """Comparisons of a float's bits that say what a comparison of the float says: is it NaN, is it infinite."""
    made: dict[Value, Rewrite] = {}
    for equation in graph.equations:
        if equation.op == "lt" and splat(graph, equation.inputs[0]) == 0x7F800000:
            masked = graph.equation(equation.inputs[1])
            x = _magnitude(graph, masked)
            if x is not None:
                made[equation.output] = Rewrite((x,), lambda low, x=x: is_not_a_number(low.nodes[x]))
        elif equation.op == "eq":
            for one, other in (equation.inputs, equation.inputs[::-1]):
                bits, x = splat(graph, other), _float_of(graph, one)
                if bits == 0x7F800000 and x is not None:
                    made[equation.output] = Rewrite((x,), lambda low, x=x: equals_number(low.nodes[x], float("inf")))
        elif equation.op == "or" and all(value in made for value in equation.inputs):
            (x,), (other,) = (made[value].inputs for value in equation.inputs)
            kinds = {found.op for found in map(graph.equation, equation.inputs) if found is not None}
            if x == other and kinds == {"lt", "eq"}:
                made[equation.output] = Rewrite((x,), lambda low, x=x: is_no_number_below_infinity(low.nodes[x]))
    return made


def falling_powers(graph: Graph) -> dict[Value, Rewrite]:
    """e to the numbers of an axis less their greatest, which are none above 0."""
    made: dict[Value, Rewrite] = {}
    for equation in graph.equations:
        less = graph.equation(equation.inputs[0]) if equation.op == "exp" else None
        if less is not None and less.op == "sub" and _is_greatest_of(graph, less.inputs[1], less.inputs[0]):
            x, dtype = equation.inputs[0], equation.output.dtype
            made[equation.output] = Rewrite((x,), lambda low, x=x, d=dtype: narrowed(exp(low.nodes[x], upper=False), d))
    return made


def _is_greatest_of(graph: Graph, value: Value, x: Value) -> bool:
    """Whether a value is the greatest of an axis of x, at each place of it."""
    spread = graph.equation(value)
    line = None if spread is None or spread.op != "broadcast" else graph.equation(spread.inputs[0])
    most = None if line is None or line.op != "reshape" else graph.equation(line.inputs[0])
    if line is None or most is None or most.op != "reduce_max" or most.inputs[0] != x:
        return False
    axis = most.params["axis"]
    return line.output.shape == (*x.shape[:axis], 1, *x.shape[axis + 1 :])


def _magnitude(graph: Graph, equation: Equation | None) -> Value | None:
    """The float under "all bits but the sign"."""
    if equation is None or equation.op != "and":
        return None
    for one, other in (equation.inputs, equation.inputs[::-1]):
        if splat(graph, other) == 0x7FFFFFFF:
            return _float_of(graph, one)
    return None


def _float_of(graph: Graph, value: Value) -> Value | None:
    equation = graph.equation(value)
    if equation is None or equation.op != "bitcast" or equation.inputs[0].dtype is not DType.F32:
        return None
    return equation.inputs[0]
