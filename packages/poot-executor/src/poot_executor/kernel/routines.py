"""Operations as routines over simpler ones: elementary functions and half conversions for targets that lack or only
approximate them.

Each takes the builder and its operands, scalars or vectors, and uses only operations that are nearly exact everywhere:
sums, products, quotients, fma, integers, bit casts. Their polynomials are minimax fits on the stated intervals (Lawson
iteration on 4,000 Chebyshev points, weighted to relative error), rounded to f32; each comment says the fit's error.
None needs a fused multiply-add and none is hurt by one, but sums must not be reassociated. `passes.expand` puts them in
the place of the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from poot_executor.dtype import DType
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.operations import Operations

Routine = Callable[..., Handle]
"""`routine(builder, *operands)`: what stands for the operation's result."""

_F32, _I32, _U32 = DType.F32, DType.I32, DType.U32

_LEAST_NORMAL = 1.1754943508222875e-38
_INFINITY = 0x7F800000
_NAN = 0x7FC00000


def _polynomial(b: Operations, x: Handle, *coefficients: float) -> Handle:
    """Horner's scheme, the highest coefficient first."""
    value: Handle | float = coefficients[0]
    for coefficient in coefficients[1:]:
        value = b.fma(value, x, coefficient)
    assert isinstance(value, Handle)
    return value


def _word(b: Operations, like: Handle, value: int) -> Handle:
    """A constant u32, as wide as `like`."""
    return b.widened(b.const(value, _U32), like)[0]


def _bits(b: Operations, like: Handle, word: int) -> Handle:
    """The f32 of a bit pattern, as wide as `like`."""
    return b.bitcast(_word(b, like, word), _F32)


def _is_nan(b: Operations, x: Handle) -> Handle:
    return (b.bitcast(x, _U32) & 0x7FFFFFFF) > _INFINITY


def _scale(b: Operations, x: Handle, n: Handle) -> Handle:
    """x · 2^n in two factors, so that results may be denormal or infinite: |n| ≤ 252."""
    half = n >> 1
    first = b.bitcast((half + 127) << 23, _F32)
    return x * first * b.bitcast((n - half + 127) << 23, _F32)


def _clamped(b: Operations, x: Handle, low: float, high: float) -> Handle:
    return b.min(b.max(x, low), high)


def exp(b: Operations, x: Handle) -> Handle:
    """e^x = 2^n · e^r, n = round(x / ln 2).

    ln 2 in two parts, the first of 10 bits so that n times it is exact. e^r = 1 + r + r²·P(r) on |r| ≤ ln 2 / 2: fit
    error 2^-28.2.
    """
    y = _clamped(b, x, -104.0, 89.0)
    n = b.round(y * 1.442695)
    r = (y - n * 0.693359375) - n * -0.00021219444
    p = _polynomial(b, r, 0.00139506, 0.008368954, 0.041666206, 0.16666518, 0.5)
    value = _scale(b, b.fma(r * r, p, r) + 1.0, b.cast(n, _I32))
    return b.select(_is_nan(b, x), x, value)


def _split(b: Operations, x: Handle) -> tuple[Handle, Handle]:
    """(k, f) with x = 2^k · (1 + f) and 1 + f in [√½, √2), k as f32; x positive and finite, denormals too."""
    tiny = x < _LEAST_NORMAL
    bits = b.bitcast(b.select(tiny, x * 8388608.0, x), _I32)
    shift = (bits - 0x3F3504F3) >> 23
    f = b.bitcast(bits - (shift << 23), _F32) - 1.0
    return b.cast(b.select(tiny, shift - 23, shift), _F32), f


def log(b: Operations, x: Handle) -> Handle:
    """log x = k·ln 2 + log(1 + f).

    With s = f / (2 + f), z = s²: log(1 + f) = 2·atanh(s) = f − s·(f − z·Q(z)), since 2s = f − s·f. Fit error of Q in
    log: 2^-37. ln 2 in two parts, the first of 16 bits so that k times it is exact.
    """
    k, f = _split(b, x)
    s = f / (f + 2.0)
    z = s * s
    q = _polynomial(b, z, 0.23583575, 0.28537238, 0.40000337, 0.6666666)
    value = k * 0.69314575 + (f - (s * (f - z * q) - k * 1.4286068e-6))
    raw = b.bitcast(x, _U32)
    value = b.select(raw == _INFINITY, x, value)
    value = b.select(raw > _INFINITY, _bits(b, x, _NAN), value)  # negative, or NaN
    return b.select(x == 0.0, _bits(b, x, 0xFF800000), value)


def tanh(b: Operations, x: Handle) -> Handle:
    """|x| < 0.625: x + x³·P(x²), fit error 2^-27.9; else 1 − 2 / (e^2|x| + 1), which loses nothing there."""
    a = abs(x)
    z = x * x
    p = _polynomial(b, z, -0.0057170326, 0.020650575, -0.053743493, 0.1333149, -0.33333284)
    small = b.fma(x * z, p, x)
    large = 1.0 - 2.0 / (exp(b, a * 2.0) + 1.0)
    value = b.select(a < 0.625, small, b.select(x < 0.0, -large, large))
    return b.select(_is_nan(b, x), x, value)


def erf(b: Operations, x: Handle) -> Handle:
    """|x| < 1: x + x·P(x²), fit error 2^-29.7; else 1 − e^p, p a fit of log erfc on [1, 4] with error 2^-35 in erf; 1
    beyond.
    """
    a = abs(x)
    z = x * x
    p = _polynomial(
        b, z, 7.88912e-5, -0.0008020842, 0.005189535, -0.026854444, 0.112836, -0.37612626, 0.12837917
    )  # fmt: skip
    small = b.fma(x, p, x)
    q = _polynomial(
        b, b.min(a, 4.0),
        -2.1697706e-5, 0.00044147373, -0.0042052902, 0.025210354, -0.10842212, -0.6332164, -1.1295804, 0.00018846994,
    )  # fmt: skip
    large = 1.0 - exp(b, q)
    value = b.select(a < 1.0, small, b.select(x < 0.0, -large, large))
    return b.select(_is_nan(b, x), x, value)


def _quadrant(b: Operations, x: Handle) -> tuple[Handle, Handle]:
    """r = x − n·π/2 and n: π/2 in six parts, the first five of 8 bits so that their products are exact while n < 2^16,
    |x| ≤ 100,000. Off by at most 1.5 ULP of r, also next to a multiple of π/2.
    """
    n = b.round(x * 0.63661975)
    r = (((x - n * 1.5703125) - n * 0.00048255920) - n * 1.2665987e-6) - n * 9.8953024e-10
    return (r - n * 2.5579538e-12) - n * 5.390303e-15, b.cast(n, _I32)


def _sine(b: Operations, r: Handle, quadrant: Handle) -> Handle:
    """sin r = r + r³·S(r²), cos r = 1 − r²/2 + r⁴·C(r²) on |r| ≤ π/4: fit errors 2^-37 and 2^-33."""
    z = r * r
    s = b.fma(r * z, _polynomial(b, z, 2.7181627e-6, -0.00019839319, 0.008333329, -0.16666667), r)
    c = b.fma(z * z, _polynomial(b, z, 2.4437006e-5, -0.0013887355, 0.041666646), b.fma(z, -0.5, 1.0))
    value = b.select((quadrant & 1) != 0, c, s)
    return b.select((quadrant & 2) != 0, -value, value)


def sin(b: Operations, x: Handle) -> Handle:
    """The sine, for |x| ≤ 100,000."""
    r, n = _quadrant(b, x)
    return _sine(b, r, n)


def cos(b: Operations, x: Handle) -> Handle:
    """The cosine, for |x| ≤ 100,000."""
    r, n = _quadrant(b, x)
    return _sine(b, r, n + 1)


def _top(b: Operations, x: Handle) -> Handle:
    """The leading 12 bits of a number, so that the product of two such is exact."""
    return b.bitcast(b.bitcast(x, _U32) & 0xFFFFF000, _F32)


def power(b: Operations, a: Handle, c: Handle) -> Handle:
    """a^c = 2^(c·log2 a), with log2 a and the product as unevaluated sums of two f32, so that the error does not grow
    with the exponent.

    log2 a = k + (2/ln 2)·(s + s·z·R(z)), s and z as in `log`: fit error of R 2^-37; 2^r = 1 + r·P(r), |r| ≤ ½: 2^-29.
    """
    k, f = _split(b, a)
    d = f + 2.0
    s = f / d
    s_high, d_high = _top(b, s), _top(b, d)
    d_low = f - (d_high - 2.0)
    s_low = ((f - s_high * d_high) - s_high * d_low) / d
    z = s * s
    r = _polynomial(b, z, 0.11791787, 0.14268619, 0.20000169, 0.3333333)
    high = s_high * 2.884765625
    low = s_low * 2.884765625 + (s * 0.0006244568 + (s * (z * r)) * 2.88539)
    log_high = _top(b, k + high)
    log_low = ((k - log_high) + high) + low
    e = _clamped(b, c, -1e10, 1e10)
    e_high = _top(b, e)
    y_high = e_high * log_high
    y_low = (e - e_high) * (log_high + log_low) + e_high * log_low
    y = _clamped(b, y_high + y_low, -151.0, 129.0)
    n = b.round(y)
    near = (abs(y_high) < 200.0) & (abs(y - n) <= 0.5) & (y > -151.0) & (y < 129.0)
    t = b.select(near, (y_high - n) + y_low, y - n)
    p = _polynomial(b, t, 0.00015476192, 0.001340055, 0.009618005, 0.05550327, 0.24022651, 0.6931472)
    value = _scale(b, b.fma(t, p, 1.0), b.cast(n, _I32))
    raw = b.bitcast(a, _U32)
    value = b.select((raw > _INFINITY) | _is_nan(b, c), _bits(b, a, _NAN), value)  # a negative or NaN
    # One of a = 0 and c > 0 alone: infinity. Both or neither: 0.
    limit = b.select((a == 0.0) ^ (c > 0.0), _bits(b, a, _INFINITY), _bits(b, a, 0))
    value = b.select(((a == 0.0) | (raw == _INFINITY)) & ~_is_nan(b, c), limit, value)
    return b.select(c == 0.0, 1.0, value)


def half_to_float(b: Operations, half: Handle) -> Handle:
    """Normal numbers by rebiasing the exponent, denormals as an integer times 2^-24, infinity and NaN with their
    payload.
    """
    sign = (half & 0x8000) << 16
    rest = half & 0x7FFF
    small = b.bitcast(b.cast(rest, _F32) * 5.9604645e-8, _U32)
    normal = (rest << 13) + b.select(rest >= 0x7C00, _word(b, half, 0x70000000), _word(b, half, 0x38000000))
    return b.bitcast(sign | b.select(rest < 0x400, small, normal), _F32)


def float_to_half(b: Operations, x: Handle) -> Handle:
    """To nearest, ties to even, on integers. A denormal half is the number times 2^24, rounded; NaN becomes the quiet
    one.
    """
    bits = b.bitcast(x, _U32)
    rest = bits & 0x7FFFFFFF
    sign = (bits >> 16) & 0x8000
    rounded = (rest + 0xFFF + ((rest >> 13) & 1)) >> 13
    normal = b.min(rounded - 0x1C000, 0x7C00)
    small = b.cast(b.round(b.bitcast(b.min(rest, 0x38800000), _F32) * 16777216.0), _U32)
    value = b.select(rest < 0x38800000, small, normal)
    value = b.select(rest >= 0x477FF000, 0x7C00, value)
    return sign | b.select(rest > _INFINITY, 0x7E00, value)


ROUTINES: Mapping[str, Routine] = MappingProxyType(
    {
        "exp": exp, "log": log, "sin": sin, "cos": cos, "tanh": tanh, "erf": erf, "pow": power,
        "half_to_float": half_to_float, "float_to_half": float_to_half,
    }
)  # fmt: skip
"""The operations that have a routine."""
