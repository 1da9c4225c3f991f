"""Float arithmetic of one precision or another: everything here is IEEE, rounded once.

Fused operations are exact before they round. In float64 numpy has no fused multiply-add, so single
elements go through fractions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.rules import Rule, rule
from poot_eval.kernel_values import fma as fma32

Array = NDArray[Any]


def round_to_odd_sum(a: Array, b: Array) -> Array:
    """a + b of float64 rounded to odd: rounding that to a narrower type is rounding the exact sum
    (Boldo and Melquiond, 2008)."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    outward = np.signbit(error) == np.signbit(total)
    return np.where(inexact, bits + np.where(outward, 1, -1), bits).view(np.float64)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """a·b + c of float16 rounded once: the product is exact in float64."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return round_to_odd_sum(*np.broadcast_arrays(product, c.astype(np.float64))).astype(np.float16)


def _fma64(a: float, b: float, c: float, power: int) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = (Fraction(a) * Fraction(b) + Fraction(c)) * Fraction(2) ** int(power)
    if exact == 0:
        return a * b + c
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_fma64_each = np.frompyfunc(_fma64, 4, 1)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a·b + c of float64 rounded once, element by element."""
    return scaled_fma64(a, b, c, np.int64(0))


def scaled_fma64(a: Array, b: Array, c: Array, power: Any) -> Array:
    """(a·b + c) · 2^power of float64 rounded once."""
    return np.asarray(_fma64_each(a, b, c, power), np.float64)


def scaled_fma32(a: Array, b: Array, c: Array, power: Any) -> Array:
    """(a·b + c) · 2^power of float32 rounded once, for powers that float64 has room for."""
    product = a.astype(np.float64) * b.astype(np.float64)
    total = round_to_odd_sum(*np.broadcast_arrays(product, c.astype(np.float64)))
    return np.ldexp(total, power).astype(np.float32)


def maximum(a: Array, b: Array) -> Array:
    """The larger number: a NaN loses, and +0 is larger than -0."""
    larger = (a > b) | ((a == b) & ~np.signbit(a)) | np.isnan(b)
    return np.where(larger & ~np.isnan(a) | (np.isnan(a) & np.isnan(b)), a, b)


def minimum(a: Array, b: Array) -> Array:
    """The smaller number: a NaN loses, and -0 is smaller than +0."""
    smaller = (a < b) | ((a == b) & np.signbit(a)) | np.isnan(b)
    return np.where(smaller & ~np.isnan(a) | (np.isnan(a) & np.isnan(b)), a, b)


def median(a: Array, b: Array, c: Array) -> Array:
    """The middle one of three; with a NaN the smallest of the others."""
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    return np.where(nan, minimum(minimum(a, b), c), middle)


def fract(x: Array) -> Array:
    """x less its floor, kept below 1."""
    kind = x.dtype.type
    return np.minimum(x - np.floor(x), np.nextafter(kind(1), kind(0)))


def ldexp(x: Array, exponent: Array) -> Array:
    """x · 2^exponent, rounded once."""
    return np.ldexp(x, np.clip(exponent.astype(np.int32), -5000, 5000)).astype(x.dtype)


def frexp_mantissa(x: Array) -> Array:
    """The mantissa, of magnitude in [0.5, 1); infinities and NaN as they are."""
    return np.where(np.isfinite(x), np.frexp(x)[0], x).astype(x.dtype)


def frexp_exponent(x: Array) -> Array:
    """The exponent that goes with the mantissa; 0 for zero, infinities and NaN."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int32)


def _legacy_multiply(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def _legacy_fma(a: Array, b: Array, c: Array) -> Array:
    return np.where((a == 0) | (b == 0), c + np.float32(0), fma32(a, b, c))


def _of_type(t: str, fma: Any) -> dict[str, Rule]:
    two, three = f"{t} {t} {t}", f"{t} {t} {t} {t}"
    entries = {
        "add": rule(two, np.add), "sub": rule(two, np.subtract), "subrev": rule(two, lambda a, b: b - a),
        "mul": rule(two, np.multiply), "fma": rule(three, fma), "fmac": rule(f"{t} {t} {t} +{t}", fma),
        "fmamk": rule(three, fma), "fmaak": rule(three, fma),
        "max": rule(two, maximum), "min": rule(two, minimum), "med3": rule(three, median),
        "max3": rule(three, lambda a, b, c: maximum(maximum(a, b), c)),
        "min3": rule(three, lambda a, b, c: minimum(minimum(a, b), c)),
        "maxmin": rule(three, lambda a, b, c: minimum(maximum(a, b), c)),
        "minmax": rule(three, lambda a, b, c: maximum(minimum(a, b), c)),
        "floor": rule(f"{t} {t}", np.floor), "ceil": rule(f"{t} {t}", np.ceil), "trunc": rule(f"{t} {t}", np.trunc),
        "rndne": rule(f"{t} {t}", np.rint), "fract": rule(f"{t} {t}", fract),
        "ldexp": rule(f"{t} {t} {'i16' if t == 'f16' else 'i32'}", ldexp),
        "frexp_mant": rule(f"{t} {t}", frexp_mantissa),
    }  # fmt: skip
    return {f"v_{name}_{t}": entry for name, entry in entries.items()}


FLOATS: dict[str, Rule] = {
    **_of_type("f32", fma32),
    **_of_type("f16", fma16),
    **_of_type("f64", fma64),
    "v_mul_legacy_f32": rule("f32 f32 f32", _legacy_multiply),
    "v_mul_dx9_zero_f32": rule("f32 f32 f32", _legacy_multiply),
    "v_fma_dx9_zero_f32": rule("f32 f32 f32 f32", _legacy_fma),
    "v_fmac_dx9_zero_f32": rule("f32 f32 f32 +f32", _legacy_fma),
    "v_frexp_exp_i32_f32": rule("i32 f32", frexp_exponent),
    "v_frexp_exp_i32_f64": rule("i32 f64", frexp_exponent),
    "v_frexp_exp_i16_f16": rule("i16 f16", lambda x: frexp_exponent(x).astype(np.int16)),
}
"""Rules by mnemonic."""
