"""What each elementwise operation of the kernel IR computes, in numpy.

A value of T threads in G groups is an array [G, T], or [G, T, width] for a vector; an axis of
length 1 stands for values that are equal along it. Floats are float32 and rounded once:
transcendentals are computed in float64. What the operation table leaves open (division by zero, a
cast out of range) gives a pattern that shows, so that no kernel can rely on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType
from poot_executor.kernel.ir import KType

Array = NDArray[Any]

POISON_BITS = 0x7FD5A5A5
"""The pattern of what is undefined: a NaN as f32, a large number (and so an index out of range) as
an integer."""


def poison(dtype: DType) -> Array:
    """The undefined value of a dtype, as an array of shape [1, 1]."""
    if dtype is DType.BOOL:
        return np.ones((1, 1), np.bool_)
    return np.full((1, 1), POISON_BITS, np.uint32).view(dtype.numpy)


def _wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function computed in float64, its result rounded to float32."""

    def rule(*operands: Array) -> Array:
        return function(*(x.astype(np.float64) for x in operands)).astype(np.float32)

    return rule


_erf_each = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_erf_each(x), np.float64)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a·b + c rounded once to float32. The product is exact in float64; only a sum that lies on a
    float32 tie, or is denormal, can be rounded wrongly in two steps, and there the sum is first
    rounded to odd (Boldo and Melquiond, 2008)."""
    product = a.astype(np.float64) * b
    total = product + c
    bits = total.view(np.uint64)
    doubtful = (bits & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    doubtful |= np.abs(total) < np.float64(2.0**-125)
    if doubtful.any():
        wide_c = np.broadcast_to(c.astype(np.float64), total.shape)
        # Knuth's two-sum: the exact error of the float64 sum.
        back = total - product
        error = (product - (total - back)) + (wide_c - back)
        inexact = doubtful & (error != 0) & np.isfinite(total) & ((bits & np.uint64(1)) == 0)
        outward = np.signbit(error) == np.signbit(total)
        nudge = np.where(outward, np.int64(1), np.int64(-1))
        total = np.where(inexact, total.view(np.int64) + nudge, total.view(np.int64)).view(np.float64)
    return total.astype(np.float32)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype == np.float32:
        return a / b
    # A float64 quotient of 32-bit integers never rounds to an integer that it is not.
    quotient = np.trunc(np.divide(a, b, dtype=np.float64)).astype(np.int64).astype(a.dtype)
    return quotient if b.all() else np.where(b == 0, poison(_held(a)), quotient)


def _remainder(a: Array, b: Array) -> Array:
    quotient = np.trunc(np.divide(a, b, dtype=np.float64)).astype(np.int64).astype(a.dtype)
    rest = a - quotient * b
    return rest if b.all() else np.where(b == 0, poison(_held(a)), rest)


def _held(x: Array) -> DType:
    return {"f": DType.F32, "i": DType.I32, "u": DType.U32, "b": DType.BOOL}[x.dtype.kind]


def _count(b: Array) -> Array:
    return b & b.dtype.type(31)


def _mulhi(a: Array, b: Array) -> Array:
    return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _select(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition[..., None] if a.ndim > condition.ndim else condition, a, b)


def _half_to_float(x: Array) -> Array:
    return x.astype(np.uint16).view(np.float16).astype(np.float32)


def _float_to_half(x: Array) -> Array:
    return x.astype(np.float16).view(np.uint16).astype(np.uint32)


def _dot4(a: Array, b: Array, c: Array) -> Array:
    """Signed bytes of two words, multiplied and summed."""
    total = c
    for shift in (0, 8, 16, 24):
        left, right = ((x >> np.uint32(shift)).astype(np.uint8).view(np.int8) for x in (a, b))
        total = total + left.astype(np.int32) * right.astype(np.int32)
    return total


def cast(x: Array, result: DType) -> Array:
    """Number conversion of the operation table; f32 to an integer out of its range (or NaN) is
    poison."""
    if result is DType.BOOL:
        return x != 0
    if x.dtype != np.float32 or result is DType.F32:
        return x.astype(result.numpy)
    whole = np.trunc(x.astype(np.float64))
    limits = np.iinfo(result.numpy)
    fits = (whole >= limits.min) & (whole <= limits.max)
    converted = np.where(fits, whole, 0).astype(result.numpy)
    return converted if fits.all() else np.where(fits, converted, poison(result))


RULES: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "neg": np.negative, "abs": np.abs, "not": np.invert,
        "exp": _wide(np.exp), "log": _wide(np.log), "sqrt": np.sqrt,
        "rsqrt": _wide(lambda x: 1.0 / np.sqrt(x)),
        "sin": _wide(np.sin), "cos": _wide(np.cos), "tanh": _wide(np.tanh), "erf": _wide(_erf),
        "floor": np.floor, "round": np.rint, "pow": _wide(np.power),
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": _remainder,
        "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "shl": lambda a, b: np.left_shift(a, _count(b)),
        "shr": lambda a, b: np.right_shift(a, _count(b)),
        "mulhi": _mulhi, "fma": fma, "select": _select,
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
        "ge": np.greater_equal,
        "half_to_float": _half_to_float, "float_to_half": _float_to_half, "dot4": _dot4,
        "vector": lambda *lanes: np.stack(np.broadcast_arrays(*lanes), axis=-1),
    }
)  # fmt: skip
"""Operations that need their operands alone. What also needs the result's type or attributes is in
`evaluate`."""


def evaluate(kind: str, operands: list[Array], attrs: Mapping[str, Any], result: KType) -> Array | None:
    """The result of an elementwise operation; None where `kind` is not one."""
    rule = RULES.get(kind)
    if rule is not None:
        return rule(*operands)
    match kind:
        case "const":
            return np.full((1, 1), attrs["value"], result.dtype.numpy)
        case "cast":
            return cast(operands[0], result.dtype)
        case "bitcast":
            return operands[0].view(result.dtype.numpy)
        case "extract":
            return operands[0][..., attrs["lane"]]
    return None
