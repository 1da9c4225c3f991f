"""Rewrites of compositions that models are made of: norms, gates and rotations, in forms that take fewer nodes.

Each is recognized by structure and computes the same: no operation is left out, and none is in another precision.
"""

from __future__ import annotations

import numpy as np
from openvino import opset15 as op

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value
from poot_npu.vpu.elementwise import growth
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node, longs, real, reshaped
from poot_npu.vpu.rewrite import Rewrite, splat, through


def fused(graph: Graph) -> dict[Value, Rewrite]:
    """Every such composition, by the value that it ends in."""
    made: dict[Value, Rewrite] = {}
    for equation in graph.equations:
        if equation.output.dtype is DType.F32:
            match = _MATCHERS.get(equation.op)
            rewrite = None if match is None else match(graph, equation)
            if rewrite is not None:
                made[equation.output] = rewrite
    return made


def _norm(graph: Graph, equation: Equation) -> Rewrite | None:
    """x · 1 / √(Σx² / n + ε) over the last axis, times a weight: what the plug-in knows as one operation."""
    for scaled, weight in (equation.inputs, equation.inputs[::-1]):
        product = graph.equation(scaled)
        gamma = _row_of(graph, weight)
        if product is None or product.op != "mul" or gamma is None:
            continue
        for x, factor in (product.inputs, product.inputs[::-1]):
            epsilon = _inverse_root_mean_square(graph, x, factor)
            if epsilon is not None:
                return Rewrite((x, gamma), lambda low, x=x, gamma=gamma, e=epsilon: _rms(low, x, gamma, e))
    return None


def _row_of(graph: Graph, value: Value) -> Value | None:
    """A row [n] that is repeated over all rows of a value."""
    equation = graph.equation(value)
    while equation is not None and equation.op in ("broadcast", "reshape"):
        inner = equation.inputs[0]
        if inner.shape == (value.shape[-1],):
            return inner
        if inner.shape[-1:] != value.shape[-1:]:
            return None
        equation = graph.equation(inner)
    return None


def _inverse_root_mean_square(graph: Graph, x: Value, factor: Value) -> float | None:
    """ε, where a factor is 1 / √(Σx² / n + ε)."""
    inverse = through(graph, factor, "broadcast", "reshape")
    root = _under(graph, inverse, "recip", "reshape", "broadcast")
    total = _under(graph, root, "sqrt", "reshape", "broadcast")
    if total is None or total.op != "add":
        return None
    for mean, other in (total.inputs, total.inputs[::-1]):
        epsilon, quotient = splat(graph, other), graph.equation(mean)
        if (
            epsilon is None
            or quotient is None
            or quotient.op != "div"
            or splat(graph, quotient.inputs[1]) != x.shape[-1]
        ):
            continue
        summed = through(graph, quotient.inputs[0], "reshape", "broadcast")
        if summed is None or summed.op != "sum" or summed.params["axis"] != len(x.shape) - 1:
            continue
        square = graph.equation(summed.inputs[0])
        if square is not None and square.op == "mul" and square.inputs == (x, x):
            return float(epsilon)
    return None


def _under(graph: Graph, equation: Equation | None, name: str, *moves: str) -> Equation | None:
    """What is under an operation of that name."""
    return through(graph, equation.inputs[0], *moves) if equation is not None and equation.op == name else None


def _rms(low: Lowering, x: Value, gamma: Value, epsilon: float) -> Node:
    node = low.nodes[x]
    mean = op.reduce_mean(op.power(node, real(2.0)), longs([-1]), True)
    root = op.sqrt(op.add(mean, real(epsilon)))
    return op.multiply(low.nodes[gamma], op.multiply(node, op.divide(real(1.0), root)))


def _gate(graph: Graph, equation: Equation) -> Rewrite | None:
    """x / (1 + e^-x): where e^-x is infinite the quotient is 0 with either sign of its error."""
    x = equation.inputs[0]
    total = graph.equation(equation.inputs[1])
    if total is None or total.op != "add":
        return None
    for one, power in (total.inputs, total.inputs[::-1]):
        found = graph.equation(power)
        if splat(graph, one) == 1 and found is not None and found.op == "exp":
            negative = graph.equation(found.inputs[0])
            if negative is not None and negative.op == "neg" and negative.inputs[0] == x:
                return Rewrite((x,), lambda low: _sigmoid_times(low.nodes[x]))
    return None


def _sigmoid_times(x: Node) -> Node:
    """The exponential is not the plug-in's own: x / (1 + e^-x) over that is what it knows as Swish, which is 0 from -87
    down, where the quotient is a normal number as far as -88.7."""
    return op.divide(x, op.add(real(1.0), growth(op.negative(x))))


def _rotation(graph: Graph, equation: Equation) -> Rewrite | None:
    """(a · cos - b · sin, b · cos + a · sin) of pairs (a, b), which are neighbours or half a row apart."""
    if len(equation.inputs) != 2 or equation.params["axis"] != len(equation.output.shape) - 1:
        return None
    turned = [through(graph, value, "reshape") for value in equation.inputs]
    if turned[0] is None or turned[1] is None or (turned[0].op, turned[1].op) != ("sub", "add"):
        return None
    factors = [_factors(graph, value) for half in turned if half is not None for value in half.inputs]
    if None in factors:
        return None
    (a, cos), (b, sin), *others = (found for found in factors if found is not None)
    if sorted(others, key=str) != sorted([(b, cos), (a, sin)], key=str):
        return None
    first, second = (through(graph, value, "reshape") for value in (a, b))
    if first is None or second is None or (first.op, second.op) != ("slice", "slice"):
        return None
    x = first.inputs[0]
    half = cos.shape[-1]
    near = x.shape[-1] == 2 and first.output.shape[-1] == 1
    if second.inputs[0] != x or x.type.count != equation.output.type.count or not _pairs(first, second, near):
        return None
    if (near and (x.shape[-2] != half or equation.output.shape != x.shape)) or (not near and x.shape[-1] != 2 * half):
        return None
    return Rewrite((x, cos, sin), lambda low: _rotated(low, x, cos, sin, near))


def _factors(graph: Graph, value: Value) -> tuple[Value, Value] | None:
    """(part of x, cosine or sine before it is spread over heads)."""
    product = graph.equation(value)
    if product is None or product.op != "mul":
        return None
    for x, angle in (product.inputs, product.inputs[::-1]):
        spread, moved = graph.equation(angle), graph.equation(x)
        if spread is not None and spread.op == "broadcast" and moved is not None and moved.op in ("reshape", "slice"):
            return x, spread.inputs[0]
    return None


def _pairs(first: Equation, second: Equation, near: bool) -> bool:
    """Whether two slices of the last axis are its two halves, or its two places."""
    n = first.inputs[0].shape[-1]
    middle = 1 if near else n // 2
    edges = [(s.params["start"][-1], s.params["stop"][-1]) for s in (first, second)]
    whole = all(
        s.params["start"][:-1] == (0,) * (len(s.params["start"]) - 1)
        and s.params["stop"][:-1] == s.inputs[0].shape[:-1]
        and set(s.params["step"]) == {1}
        for s in (first, second)
    )
    return whole and edges == [(0, middle), (middle, n)]


def _rotated(low: Lowering, x: Value, cos: Value, sin: Value, near: bool) -> Node:
    """x · (cos, cos) + swapped x · (-sin, sin), of rows of all pairs."""
    half = cos.shape[-1]
    rows = x.shape[:-2] if near else x.shape[:-1]
    both = low.shared(("rotation", cos, sin, near), lambda: _angles(low, cos, sin, near))
    node = reshaped(low.nodes[x], [*rows, 2 * half])
    places = np.arange(2 * half)
    swap = places ^ 1 if near else (places + half) % (2 * half)
    swapped = op.gather(node, op.constant(swap.astype(np.int32)), longs(-1))
    turned = op.add(op.multiply(node, both[0]), op.multiply(swapped, both[1]))
    return reshaped(turned, x.shape)


def _angles(low: Lowering, cos: Value, sin: Value, near: bool) -> tuple[Node, Node]:
    made = []
    for value, one, other in ((cos, 1.0, 1.0), (sin, -1.0, 1.0)):
        node = low.nodes[value]
        if near:
            column = reshaped(node, [*value.shape, 1])
            pair = op.concat([op.multiply(column, real(one)), op.multiply(column, real(other))], -1)
        else:
            pair = op.concat([op.multiply(node, real(one)), op.multiply(node, real(other))], -1)
        made.append(reshaped(pair, [*value.shape[:-1], 2 * value.shape[-1]]))
    return made[0], made[1]


_MATCHERS = {"mul": _norm, "div": _gate, "concat": _rotation}
