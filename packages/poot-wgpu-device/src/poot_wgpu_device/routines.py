"""WGSL routines for what the language lacks or leaves inexact: elementary functions, half conversions, the high
product.

WGSL allows `exp` an error that grows with its argument, `log` and `sin` an absolute one, `tanh` and `pow` whatever
they inherit, and has no `erf`; llvmpipe takes those freedoms (63, 20,000, 40, 10,000 and 98 ULP were seen). These
routines use only operations that are nearly exact everywhere. Their polynomials are minimax fits on the stated
intervals (Lawson iteration on 4,000 Chebyshev points, weighted to relative error), rounded to f32; each comment says
the fit's error. None needs a fused multiply-add, and none is hurt by one. Infinities are made from bits at run time,
since a constant one is an error in WGSL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Routine:
    """A WGSL function and the names of the routines that it calls."""

    text: str
    needs: tuple[str, ...] = ()


_BITS = Routine(
    """\
fn poot_bits(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}"""
)

_IS_NAN = Routine(
    """\
fn poot_is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}"""
)

# 2^n in two factors, so that results may be denormal or infinite: |n| ≤ 252.
_SCALE = Routine(
    """\
fn poot_scale(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return x * bitcast<f32>((half + 127) << 23u) * bitcast<f32>((n - half + 127) << 23u);
}"""
)

# e^x = 2^n · e^r, n = round(x / ln 2). ln 2 in two parts, the first of 10 bits so that n times it is exact.
# e^r = 1 + r + r²·P(r) on |r| ≤ ln 2 / 2: fit error 2^-28.2.
_EXP = Routine(
    """\
fn poot_exp(x: f32) -> f32 {
    let y = clamp(x, -104.0f, 89.0f);
    let n = round(y * 1.442695f);
    let r = (y - n * 0.693359375f) - n * -0.00021219444f;
    let p = fma(fma(fma(fma(0.00139506f, r, 0.008368954f), r, 0.041666206f), r, 0.16666518f), r, 0.5f);
    let value = poot_scale(1.0f + fma(r * r, p, r), i32(n));
    return select(value, x, poot_is_nan(x));
}""",
    ("poot_scale", "poot_is_nan"),
)

# x = 2^k · (1 + f), 1 + f in [√½, √2). With s = f / (2 + f), z = s²: log(1 + f) = 2·atanh(s) = f − s·(f − z·Q(z)),
# since 2s = f − s·f. Fit error of Q in log: 2^-37. ln 2 in two parts, the first of 16 bits so that k times it is exact.
_LOG = Routine(
    """\
fn poot_log(x: f32) -> f32 {
    let tiny = x < 1.17549435e-38f;
    let bits = bitcast<i32>(select(x, x * 8388608.0f, tiny));
    let shift = (bits - 0x3f3504f3) >> 23u;
    let f = bitcast<f32>(bits - (shift << 23u)) - 1.0f;
    let k = f32(shift - select(0, 23, tiny));
    let s = f / (2.0f + f);
    let z = s * s;
    let q = fma(fma(fma(0.23583575f, z, 0.28537238f), z, 0.40000337f), z, 0.6666666f);
    let value = k * 0.69314575f + (f - (s * (f - z * q) - k * 1.4286068e-6f));
    let raw = bitcast<u32>(x);
    if (x == 0.0f) {
        return poot_bits(0xff800000u);
    }
    if (raw > 0x7f800000u) {
        return poot_bits(0x7fc00000u);
    }
    return select(value, x, raw == 0x7f800000u);
}""",
    ("poot_bits",),
)

# |x| < 0.625: x + x³·P(x²), fit error 2^-27.9; else 1 − 2 / (e^2|x| + 1), which loses nothing there.
_TANH = Routine(
    """\
fn poot_tanh(x: f32) -> f32 {
    let a = abs(x);
    if (a < 0.625f) {
        let z = x * x;
        let p = fma(fma(fma(fma(-0.0057170326f, z, 0.020650575f), z, -0.053743493f), z, 0.1333149f), z, -0.33333284f);
        return fma(x * z, p, x);
    }
    let large = 1.0f - 2.0f / (poot_exp(2.0f * a) + 1.0f);
    return select(select(large, -large, x < 0.0f), x, poot_is_nan(x));
}""",
    ("poot_exp", "poot_is_nan"),
)

# |x| < 1: x + x·P(x²), fit error 2^-29.7; else 1 − e^p, p a fit of log erfc on [1, 4] with error 2^-35 in erf; 1
# beyond.
_ERF = Routine(
    """\
fn poot_erf(x: f32) -> f32 {
    let a = abs(x);
    if (a < 1.0f) {
        let z = x * x;
        var p = fma(7.88912e-5f, z, -0.0008020842f);
        p = fma(fma(fma(p, z, 0.005189535f), z, -0.026854444f), z, 0.112836f);
        return fma(x, fma(fma(p, z, -0.37612626f), z, 0.12837917f), x);
    }
    let b = min(a, 4.0f);
    var p = fma(-2.1697706e-5f, b, 0.00044147373f);
    p = fma(fma(fma(p, b, -0.0042052902f), b, 0.025210354f), b, -0.10842212f);
    let large = 1.0f - poot_exp(fma(fma(fma(p, b, -0.6332164f), b, -1.1295804f), b, 0.00018846994f));
    return select(select(large, -large, x < 0.0f), x, poot_is_nan(x));
}""",
    ("poot_exp", "poot_is_nan"),
)

# r = x − n·π/2 with π/2 in six parts, the first five of 8 bits so that their products are exact while n < 2^16: |x|
# ≤ 100,000. Off by at most 1.5 ULP of r, also next to a multiple of π/2. x: r, y: the quadrant's sine (0) or cosine (1)
# and sign in two bits.
_QUADRANT = Routine(
    """\
fn poot_quadrant(x: f32) -> vec2<f32> {
    let n = round(x * 0.63661975f);
    var r = (((x - n * 1.5703125f) - n * 0.00048255920f) - n * 1.2665987e-6f) - n * 9.8953024e-10f;
    r = (r - n * 2.5579538e-12f) - n * 5.390303e-15f;
    return vec2<f32>(r, n);
}"""
)

# sin r = r + r³·S(r²), cos r = 1 − r²/2 + r⁴·C(r²) on |r| ≤ π/4: fit errors 2^-37 and 2^-33.
_SINE = Routine(
    """\
fn poot_sine(r: f32, quadrant: i32) -> f32 {
    let z = r * r;
    let s = fma(r * z, fma(fma(fma(2.7181627e-6f, z, -0.00019839319f), z, 0.008333329f), z, -0.16666667f), r);
    let c = fma(z * z, fma(fma(2.4437006e-5f, z, -0.0013887355f), z, 0.041666646f), fma(z, -0.5f, 1.0f));
    let value = select(s, c, (quadrant & 1) != 0);
    return select(value, -value, (quadrant & 2) != 0);
}"""
)

_SIN = Routine(
    """\
fn poot_sin(x: f32) -> f32 {
    let q = poot_quadrant(x);
    return poot_sine(q.x, i32(q.y));
}""",
    ("poot_quadrant", "poot_sine"),
)

_COS = Routine(
    """\
fn poot_cos(x: f32) -> f32 {
    let q = poot_quadrant(x);
    return poot_sine(q.x, i32(q.y) + 1);
}""",
    ("poot_quadrant", "poot_sine"),
)

# The leading 12 bits of a number, so that the product of two such is exact. Cutting bits also hides the number from
# compilers that would simplify (a + b) − a: Mesa's does.
_TOP = Routine(
    """\
fn poot_top(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}"""
)

# a^b = 2^(b·log2 a), with log2 a and the product as unevaluated sums of two f32, so that the error does not grow with
# the exponent. log2 a = k + (2/ln 2)·(s + s·z·R(z)), s and z as in poot_log: fit error of R 2^-37; 2^r = 1 + r·P(r),
# |r| ≤ ½: 2^-29.
_POW = Routine(
    """\
fn poot_pow(a: f32, b: f32) -> f32 {
    let tiny = a < 1.17549435e-38f;
    let bits = bitcast<i32>(select(a, a * 8388608.0f, tiny));
    let shift = (bits - 0x3f3504f3) >> 23u;
    let f = bitcast<f32>(bits - (shift << 23u)) - 1.0f;
    let k = f32(shift - select(0, 23, tiny));
    let d = 2.0f + f;
    let s = f / d;
    let s_high = poot_top(s);
    let d_high = poot_top(d);
    let d_low = f - (d_high - 2.0f);
    let s_low = ((f - s_high * d_high) - s_high * d_low) / d;
    let z = s * s;
    let r = fma(fma(fma(0.11791787f, z, 0.14268619f), z, 0.20000169f), z, 0.3333333f);
    let high = s_high * 2.884765625f;
    let low = s_low * 2.884765625f + (s * 0.0006244568f + 2.88539f * (s * (z * r)));
    let log_high = poot_top(k + high);
    let log_low = ((k - log_high) + high) + low;
    let e = clamp(b, -1e10f, 1e10f);
    let e_high = poot_top(e);
    let y_high = e_high * log_high;
    let y_low = (e - e_high) * (log_high + log_low) + e_high * log_low;
    let y = clamp(y_high + y_low, -151.0f, 129.0f);
    let n = round(y);
    let inside = abs(y_high) < 200.0f && y > -151.0f && y < 129.0f;
    let t = select(y - n, (y_high - n) + y_low, inside);
    let p = fma(fma(fma(0.00015476192f, t, 0.001340055f), t, 0.009618005f), t, 0.05550327f);
    let q = fma(fma(p, t, 0.24022651f), t, 0.6931472f);
    let value = poot_scale(fma(t, q, 1.0f), i32(n));
    if (b == 0.0f) {
        return 1.0f;
    }
    if (a == 0.0f || bitcast<u32>(a) == 0x7f800000u) {
        return select(poot_bits(0x7f800000u), 0.0f, (a == 0.0f) == (b > 0.0f));
    }
    return select(value, poot_bits(0x7fc00000u), bitcast<u32>(a) > 0x7f800000u || poot_is_nan(b));
}""",
    ("poot_top", "poot_scale", "poot_bits", "poot_is_nan"),
)

# The 64-bit product from four products of 16-bit halves; WGSL has no wide multiplication.
_MULHI = Routine(
    """\
fn poot_mulhi(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}"""
)

# Normal numbers by rebiasing the exponent, denormals as an integer times 2^-24, infinity and NaN with their payload.
_HALF_TO_FLOAT = Routine(
    """\
fn poot_half_to_float(half: u32) -> f32 {
    let sign = (half & 0x8000u) << 16u;
    let rest = half & 0x7fffu;
    let small = bitcast<u32>(f32(rest) * 5.9604645e-8f);
    let normal = (rest << 13u) + select(0x38000000u, 0x70000000u, rest >= 0x7c00u);
    return bitcast<f32>(sign | select(normal, small, rest < 0x400u));
}"""
)

# To nearest, ties to even, on integers. A denormal half is the number times 2^24, rounded; NaN becomes the quiet one.
_FLOAT_TO_HALF = Routine(
    """\
fn poot_float_to_half(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rest = bits & 0x7fffffffu;
    let sign = (bits >> 16u) & 0x8000u;
    let rounded = (rest + 0xfffu + ((rest >> 13u) & 1u)) >> 13u;
    let normal = min(rounded - 0x1c000u, 0x7c00u);
    let small = u32(round(bitcast<f32>(min(rest, 0x38800000u)) * 16777216.0f));
    let value = select(normal, small, rest < 0x38800000u);
    return sign | select(select(value, 0x7c00u, rest >= 0x477ff000u), 0x7e00u, rest > 0x7f800000u);
}"""
)

ROUTINES: Mapping[str, Routine] = MappingProxyType(
    {
        "poot_bits": _BITS,
        "poot_is_nan": _IS_NAN,
        "poot_scale": _SCALE,
        "poot_top": _TOP,
        "poot_exp": _EXP,
        "poot_log": _LOG,
        "poot_tanh": _TANH,
        "poot_erf": _ERF,
        "poot_quadrant": _QUADRANT,
        "poot_sine": _SINE,
        "poot_sin": _SIN,
        "poot_cos": _COS,
        "poot_pow": _POW,
        "poot_mulhi": _MULHI,
        "poot_half_to_float": _HALF_TO_FLOAT,
        "poot_float_to_half": _FLOAT_TO_HALF,
    }
)
"""Every routine by name; each stands after those that it calls."""


def routine_text(used: Iterable[str]) -> str:
    """The functions that `used` names and all that they call, in the table's order."""
    wanted: set[str] = set()
    pending = list(used)
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending.extend(ROUTINES[name].needs)
    return "\n\n".join(routine.text for name, routine in ROUTINES.items() if name in wanted)
