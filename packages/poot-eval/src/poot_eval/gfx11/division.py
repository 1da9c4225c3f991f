"""The steps of an IEEE division: scaling so that no step over- or underflows, the last fused step, and what is special.

A quotient n/d is approximated from scaled operands; `v_div_scale` says which it scaled, `v_div_fmas`
undoes it with its last step, `v_div_fixup` sets sign, zeros, infinities and NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.floats import scaled_fma32, scaled_fma64
from poot_eval.gfx11.rules import Rule, rule

Array = NDArray[Any]


class _Format:
    """What the steps need of a float format: `far` is how far exponents lie apart before a quotient nears the largest
    number, `tiny` the biased exponent of numerators that are scaled, `scale` the power of two that scales.
    """

    def __init__(self, dtype: type[Any], far: int, tiny: int, scale: int, lost: int, fma: Any) -> None:
        self.dtype, self.far, self.tiny, self.scale, self.lost, self.fma = dtype, far, tiny, scale, lost, fma
        info = np.finfo(dtype)
        self.bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
        self.mantissa = info.nmant
        self.least = info.tiny
        self.bias = info.maxexp - 1
        self.top = 2 * info.maxexp - 1

    def exponent(self, x: Array) -> NDArray[np.int64]:
        """The biased exponent."""
        return (x.view(self.bits) >> self.bits.type(self.mantissa)).astype(np.int64) & self.top

    def denormal(self, x: Array) -> Array:
        return (x != 0) & (np.abs(x) < self.least)


_F16 = _Format(np.float16, 0, 0, 0, 64, None)
_F32 = _Format(np.float32, 96, 23, 64, 150, scaled_fma32)
_F64 = _Format(np.float64, 768, 53, 128, 1075, scaled_fma64)


def div_scale(form: _Format, value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """The scaled value (which is denominator or numerator), and whether the quotient has to be scaled back."""
    value, denominator, numerator = np.broadcast_arrays(value, denominator, numerator)
    is_denominator = value.view(form.bits) == denominator.view(form.bits)
    is_numerator = value.view(form.bits) == numerator.view(form.bits)
    apart = form.exponent(numerator) - form.exponent(denominator)
    tiny_denominator = form.denormal(denominator)
    # 1/d is denormal where d's exponent is one of the two largest; the quotient's own is estimated as exactly.
    tiny_reciprocal = form.denormal(form.dtype(1) / denominator)
    tiny_quotient = form.denormal(numerator / denominator) | ((numerator / denominator == 0) & (numerator != 0))
    cases = [
        (denominator == 0) | (numerator == 0),
        apart >= form.far,
        tiny_denominator,
        tiny_reciprocal & tiny_quotient,
        tiny_reciprocal,
        tiny_quotient,
        form.exponent(numerator) <= form.tiny,
    ]
    up, down = np.ldexp(value, form.scale), np.ldexp(value, -form.scale)
    scaled = np.select(
        cases,
        [
            np.full_like(value, np.nan),
            np.where(is_denominator, up, value),
            up,
            np.where(is_denominator, down, value),
            down,
            np.where(is_numerator, up, value),
            up,
        ],
        value,
    )
    back = np.select(
        cases, [np.full(value.shape, flag) for flag in (False, True, False, True, False, True, False)], False
    )
    return scaled.astype(form.dtype), back


def div_fmas(form: _Format, a: Array, b: Array, c: Array, scaled: Array) -> Array:
    """a·b + c, scaled back where `scaled` says so: up where c is large, down where it is small. Rounded once, without
    which quotients that are denormal would be rounded twice.
    """
    power = np.where(form.exponent(c) > form.bias, form.scale, -form.scale)
    return form.fma(a, b, c, np.where(scaled, power, 0))


def div_fixup(form: _Format, quotient: Array, denominator: Array, numerator: Array) -> Array:
    """The quotient with its sign, and what division by, of or to something special gives.

    The documented steps leave a quotient that overflowed on its way as the NaN of inf - inf; it is
    infinite here, without which divisions would not be what IEEE says, as they are known to be.
    """
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    one = form.dtype(1)
    sign = np.copysign(one, denominator) * np.copysign(one, numerator)
    infinity = form.dtype(np.inf)
    zero_by_zero = (denominator == 0) & (numerator == 0)
    two_infinities = np.isinf(denominator) & np.isinf(numerator)
    return np.select(
        [
            np.isnan(numerator) | np.isnan(denominator) | zero_by_zero | two_infinities,
            (denominator == 0) | np.isinf(numerator),
            np.isinf(denominator) | (numerator == 0),
            form.exponent(numerator) - form.exponent(denominator) < -form.lost,
            np.isnan(quotient),
        ],
        [np.full_like(quotient, np.nan), sign * infinity, sign * form.dtype(0), sign * form.dtype(0), sign * infinity],
        sign * np.abs(quotient),
    ).astype(form.dtype)


def _scale(form: _Format) -> Any:
    return lambda a, b, c: div_scale(form, a, b, c)


DIVISIONS: dict[str, Rule] = {
    f"v_div_{step}_{t}": rule(types.replace("f", t), function)
    for t, form in (("f32", _F32), ("f64", _F64))
    for step, types, function in (
        ("scale", "f,lanes f f f", _scale(form)),
        ("fmas", "f f f f lanes", lambda a, b, c, m, form=form: div_fmas(form, a, b, c, m)),
        ("fixup", "f f f f", lambda a, b, c, form=form: div_fixup(form, a, b, c)),
    )
} | {"v_div_fixup_f16": rule("f16 f16 f16 f16", lambda a, b, c: div_fixup(_F16, a, b, c))}
"""Rules by mnemonic. A scale writes lanes that were scaled beside its result."""
