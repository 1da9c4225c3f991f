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
from types import MappingProxyType

import numpy as np

from poot_eval.error_products import indexed_matmul, matmul, sum_terms
from poot_eval.error_steps import Array, Errors, Rule, Step, U, narrowed, ulp
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, TensorType
from poot_executor.graph.ops import OPS
from poot_executor.graph.rules import erf


def _rounded(step: Step, carried: Errors, ulps: float = 0.5) -> Errors:
    """`carried` and the roundings of both sides, where the device is within `ulps` of exact."""
    exact = (carried == 0) & (ulps <= 0.5)
    single = carried + (ulps + 0.5) * ulp(step.size + carried)
    return narrowed(step, np.where(exact, 0.0, single))


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
    # Factors in another order: who multiplies x·a·b as x·(a·b) rounds as often, but other numbers.
    reordered = carried + 2 * U * step.size if step.caps.contracts and step.feeds_product else 0.0
    return np.maximum(_contracted(step, _rounded(step, carried)), reordered)


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
        "select": _select, "sum": sum_terms, "reduce_max": _reduce_max, "argmax": _argmax,
        "arg_top_k": _arg_top_k, "matmul": matmul, "indexed_matmul": indexed_matmul,
        **dict.fromkeys(("reshape", "transpose", "broadcast", "slice", "concat", "pad"), _moved),
        **dict.fromkeys(("gather", "scatter_update", "dynamic_update_slice"), _indexed_move),
        **dict.fromkeys(("iota", "packed_dequant", "random_bits"), _nothing),
    }
)  # fmt: skip
"""A rule for each primitive but `sample_token`, whose is in `sampling_bounds`."""
