"""How far a device's float32 may be from the oracle's value: first-order error, operation by
operation.

Every value has an error array: |device - oracle| is at most that, element by element. Both sides
round, so an operation on inexact operands adds two roundings; a correctly rounded one on exact
operands adds none. Infinity says that the inputs do not decide the element (two nearly equal
operands of a comparison, an index that may differ). Sources: Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 3.1 (sums and products in any order).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, TensorType
from poot_executor.graph.ops import OPS
from poot_executor.graph.rules import erf

Array = NDArray[Any]
Errors = NDArray[np.float64]

U = 2.0**-24
"""Unit roundoff of float32."""

TINY = 2.0**-126
"""The smallest normal float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """An operand as the oracle has it, its error, and what its size is in a sum: at least |value|,
    more for a decoded weight that the device may sum as scale and minimum apart."""

    value: Array
    error: Errors
    size: Errors

    @property
    def wide(self) -> Errors:
        """The value in float64."""
        return self.value.astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One equation of the walk: its operands, the oracle's result, and the target.

    `feeds_sum`: an add or sub reads it, with movement between or none. `of_softmax`: a matmul whose
    left operand is a softmax, which a device may compute as it goes, rescaling what it has summed.
    `rounded`: the dtype that this softmax is rounded to before.
    """

    equation: Equation
    operands: tuple[Operand, ...]
    result: Array
    caps: Caps
    feeds_sum: bool = False
    of_softmax: bool = False
    rounded: DType | None = None

    @property
    def values(self) -> tuple[Errors, ...]:
        """Operands in float64."""
        return tuple(o.wide for o in self.operands)

    @property
    def errors(self) -> tuple[Errors, ...]:
        """Errors of the operands."""
        return tuple(o.error for o in self.operands)

    @property
    def size(self) -> Errors:
        """|result| in float64; 0 where it is not finite."""
        size = np.abs(self.result.astype(np.float64))
        return np.where(np.isfinite(size), size, 0.0)


Rule = Callable[[Step], Errors]


def gamma(n: int) -> float:
    """The relative error of n roundings."""
    assert n * U < 1, f"{n} roundings of float32 say nothing"
    return n * U / (1 - n * U)


def ulp(size: Errors) -> Errors:
    """The distance of float32 numbers around `size`."""
    with np.errstate(over="ignore"):
        return np.spacing(np.minimum(size, 3e38).astype(np.float32)).astype(np.float64)


def _rounded(step: Step, carried: Errors, ulps: float = 0.5) -> Errors:
    """`carried` and the roundings of both sides, where the device is within `ulps` of exact."""
    exact = (carried == 0) & (ulps <= 0.5)
    single = carried + (ulps + 0.5) * ulp(step.size + carried)
    return _narrowed(step, np.where(exact, 0.0, single))


def _narrowed(step: Step, single: Errors) -> Errors:
    """The error after rounding to a narrower dtype, which moves what is inexact by one more
    step."""
    dtype = step.equation.output.dtype
    if dtype not in (DType.F16, DType.BF16):
        return single
    bits = 10 if dtype is DType.F16 else 7
    reach = np.maximum(step.size + single, 2.0**-14 if dtype is DType.F16 else TINY)
    spacing = 2.0 ** (np.floor(np.log2(np.where(np.isfinite(reach), reach, 1.0))) - bits)
    return np.where(single == 0, 0.0, single + spacing)


def _linear(weights: Callable[..., Errors], ulps: str = "") -> Rule:
    """A rule from the error that reaches the result through exact arithmetic."""

    def rule(step: Step) -> Errors:
        carried = weights(*step.values, *step.errors)
        if not step.equation.output.dtype.is_float:
            return carried
        return _rounded(step, carried, step.caps.errors.get(ulps, 0.5))

    return rule


def _mul(step: Step) -> Errors:
    (a, b), (ea, eb) = step.values, step.errors
    carried = np.abs(a) * eb + np.abs(b) * ea + ea * eb
    if not step.equation.output.dtype.is_float:
        return carried
    return _contracted(step, _rounded(step, carried))


def _sum_of_two(step: Step) -> Errors:
    carried = np.add(*step.errors)
    return _contracted(step, _rounded(step, carried)) if step.equation.output.dtype.is_float else carried


def _contracted(step: Step, error: Errors) -> Errors:
    """A target that contracts by itself leaves out the rounding of a product or sum that feeds a sum: it fuses
    a·b + c, and takes (a + b) − a for b.
    """
    left_out = step.caps.contracts and step.feeds_sum
    return np.maximum(error, U * step.size) if left_out else error


def _quotient(a: Errors, b: Errors, ea: Errors, eb: Errors) -> Errors:
    room = np.abs(b) - eb
    moved = (ea + np.abs(a / b) * eb) / np.where(room > 0, room, 1.0)
    return np.where((ea == 0) & (eb == 0), 0.0, np.where(room > 0, moved, np.inf))


def _div(step: Step) -> Errors:
    if not step.equation.output.dtype.is_float:
        return _all_or_nothing(step)
    return _linear(_quotient, "div")(step)


def _monotone(function: Callable[[Errors], Errors], name: str) -> Rule:
    """A monotone function: its error is the larger move at the ends of the operand's interval."""

    def rule(step: Step) -> Errors:
        ((x,), (e,)) = step.values, step.errors
        middle = function(x)
        moved = np.maximum(np.abs(function(x + e) - middle), np.abs(function(x - e) - middle))
        carried = np.where(e == 0, 0.0, np.where(np.isnan(moved), np.inf, moved))
        return _rounded(step, carried, step.caps.errors.get(name, 0.5))

    return rule


def _pow(step: Step) -> Errors:
    (a, b), (ea, eb) = step.values, step.errors
    middle = np.power(a, b)
    corners = [np.abs(np.power(np.maximum(a + s * ea, 0), b + t * eb) - middle) for s in (-1, 1) for t in (-1, 1)]
    moved = np.where((ea == 0) & (eb == 0), 0.0, np.max(corners, axis=0))
    return _rounded(step, np.where(np.isnan(moved), np.inf, moved), step.caps.errors.get("pow", 2))


def _wave(name: str) -> Rule:
    """sin and cos: their slope is at most 1."""

    def rule(step: Step) -> Errors:
        return _rounded(step, np.minimum(step.errors[0], 2.0), step.caps.errors.get(name, 0.5))

    return rule


def _steps(step: Step) -> Errors:
    """floor, round and cast: monotone with jumps, so evaluated at the ends of the interval."""
    (x,), (e,) = (o.value for o in step.operands), step.errors
    row, out = OPS[step.equation.op], step.equation.output.type
    middle = step.result.astype(np.float64)
    if out.dtype is DType.BOOL:
        near_zero = (np.abs(x.astype(np.float64)) <= e) & (e > 0)
        return near_zero.astype(np.float64)
    moved = np.zeros(middle.shape)
    for sign in (-1.0, 1.0):
        held = _outward(x.astype(np.float64) + sign * e, sign, x.dtype)
        value = row.evaluate([held], step.equation.params, out).astype(np.float64)
        moved = np.maximum(moved, np.where(e == 0, 0.0, np.abs(value - middle)))
    return moved


def _outward(end: Errors, sign: float, dtype: np.dtype) -> Array:
    """The end of an interval as the operand's dtype holds it, no nearer than it is."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.clip(np.rint(end), info.min, info.max).astype(dtype)
    held = end.astype(dtype)
    inward = (held.astype(np.float64) - end) * sign < 0
    return np.where(inward, np.nextafter(held, dtype.type(sign * np.inf)), held) if dtype.kind == "f" else held


def _comparison(step: Step) -> Errors:
    (a, b), (ea, eb) = step.values, step.errors
    close = (np.abs(a - b) <= ea + eb) & (ea + eb > 0)
    return close.astype(np.float64)


def _select(step: Step) -> Errors:
    condition, a, b = step.operands
    own = np.where(condition.value, a.error, b.error)
    with np.errstate(invalid="ignore"):
        either = np.abs(a.wide - b.wide) + np.maximum(a.error, b.error)
    return np.where(condition.error > 0, np.where(np.isnan(either), np.inf, either), own)


def _all_or_nothing(step: Step) -> Errors:
    """Bits: exact from exact operands, else undecided."""
    inexact = np.zeros(step.result.shape, np.bool_)
    for error in step.errors:
        inexact |= error > 0
    return np.where(inexact, 1.0 if step.result.dtype == np.bool_ else np.inf, 0.0)


ONLINE_TILE = 32
"""The fewest positions that flash attention takes at a time: so many rescalings a row at most."""


def product_error(a: Operand, b: Operand, size: Errors, more: float = 0.0) -> Errors:
    """The error of a[..., m, k] @ b[..., k, n] in float32, in any order and grouping.

    Each term meets at most k + 3 roundings: its product, k - 1 sums, and in a packed format its
    block's scale, the decoded weight's own, and the sum over blocks. `more` is a further relative
    error of each term.
    """
    k = a.value.shape[-1]
    terms = (a.size + a.error) @ (b.size + b.error)
    carried = np.abs(a.wide) @ b.error + a.error @ (np.abs(b.wide) + b.error)
    return (gamma(k + 3) + more) * terms + carried + U * size


def _matmul(step: Step) -> Errors:
    a, b = step.operands
    more = 0.0
    if step.of_softmax:
        # Each rescaling is one exp and one product, alike for a row's sum and its values: twice in a quotient. A sink
        # is one more.
        tiles = -(-a.value.shape[-1] // ONLINE_TILE) + 1
        a = _rounded_early(a, step.rounded)
        more = tiles * 2 * (2 * step.caps.errors.get("exp", 0.5) + 1) * U
    return product_error(a, b, step.size, more)


def _rounded_early(weights: Operand, dtype: DType | None) -> Operand:
    """A softmax that is rounded: who sums as it goes rounds a weight before its row's sum is known,
    and divides after.

    exp(x - m) rounded is off by its share of a unit roundoff, whatever it is scaled by and divided
    by later, and in f16 by no more than half of the smallest number, since scales are at most and
    sums at least 1. The oracle's quotient is off by as much from the same number: twice that, apart.
    """
    if dtype not in (DType.F16, DType.BF16):
        return weights
    unit, least = (2.0**-8, 0.0) if dtype is DType.BF16 else (2.0**-11, 2.0**-25)
    return replace(weights, error=weights.error + 2 * (unit * np.abs(weights.wide) + least))


def _indexed_matmul(step: Step) -> Errors:
    x, w, index = step.operands
    error = np.full(step.result.shape, np.inf)
    for row, expert in enumerate(index.value):
        if index.error[row] == 0:
            left = Operand(x.value[row : row + 1], x.error[row : row + 1], x.size[row : row + 1])
            right = Operand(w.value[expert], w.error[expert], w.size[expert])
            piece = slice(row, row + 1)
            error[piece] = product_error(left, right, step.size[piece])
    return error


def _sum(step: Step) -> Errors:
    (x,), axis = step.operands, step.equation.params["axis"]
    carried = x.error.sum(axis=axis)
    if not step.equation.output.dtype.is_float:
        return carried
    n = x.value.shape[axis]
    terms = (np.abs(x.wide) + x.error).sum(axis=axis)
    rounding = gamma(n - 1) * terms + U * step.size if n > 1 else 0.0
    return _narrowed(step, carried + rounding)


def _reduce_max(step: Step) -> Errors:
    return step.errors[0].max(axis=step.equation.params["axis"])


def _argmax(step: Step) -> Errors:
    """The furthest index that may win."""
    (x,), axis = step.operands, step.equation.params["axis"]
    low = np.where(np.isnan(x.wide), -np.inf, x.wide - x.error)
    may_win = x.wide + x.error >= low.max(axis=axis, keepdims=True)
    places = np.arange(x.value.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.value.ndim)])
    apart = np.abs(places - np.expand_dims(step.result, axis))
    furthest = np.where(may_win, apart, 0).max(axis=axis).astype(np.float64)
    return np.where((x.error == 0).all(axis=axis), 0.0, furthest)


def _arg_top_k(step: Step) -> Errors:
    """A place is decided where its value is further from its neighbours in order than they may
    move."""
    (x,) = step.operands
    k = step.equation.params["k"]
    falling = -np.sort(-x.wide, axis=-1)
    reach = 2 * x.error.max(axis=-1, keepdims=True)
    gap = falling[..., :-1] - falling[..., 1:] > reach
    edge = np.ones((*falling.shape[:-1], 1), np.bool_)
    after, before = np.concatenate([gap, edge], -1), np.concatenate([edge, gap], -1)
    decided = (after & before)[..., :k] | (reach == 0)
    return np.where(decided, 0.0, np.inf)


def _moved(step: Step) -> Errors:
    """Movement: the operation's own rule, on errors."""
    if step.equation.op == "pad":
        widths = list(zip(step.equation.params["low"], step.equation.params["high"], strict=True))
        return np.pad(step.errors[0], widths) if widths else step.errors[0]
    return move(step.equation, step.errors)


def move(equation: Equation, arrays: tuple[Errors, ...]) -> Errors:
    """A movement's rule on other arrays of the same shapes."""
    out = TensorType(equation.output.shape, DType.F32)
    return OPS[equation.op].evaluate(list(arrays), equation.params, out)


def _indexed_move(step: Step) -> Errors:
    """gather, scatter_update, dynamic_update_slice: the rule on errors, if the index is exact."""
    place = 2 if step.equation.op == "dynamic_update_slice" else 1
    if (step.operands[place].error > 0).any():
        return np.full(step.result.shape, np.inf)
    arrays = [o.error for o in step.operands]
    arrays[place] = step.operands[place].value
    return move(step.equation, tuple(arrays))


def _nothing(step: Step) -> Errors:
    if any((error > 0).any() for error in step.errors):
        return np.full(step.result.shape, np.inf)
    return np.zeros(step.result.shape)


ERROR_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "neg": lambda s: s.errors[0], "abs": lambda s: s.errors[0],
        "exp": _monotone(np.exp, "exp"), "log": _monotone(np.log, "log"),
        "sqrt": _monotone(lambda x: np.sqrt(np.maximum(x, 0)), "sqrt"),
        "recip": _linear(lambda x, e: _quotient(np.ones_like(x), x, np.zeros_like(e), e), "div"),
        "tanh": _monotone(np.tanh, "tanh"), "erf": _monotone(erf, "erf"),
        "sin": _wave("sin"), "cos": _wave("cos"), "pow": _pow,
        "floor": _steps, "round": _steps, "cast": _steps,
        "add": _sum_of_two, "sub": _sum_of_two,
        "mul": _mul, "div": _div, "max": lambda s: np.maximum(*s.errors), "min": lambda s: np.maximum(*s.errors),
        **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _comparison),
        **dict.fromkeys(("not", "and", "or", "xor", "shl", "shr", "rem", "bitcast"), _all_or_nothing),
        "select": _select, "sum": _sum, "reduce_max": _reduce_max, "argmax": _argmax,
        "arg_top_k": _arg_top_k, "matmul": _matmul, "indexed_matmul": _indexed_matmul,
        **dict.fromkeys(("reshape", "transpose", "broadcast", "slice", "concat", "pad"), _moved),
        **dict.fromkeys(("gather", "scatter_update", "dynamic_update_slice"), _indexed_move),
        **dict.fromkeys(("iota", "packed_dequant", "random_bits"), _nothing),
    }
)  # fmt: skip
"""A rule for each primitive but `sample_token`, whose is in `sampling_bounds`."""
