"""eˣ for x ≤ 0, in two thirds of the operations of the general one: what a softmax takes of differences to a maximum.

Nothing overflows, so that one factor scales the result, 2⁶⁴ too large, and one more takes that off, which rounds
denormals once. The steps are those of `kernel/fused_routines.exp`: n = round(x / ln 2), r = x − n·ln 2, 2ⁿ·eʳ.
"""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.fused_routines import LN2_HIGH, LN2_LOW, LOG2_E, MAGIC
from poot_executor.kernel.handle import Handle

LEAST = -104.0
"""eˣ rounds to 0 from here on down."""
LIFT = 64
"""The result is that many powers of two larger before the last product, and so no denormal."""
BIAS, MANTISSA = 127, 23
_EXP = (0.5, 0.16666666, 0.041666456, 0.008333569, 0.0013935934, 0.0001974269)
"""e^r = 1 + r + r²·P(r), |r| ≤ ln 2 / 2: 2^-33, as in `kernel/fused_routines`."""


def weight_power(x: Handle) -> Handle:
    """eˣ of an f32 x that is at most 0, minus infinity or NaN: within one unit in the last place where products and
    sums are fused and rounded to nearest."""
    b = x.builder
    y = b.select(x < LEAST, LEAST, x)  # NaN stays.
    magic = MAGIC + LIFT + BIAS
    shifted = b.fma(y, LOG2_E, magic)
    n = shifted - magic
    r = b.fma(n, -LN2_LOW, b.fma(n, -LN2_HIGH, y))
    value = b.const(_EXP[-1], DType.F32)
    for coefficient in reversed(_EXP[:-1]):
        value = b.fma(value, r, coefficient)
    power = b.bitcast(b.bitcast(shifted, DType.U32) << MANTISSA, DType.F32)
    return (b.fma(r * r, value, r) + 1.0) * power * (2.0**-LIFT)
