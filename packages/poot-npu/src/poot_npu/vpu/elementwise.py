"""Rows of elementwise operations."""

from __future__ import annotations

from collections.abc import Callable
from math import exp as power_of
from math import factorial, pi, sqrt

import openvino
from openvino import opset15 as op

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_executor.weights import WeightKey
from poot_npu.vpu.lowering import Build, Lowering
from poot_npu.vpu.nodes import (
    Node,
    absolute,
    bit_select,
    halves,
    integer,
    logical_shift_right,
    narrowed,
    ordered,
    real,
    reshaped,
)

LINEAR = frozenset(("add", "sub", "mul"))
ERF_TERMS = 11
FAR = 46.0
"""Beyond it, on either side, e to the x is the plug-in's e to the x ∓ FAR times e to the ±FAR. A float32 from FAR to
2 · FAR less FAR is exact, and e to the ±46 is within 0.2 roundings of a float32."""


def arithmetic(function: Callable[..., Node]) -> Build:
    """An operation on floats, rounded to their dtype, or on integers, which wrap."""

    def build(lowering: Lowering, equation: Equation) -> Node:
        return narrowed(function(*lowering.operands(equation)), equation.output.dtype)

    return build


def linear(function: Callable[..., Node]) -> Build:
    """A sum, difference or product. Of two in turn with constants OpenVINO makes one, as of (x + a) · b the sum
    x · b + a · b, which is rounded otherwise: a change of shape between them keeps them apart."""

    def build(lowering: Lowering, equation: Equation) -> Node:
        out, operands = equation.output, lowering.operands(equation)
        if not out.dtype.is_float or not _second_of_two(lowering.graph, equation):
            return narrowed(function(*operands), out.dtype)
        other = [out.type.count] if len(out.shape) != 1 else [out.type.count, 1]
        result = function(*(reshaped(x, other) for x in operands))
        return narrowed(reshaped(result, out.shape), out.dtype)

    return build


def _second_of_two(graph: Graph, equation: Equation) -> bool:
    """Whether both an equation and one that it takes combine a value with a constant."""
    for x, other in (equation.inputs, equation.inputs[::-1]):
        before = graph.equation(x)
        if before is not None and before.op in LINEAR and _constant(graph, other):
            return any(_constant(graph, value) for value in before.inputs)
    return False


def _constant(graph: Graph, value: Value) -> bool:
    found = graph.definition(value)
    while isinstance(found, Equation) and found.op in ("broadcast", "reshape"):
        found = graph.definition(found.inputs[0])
    return isinstance(found, Input) and (found.data is not None or isinstance(found.key, WeightKey))


def bitwise(on_bits: Callable[..., Node], on_bool: Callable[..., Node]) -> Build:
    """An operation on bits, logical on bool."""

    def build(lowering: Lowering, equation: Equation) -> Node:
        function = on_bool if equation.output.dtype is DType.BOOL else on_bits
        return function(*lowering.repeating(equation))

    return build


def comparison(function: Callable[..., Node], lower: Callable[..., Node] | None) -> Build:
    """A comparison. Integers that are not known to be small are compared by halves: the higher ones decide by
    `lower` (less or greater), and where those are equal `function` of the lower ones does. Without it: equality."""

    def build(lowering: Lowering, equation: Equation) -> Node:
        a, b = lowering.repeating(equation)
        left, right = equation.inputs
        if left.dtype.is_float or lowering.small(left) or lowering.small(right):
            return function(a, b)
        (high_a, low_a), (high_b, low_b) = (halves(ordered(x, left.dtype)) for x in (a, b))
        same = op.equal(high_a, high_b)
        if lower is None:
            return op.logical_and(same, function(low_a, low_b))
        return op.logical_or(lower(high_a, high_b), op.logical_and(same, function(low_a, low_b)))

    return build


def unequal(lowering: Lowering, equation: Equation) -> Node:
    """Not equal: NaN differs from everything."""
    left, right = equation.inputs
    if left.dtype.is_float or lowering.small(left) or lowering.small(right):
        return op.not_equal(*lowering.repeating(equation))
    return op.logical_not(comparison(op.equal, None)(lowering, equation))


def extreme(function: Callable[..., Node]) -> Build:
    """max or min; of u32 by the order of their bits."""

    def build(lowering: Lowering, equation: Equation) -> Node:
        a, b = lowering.operands(equation)
        if equation.output.dtype is DType.U32:
            return ordered(function(ordered(a, DType.U32), ordered(b, DType.U32)), DType.U32)
        return function(a, b)

    return build


def shift(to_left: bool) -> Build:
    """By the low 5 bits of b."""

    def build(lowering: Lowering, equation: Equation) -> Node:
        a, b = lowering.repeating(equation)
        count = op.bitwise_and(b, integer(31))
        if to_left:
            return op.bitwise_left_shift(a, count)
        if equation.output.dtype is DType.U32:
            return logical_shift_right(a, count)
        return op.bitwise_right_shift(a, count)

    return build


def select(lowering: Lowering, equation: Equation) -> Node:
    """Bits of one or the other."""
    condition, a, b = lowering.repeating(equation)
    dtype = equation.output.dtype
    if dtype is DType.BOOL:
        return op.logical_or(op.logical_and(condition, a), op.logical_and(op.logical_not(condition), b))
    if dtype.is_float or lowering.small(*equation.inputs[1:]):
        return op.select(condition, a, b)
    return bit_select(condition, a, b)


def cast(lowering: Lowering, equation: Equation) -> Node:
    """Number conversion: floats round to nearest even, to integers they truncate; integers wrap; to bool x != 0."""
    (x,) = lowering.operands(equation)
    source, target = equation.inputs[0].dtype, equation.output.dtype
    if target is DType.BOOL:
        return x if source is DType.BOOL else _nonzero(x, source)
    if source is DType.BOOL:
        # A choice is computed with the comparison before it, a conversion in a pass of its own.
        one, zero = (real(1.0), real(0.0)) if target.is_float else (integer(1), integer(0))
        return op.select(x, one, zero)
    if target.is_float:
        wide = x if source.is_float else _to_float(x, source)
        return narrowed(wide, target) if target is not source else wide
    whole = _to_whole(x, target) if source.is_float else x
    return wrapped(whole, target)


def _nonzero(x: Node, source: DType) -> Node:
    if source.is_float:
        return op.not_equal(x, real(0.0))
    high, low = halves(x)
    return op.logical_or(op.not_equal(high, integer(0)), op.not_equal(low, integer(0)))


def _to_float(x: Node, source: DType) -> Node:
    """One rounding: both halves and their scaling are exact."""
    if source is not DType.U32:
        return op.convert(x, openvino.Type.f32)
    high, low = logical_shift_right(x, integer(16)), op.bitwise_and(x, integer(0xFFFF))
    scaled = op.multiply(op.convert(high, openvino.Type.f32), real(65536.0))
    return op.add(scaled, op.convert(low, openvino.Type.f32))


def _to_whole(x: Node, target: DType) -> Node:
    whole = op.convert(x, openvino.Type.i32)
    if target is not DType.U32:
        return whole
    upper = op.bitwise_xor(op.convert(op.subtract(x, real(2.0**31)), openvino.Type.i32), integer(-(1 << 31)))
    return bit_select(op.greater_equal(x, real(2.0**31)), upper, whole)


def wrapped(x: Node, dtype: DType) -> Node:
    """An i32 modulo the range of an 8-bit integer; others as they are."""
    if dtype is DType.U8:
        return op.bitwise_and(x, integer(255))
    if dtype is DType.I8:
        return op.bitwise_right_shift(op.bitwise_left_shift(x, integer(24)), integer(24))
    return x


def same_bits(lowering: Lowering, equation: Equation) -> Node:
    """A bitcast between integers. Any other needs memory between, and is none of a model's."""
    (x,) = lowering.operands(equation)
    return wrapped(x, equation.output.dtype)


def exp(x: Node, upper: bool = True) -> Node:
    """e to the x. The plug-in's own is 0 below the normal numbers, infinite from 2 to the 127.5 on and at NaN, and its
    error grows with |x|: 5.3 units in the last place at 88. This was within 4.3 on millions of x over the range.
    `upper` is False where no x is above FAR."""
    down = op.less(x, real(-FAR))
    within = op.select(down, op.add(x, real(FAR)), x)
    shifted = growth(within) if upper else op.exp(within)
    power = op.multiply(shifted, op.select(down, real(power_of(-FAR)), real(1.0)))
    return op.select(op.equal(x, x), power, x)


def growth(x: Node) -> Node:
    """e to the x up to the greatest float32, from -FAR on as exact as `exp`; 0 below the normal numbers, infinity of
    NaN."""
    up = op.greater(x, real(FAR))
    shifted = op.exp(op.select(up, op.subtract(x, real(FAR)), x))
    return op.multiply(shifted, op.select(up, real(power_of(FAR)), real(1.0)))


def erf(x: Node) -> Node:
    """The error function: near 0 by its series, where the plug-in is exact to 1e-7 alone and not to float32."""
    square, total = op.multiply(x, x), None
    for n in range(ERF_TERMS, -1, -1):
        term = real(2 / sqrt(pi) * (-1) ** n / (factorial(n) * (2 * n + 1)))
        total = term if total is None else op.add(op.multiply(total, square), term)
    return op.select(op.less(square, real(1.0)), op.multiply(x, total), op.erf(x))


def is_not_a_number(x: Node) -> Node:
    """True where x is NaN."""
    return op.not_equal(x, x)


def is_no_number_below_infinity(x: Node) -> Node:
    """True where x is NaN or infinity."""
    return op.logical_not(op.less(x, real(float("inf"))))


def equals_number(x: Node, number: float) -> Node:
    """True where x is that number."""
    return op.equal(x, real(number))


ROWS: dict[str, Build] = {
    "neg": arithmetic(op.negative), "abs": arithmetic(absolute), "exp": arithmetic(exp), "log": arithmetic(op.log),
    "sqrt": arithmetic(op.sqrt), "recip": arithmetic(lambda x: op.divide(real(1.0), x)),
    "tanh": arithmetic(op.tanh), "erf": arithmetic(erf), "sin": arithmetic(op.sin), "cos": arithmetic(op.cos),
    "floor": arithmetic(op.floor), "round": arithmetic(lambda x: op.round(x, "half_to_even")),
    "not": bitwise(op.bitwise_not, op.logical_not),
    "add": linear(op.add), "sub": linear(op.subtract), "mul": linear(op.multiply),
    "div": arithmetic(op.divide), "pow": arithmetic(op.power),
    "max": extreme(op.maximum), "min": extreme(op.minimum),
    "and": bitwise(op.bitwise_and, op.logical_and), "or": bitwise(op.bitwise_or, op.logical_or),
    "xor": bitwise(op.bitwise_xor, op.logical_xor), "shl": shift(True), "shr": shift(False),
    "eq": comparison(op.equal, None), "ne": unequal,
    "lt": comparison(op.less, op.less), "le": comparison(op.less_equal, op.less),
    "gt": comparison(op.greater, op.greater), "ge": comparison(op.greater_equal, op.greater),
    "select": select, "cast": cast, "bitcast": same_bits,
}  # fmt: skip
