"""Elementary functions out of fused multiply-adds and integers.

The hardware's own approximations (ex2, lg2, sin, tanh) are off by up to thousands of units in the last place near hard
points. These routines use only correctly rounded operations, so what they give is the same bits on every machine that
has those, and a test on any CPU measures their error. Other targets may round a fused multiply-add twice, and use
routines that do not depend on it; these are shorter and closer. Their polynomials are minimax fits on the stated
intervals (Lawson iteration on 6,000 Chebyshev points, weighted to relative error, each coefficient rounded to f32 from
the lowest on and the rest fitted again); comments say the fits' errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar

X = TypeVar("X")

ERRORS: Mapping[str, float] = MappingProxyType(
    {
        "div": 0.5, "sqrt": 0.5, "rsqrt": 1.5, "exp": 1.0, "log": 1.0, "sin": 1.75, "cos": 1.75, "tanh": 1.75,
        "erf": 1.25, "pow": 1.25,
    }
)  # fmt: skip
"""ULP of the operations, the worst of 2^18 random arguments each over its range, against float64. Sine and cosine for
|x| ≤ 100,000.
"""


class Machine(Protocol[X]):
    """Operations on 32-bit values: f32 rounded to nearest, i32 that wraps, bool."""

    def number(self, value: float) -> X:
        """An f32 constant."""
        ...

    def integer(self, value: int) -> X:
        """An i32 constant."""
        ...

    def apply(self, kind: str, *operands: X) -> X:
        """An operation of the kernel operation table on f32, i32 or bool: its kind and operands give the type."""
        ...

    def bits(self, x: X) -> X:
        """An f32's bits as i32."""
        ...

    def real(self, i: X) -> X:
        """The f32 of those bits."""
        ...

    def converted(self, i: X) -> X:
        """An i32 as f32, rounded to nearest."""
        ...


LOG2_E = 1.44269504
LN2_HIGH, LN2_LOW = 0.693147182, -1.90465421e-9
"""ln 2 as two f32; n times the first is exact in a fused multiply-add."""

MAGIC = 12582912.0
"""1.5 · 2^23: adding it rounds to an integer, which is then in the low bits."""

LEAST_NORMAL = 1.17549435e-38
INFINITY_BITS = 0x7F800000
SIGN_BIT = -0x80000000
NAN_BITS = 0x7FC00000

_EXP = (0.5, 0.16666666, 0.041666456, 0.008333569, 0.0013935934, 0.0001974269)
"""e^r = 1 + r + r²·P(r), |r| ≤ ln 2 / 2: 2^-33."""

_EXP2 = (0.6931472, 0.24022648, 0.05550358, 0.009618503, 0.0013391889, 0.0001532921)
"""2^t = 1 + t·P(t), |t| ≤ ½: 2^-28.2."""

_LOG = (
    -0.5,
    0.33333334,
    -0.24999826,
    0.19999683,
    -0.16679361,
    0.14302672,
    -0.12198507,
    0.10769973,
    -0.12834147,
    0.11957271,
)
"""log(1 + f) = f + f²·P(f), |f| ≤ ⅓: 2^-30."""

_SIN = (-0.16666667, 0.0083333785, -0.00019852565, 2.8264149e-06)
"""sin r = r + r³·S(r²), |r| ≤ π/4: 2^-32.5."""

_COS = (0.041666646, -0.0013887298, 2.4430086e-05)
"""cos r = 1 − r²/2 + r⁴·C(r²), |r| ≤ π/4: 2^-32.7."""

_TANH = (-0.3333333, 0.13333227, -0.05394915, 0.0217114, -0.008194344, 0.0021454622)
"""tanh x = x + x³·P(x²), |x| < 0.55: 2^-33."""

_ERF = (0.12837917, -0.37612626, 0.11283579, -0.026853347, 0.005187162, -0.0007997853, 7.806903e-05)
"""erf x = x + x·P(x²), |x| < 1: 2^-29.4."""

_LOG_ERFC = (
    0.00016920383,
    -1.1294883,
    -0.6334011,
    -0.108219944,
    0.025080204,
    -0.004156044,
    0.00043133827,
    -2.0822814e-05,
)
"""log erfc x = P(x), 0.9 ≤ x ≤ 4: 2^-33.9 in erf."""

_ATANH = (0.3333333, 0.20000486, 0.14249402, 0.121392004)
"""atanh s = s + s³·R(s²), |s| ≤ 0.1717: 2^-35."""


def _polynomial(m: Machine[X], x: X, coefficients: tuple[float, ...]) -> X:
    value = m.number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = m.apply("fma", value, x, m.number(coefficient))
    return value


def _is_nan(m: Machine[X], x: X) -> X:
    return m.apply("ne", x, x)


def _scaled(m: Machine[X], x: X, n: X) -> X:
    """x · 2^n in two factors, so that results may be denormal or infinite: |n| ≤ 252."""
    half = m.apply("shr", n, m.integer(1))
    for part in (half, m.apply("sub", n, half)):
        x = m.apply("mul", x, m.real(m.apply("shl", m.apply("add", part, m.integer(127)), m.integer(23))))
    return x


def _rounded(m: Machine[X], x: X, factor: float) -> tuple[X, X]:
    """The integer nearest to x · factor, as f32, and with it in the low bits of an i32: |x · factor| < 2^22."""
    shifted = m.apply("fma", x, m.number(factor), m.number(MAGIC))
    return m.apply("sub", shifted, m.number(MAGIC)), m.bits(shifted)


def exp(m: Machine[X], x: X) -> X:
    """eˣ = 2ⁿ·eʳ, n = round(x / ln 2)."""
    y = m.apply("min", m.apply("max", x, m.number(-104.0)), m.number(89.0))
    n, low_bits = _rounded(m, y, LOG2_E)
    r = m.apply("fma", n, m.number(-LN2_LOW), m.apply("fma", n, m.number(-LN2_HIGH), y))
    tail = m.apply("fma", m.apply("mul", r, r), _polynomial(m, r, _EXP), r)
    power = m.apply("sub", low_bits, m.integer(0x4B400000))
    value = _scaled(m, m.apply("add", tail, m.number(1.0)), power)
    return m.apply("select", _is_nan(m, x), x, value)


def _split(m: Machine[X], x: X, base: int) -> tuple[X, X]:
    """x = 2^k · (1 + f): k as f32 and f, 1 + f from the f32 of bits `base` to twice that. Also for denormal x."""
    tiny = m.apply("lt", x, m.number(LEAST_NORMAL))
    bits = m.bits(m.apply("select", tiny, m.apply("mul", x, m.number(8388608.0)), x))
    power = m.apply("shr", m.apply("sub", bits, m.integer(base)), m.integer(23))
    f = m.apply("sub", m.real(m.apply("sub", bits, m.apply("shl", power, m.integer(23)))), m.number(1.0))
    k = m.apply("sub", power, m.apply("select", tiny, m.integer(23), m.integer(0)))
    return m.converted(k), f


def log(m: Machine[X], x: X) -> X:
    """log x = k·ln 2 + log(1 + f), 1 + f in [⅔, 4/3)."""
    k, f = _split(m, x, 0x3F2AAAAB)
    near = m.apply("fma", m.apply("mul", f, f), _polynomial(m, f, _LOG), f)
    value = m.apply("fma", k, m.number(LN2_HIGH), m.apply("fma", k, m.number(LN2_LOW), near))
    value = m.apply("select", m.apply("eq", m.bits(x), m.integer(INFINITY_BITS)), x, value)
    value = m.apply("select", m.apply("ge", x, m.number(0.0)), value, m.real(m.integer(NAN_BITS)))
    return m.apply("select", m.apply("eq", x, m.number(0.0)), m.real(m.integer(INFINITY_BITS | SIGN_BIT)), value)


def _sine(m: Machine[X], x: X, quarter: int) -> X:
    """sin(x + quarter·π/2).

    π/2 in three parts: n times the first, taken off by a fused multiply-add, leaves an exact rest.
    """
    n, low_bits = _rounded(m, x, 0.636619747)
    r = x
    for part in (1.57079637, -4.37113883e-08, -1.71512489e-15):
        r = m.apply("fma", n, m.number(-part), r)
    z = m.apply("mul", r, r)
    sine = m.apply("fma", m.apply("mul", r, z), _polynomial(m, z, _SIN), r)
    cosine = m.apply(
        "fma", m.apply("mul", z, z), _polynomial(m, z, _COS), m.apply("fma", z, m.number(-0.5), m.number(1.0))
    )
    quadrant = m.apply("add", low_bits, m.integer(quarter))
    odd = m.apply("ne", m.apply("and", quadrant, m.integer(1)), m.integer(0))
    value = m.apply("select", odd, cosine, sine)
    negative = m.apply("ne", m.apply("and", quadrant, m.integer(2)), m.integer(0))
    return m.apply("select", negative, m.apply("neg", value), value)


def sin(m: Machine[X], x: X) -> X:
    """For |x| ≤ 100,000; beyond, the error grows."""
    return _sine(m, x, 0)


def cos(m: Machine[X], x: X) -> X:
    """For |x| ≤ 100,000; beyond, the error grows."""
    return _sine(m, x, 1)


def _with_sign(m: Machine[X], magnitude: X, x: X) -> X:
    sign = m.apply("and", m.bits(x), m.integer(SIGN_BIT))
    return m.real(m.apply("or", m.bits(magnitude), sign))


def tanh(m: Machine[X], x: X) -> X:
    """A polynomial near 0, elsewhere 1 − 2 / (e^2|x| + 1), which loses nothing there."""
    a = m.apply("abs", x)
    z = m.apply("mul", x, x)
    small = m.apply("fma", m.apply("mul", x, z), _polynomial(m, z, _TANH), x)
    grown = m.apply("add", exp(m, m.apply("add", a, a)), m.number(1.0))
    large = m.apply("sub", m.number(1.0), m.apply("div", m.number(2.0), grown))
    value = m.apply("select", m.apply("lt", a, m.number(0.55)), small, _with_sign(m, large, x))
    return m.apply("select", _is_nan(m, x), x, value)


def erf(m: Machine[X], x: X) -> X:
    """A polynomial near 0, elsewhere 1 − e^P(|x|); 1 from 4 on."""
    a = m.apply("abs", x)
    z = m.apply("mul", x, x)
    small = m.apply("fma", x, _polynomial(m, z, _ERF), x)
    tail = exp(m, _polynomial(m, m.apply("min", a, m.number(4.0)), _LOG_ERFC))
    large = _with_sign(m, m.apply("sub", m.number(1.0), tail), x)
    value = m.apply("select", m.apply("lt", a, m.number(1.0)), small, large)
    return m.apply("select", _is_nan(m, x), x, value)


def rsqrt(m: Machine[X], x: X) -> X:
    """Two roundings of exact operations; 0 gives infinity, infinity 0."""
    return m.apply("div", m.number(1.0), m.apply("sqrt", x))


TWO_OVER_LN2, TWO_OVER_LN2_LOW = 2.88539004, 3.8519259e-08
"""2 / ln 2 as two f32."""


def _log2(m: Machine[X], a: X) -> tuple[X, X]:
    """log₂ a as the unevaluated sum of two f32: k + (2/ln 2)·atanh(f / (2 + f)), 1 + f in [√½, √2)."""
    k, f = _split(m, a, 0x3F3504F3)
    d = m.apply("add", f, m.number(2.0))
    d_low = m.apply("sub", f, m.apply("sub", d, m.number(2.0)))
    s = m.apply("div", f, d)
    # What s·(d + d_low) leaves of f, over d.
    rest = m.apply("fma", m.apply("neg", s), d_low, m.apply("fma", m.apply("neg", s), d, f))
    s_low = m.apply("div", rest, d)
    z = m.apply("mul", s, s)
    series = m.apply("fma", m.apply("mul", s, z), _polynomial(m, z, _ATANH), s_low)
    c = m.number(TWO_OVER_LN2)
    high = m.apply("mul", s, c)
    low = m.apply("fma", s, c, m.apply("neg", high))
    low = m.apply("fma", series, c, m.apply("fma", s, m.number(TWO_OVER_LN2_LOW), low))
    total = m.apply("add", k, high)
    low = m.apply("add", m.apply("add", m.apply("sub", k, total), high), low)
    # The series may be a thousandth of the sum: added to it, the low part is no more than the sum's own rounding.
    rounded = m.apply("add", total, low)
    return rounded, m.apply("sub", low, m.apply("sub", rounded, total))


def pow(m: Machine[X], a: X, b: X) -> X:
    """aᵇ = 2^(b·log₂ a) for a ≥ 0, with the exponent as the sum of two f32, so that the error does not grow with it."""
    log_high, log_low = _log2(m, a)
    limited = m.apply("min", m.apply("max", b, m.number(-1e30)), m.number(1e30))
    high = m.apply("mul", limited, log_high)
    exact_low = m.apply("fma", limited, log_high, m.apply("neg", high))
    low = m.apply("fma", limited, log_low, exact_low)
    inside = m.apply("lt", m.apply("abs", high), m.number(151.0))
    y = m.apply("min", m.apply("max", high, m.number(-151.0)), m.number(130.0))
    n, low_bits = _rounded(m, y, 1.0)
    # Where the exponent was clamped the result is 0 or infinite whatever the rest.
    t = m.apply("add", m.apply("sub", y, n), m.apply("select", inside, low, m.number(0.0)))
    power = m.apply("sub", low_bits, m.integer(0x4B400000))
    value = _scaled(m, m.apply("fma", t, _polynomial(m, t, _EXP2), m.number(1.0)), power)
    return _pow_edges(m, a, b, value)


def _pow_edges(m: Machine[X], a: X, b: X, value: X) -> X:
    """Zero and infinite bases, NaN, and exponent 0, which gives 1 for any base."""
    zero, infinite = m.apply("eq", a, m.number(0.0)), m.apply("eq", m.bits(a), m.integer(INFINITY_BITS))
    vanishes = m.apply("eq", zero, m.apply("gt", b, m.number(0.0)))
    edge = m.apply("select", vanishes, m.number(0.0), m.real(m.integer(INFINITY_BITS)))
    value = m.apply("select", m.apply("or", zero, infinite), edge, value)
    bad = m.apply("or", m.apply("not", m.apply("ge", a, m.number(0.0))), _is_nan(m, b))
    value = m.apply("select", bad, m.real(m.integer(NAN_BITS)), value)
    return m.apply("select", m.apply("eq", b, m.number(0.0)), m.number(1.0), value)
