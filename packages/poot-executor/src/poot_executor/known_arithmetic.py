"""Known answers of float32 arithmetic: what a target does at zero, infinity and NaN, whether it fuses, rearranges and
flushes. Their answers become what `Caps` state.
"""

from __future__ import annotations

import numpy as np

from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.known_answers import GROUP, Case, Words, differ, make_case, mixed_words

INF_NAN_PRESERVE = "inf_nan_preserve"
"""Zeros keep their sign, infinities and NaN come out as IEEE 754 says."""

CONTRACTION = "contraction"
"""Not a feature: where this case's answer is wrong, products and sums are fused or rearranged."""

DENORMALS = "denormals"
"""Not a feature: where this case's answer is wrong, denormals are flushed."""

FUSED = "fused"
"""Not a feature: where this case's answer is wrong, fma rounds the product before it adds."""


def arithmetic_cases() -> tuple[Case, ...]:
    """Every case of arithmetic."""
    mixed = mixed_words()
    return (
        make_case(INF_NAN_PRESERVE, _special(), _specials, 4, _wrong_specials),
        make_case(CONTRACTION, _plain(mixed), _sums, 4, _wrong_sums),
        make_case(FUSED, _plain(mixed), _fused, 1, _wrong_fused),
        make_case(DENORMALS, mixed & np.uint32(0x807FFFFF), _tiny, 3, _wrong_tiny),
    )


def _special() -> Words:
    """Zeros, infinities, NaN, the greatest numbers and ordinary ones, of both signs."""
    positive = np.array([0, 0x7F800000, 0x7FC00000, 0x7F7FFFFF, 0x3F800000, 0x00800000, 0x40490FDB, 0x3FFFFFFF])
    return np.resize(np.concatenate([positive, positive | 0x80000000]), GROUP).astype(np.uint32)


def _specials(b: KernelBuilder, word: Handle) -> list[Handle]:
    x = b.bitcast(word, DType.F32)
    other = b.bitcast((word >> 1) ^ 0x60000000, DType.F32)
    # A zero of the other sign, that no compiler knows.
    zero = b.bitcast(~word & 0x80000000, DType.F32)
    return [b.bitcast(v, DType.U32) for v in (x * -1.0, x + zero, x - x, x * 1.0000001 + other)]


def _wrong_specials(given: Words, answer: Words) -> str | None:
    x = given.view(np.float32)
    other = ((given >> np.uint32(1)) ^ np.uint32(0x60000000)).view(np.float32)
    with np.errstate(all="ignore"):
        expected = np.stack([-x, x + np.float32(0), x - x, x * np.float32(1.0000001) + other], axis=1)
    return differ("results at zero, infinity or NaN", answer.view(np.float32), expected.ravel())


def _plain(mixed: Words) -> Words:
    """Numbers of both signs with magnitudes from 2^-7 to 2."""
    return mixed & np.uint32(0x83FFFFFF) | np.uint32(0x3C000000)


def _operands(b: KernelBuilder, word: Handle) -> tuple[Handle, Handle, Handle]:
    x = b.bitcast(word, DType.F32)
    y = b.bitcast(word ^ 0x00155555, DType.F32)
    return x, y, b.bitcast(word ^ 0x002AAAAA, DType.F32)


def _sums(b: KernelBuilder, word: Handle) -> list[Handle]:
    x, y, z = _operands(b, word)
    return [b.bitcast(v, DType.U32) for v in (x * y - z, (x + y) - x, x * y + x * z, x * 0.7 * 1.1)]


def _wrong_sums(given: Words, answer: Words) -> str | None:
    x, y, z = (v.view(np.float32) for v in (given, given ^ np.uint32(0x00155555), given ^ np.uint32(0x002AAAAA)))
    scaled = x * np.float32(0.7) * np.float32(1.1)
    expected = np.stack([x * y - z, (x + y) - x, x * y + x * z, scaled], axis=1)
    return differ("sums and products", answer.view(np.float32), expected.ravel())


def _fused(b: KernelBuilder, word: Handle) -> list[Handle]:
    x, y, z = _operands(b, word)
    return [b.bitcast(b.fma(x, y, z), DType.U32)]


def _wrong_fused(given: Words, answer: Words) -> str | None:
    x, y, z = (v.view(np.float32) for v in (given, given ^ np.uint32(0x00155555), given ^ np.uint32(0x002AAAAA)))
    # Exact in float64, but for sums that lie half way between two floats to within 2^-53: there are none among these.
    expected = (x.astype(np.float64) * y + z).astype(np.float32)
    return differ("products with a sum", answer.view(np.float32), expected)


def _tiny(b: KernelBuilder, word: Handle) -> list[Handle]:
    x = b.bitcast(word, DType.F32)
    return [b.bitcast(v, DType.U32) for v in (x + x, x * 0.75, b.fma(x, 8388608.0, x))]


def _wrong_tiny(given: Words, answer: Words) -> str | None:
    x = given.view(np.float32)
    expected = np.stack([x + x, x * np.float32(0.75), x * np.float32(8388608.0) + x], axis=1)
    fused = np.stack([x + x, x * np.float32(0.75), (x.astype(np.float64) * 8388609.0).astype(np.float32)], axis=1)
    got = answer.view(np.float32)
    return differ("sums and products of denormals", got, fused.ravel()) and differ(
        "sums and products of denormals", got, expected.ravel()
    )
