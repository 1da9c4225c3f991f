"""Whole numbers and bits in vector registers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.rules import Rule, rule, rules

Array = NDArray[Any]


def bit_count(x: Array) -> Array:
    """Bits that are on, of uint32 or uint64, in the same type."""
    kind = x.dtype.type
    if x.dtype.itemsize == 8:
        low, high = (x & kind(0xFFFFFFFF)).astype(np.uint32), (x >> kind(32)).astype(np.uint32)
        return (bit_count(low) + bit_count(high)).astype(x.dtype)
    x = x - ((x >> kind(1)) & kind(0x55555555))
    x = (x & kind(0x33333333)) + ((x >> kind(2)) & kind(0x33333333))
    x = (x + (x >> kind(4))) & kind(0x0F0F0F0F)
    return (x * kind(0x01010101)) >> kind(24)


def leading_zeros(x: Array) -> Array:
    """Zeros above the highest bit that is on, of uint32 or uint64; -1 (int32) where none is."""
    bits = 8 * x.dtype.itemsize
    filled = x
    for shift in (1, 2, 4, 8, 16, 32)[: 5 if bits == 32 else 6]:
        filled = filled | (filled >> x.dtype.type(shift))
    zeros = bits - bit_count(filled).astype(np.int32)
    return np.where(x == 0, np.int32(-1), zeros).astype(np.int32)


def trailing_zeros(x: Array) -> Array:
    """Zeros below the lowest bit that is on; -1 (int32) where none is."""
    below = (x & (~x + x.dtype.type(1))) - x.dtype.type(1)
    return np.where(x == 0, np.int32(-1), bit_count(below).astype(np.int32)).astype(np.int32)


def leading_signs(x: Array) -> Array:
    """Bits from the highest on that equal the sign, of int32; -1 where all do."""
    bits = np.where(x < 0, ~x, x).view(np.uint32)
    return np.where(bits == 0, np.int32(-1), leading_zeros(bits)).astype(np.int32)


def reverse(x: Array) -> Array:
    """The bits of uint32 in the opposite order."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        x = ((x >> np.uint32(shift)) & np.uint32(mask)) | ((x & np.uint32(mask)) << np.uint32(shift))
    return x >> np.uint32(16) | x << np.uint32(16)


def _shift(function: Any, bits: int) -> Any:
    """A shift whose count comes first and is taken modulo the width."""
    return lambda count, x: function(x, (count & count.dtype.type(bits - 1)).astype(x.dtype))


def left(x: Array, count: Array) -> Array:
    """x << (count mod 32)."""
    return x << (count & np.uint32(31))


def field_u32(x: Array, offset: Array, width: Array) -> Array:
    """`width` bits of x from `offset` on."""
    offset, width = offset & np.uint32(31), width & np.uint32(31)
    return (x >> offset) & ((np.uint32(1) << width) - np.uint32(1))


def field_i32(x: Array, offset: Array, width: Array) -> Array:
    """The same with the field's highest bit as its sign."""
    bits = (x.view(np.int32) >> (offset & np.uint32(31)).view(np.int32)).view(np.uint32)
    width = width & np.uint32(31)
    kept = bits & ((np.uint32(1) << width) - np.uint32(1))
    sign = np.where(width == 0, np.uint32(0), np.uint32(1) << (np.maximum(width, 1).astype(np.uint32) - np.uint32(1)))
    return ((kept ^ sign) - sign).view(np.int32)


def _align(bits: int) -> Any:
    def function(high: Array, low: Array, count: Array) -> Array:
        shift = (count & np.uint32(32 // bits - 1)).astype(np.uint64) * np.uint64(bits)
        both = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
        return (both >> shift).astype(np.uint32)

    return function


def permute_bytes(high: Array, low: Array, selector: Array) -> Array:
    """Each byte of the selector picks a byte of high:low (0-7, high above), a sign (8-11), 0 (12) or 255 (above)."""
    both = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
    result = np.zeros(np.broadcast_shapes(both.shape, selector.shape), np.uint32)
    for i in range(4):
        choice = (selector >> np.uint32(8 * i)) & np.uint32(0xFF)
        picked = (both >> ((choice & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(
            0xFF
        )
        sign_bit = ((choice & np.uint32(3)).astype(np.uint64) * np.uint64(16)) + np.uint64(15)
        sign = ((both >> sign_bit).astype(np.uint32) & np.uint32(1)) * np.uint32(0xFF)
        byte = np.where(choice < 8, picked, np.where(choice < 12, sign, np.where(choice == 12, 0, 0xFF)))
        result |= byte.astype(np.uint32) << np.uint32(8 * i)
    return result


def _low24(x: Array) -> Array:
    return x & np.uint32(0xFFFFFF)


def _signed24(x: Array) -> Array:
    return (x << np.int32(8)) >> np.int32(8)


def high_u32(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def high_i32(a: Array, b: Array) -> Array:
    """The upper half of a signed product."""
    return ((a.astype(np.int64) * b.astype(np.int64)) >> np.int64(32)).astype(np.int32)


def _absolute_bytes(a: Array, b: Array, c: Array) -> Array:
    total = c
    for shift in (0, 8, 16, 24):
        x, y = ((v >> np.uint32(shift)) & np.uint32(0xFF) for v in (a, b))
        total = total + np.where(x > y, x - y, y - x)
    return total


_WORD: dict[str, tuple[str, Any]] = {
    "v_mov_b32": ("u32 u32", np.positive), "v_not_b32": ("u32 u32", np.invert),
    "v_and_b32": ("u32 u32 u32", np.bitwise_and), "v_or_b32": ("u32 u32 u32", np.bitwise_or),
    "v_xor_b32": ("u32 u32 u32", np.bitwise_xor), "v_xnor_b32": ("u32 u32 u32", lambda a, b: ~(a ^ b)),
    "v_lshlrev_b32": ("u32 u32 u32", _shift(np.left_shift, 32)),
    "v_lshrrev_b32": ("u32 u32 u32", _shift(np.right_shift, 32)),
    "v_ashrrev_i32": ("i32 u32 i32", _shift(np.right_shift, 32)),
    "v_lshl_add_u32": ("u32 u32 u32 u32", lambda a, n, b: left(a, n) + b),
    "v_add_lshl_u32": ("u32 u32 u32 u32", lambda a, b, n: left(a + b, n)),
    "v_lshl_or_b32": ("u32 u32 u32 u32", lambda a, n, b: left(a, n) | b),
    "v_and_or_b32": ("u32 u32 u32 u32", lambda a, b, c: (a & b) | c),
    "v_or3_b32": ("u32 u32 u32 u32", lambda a, b, c: a | b | c),
    "v_xor3_b32": ("u32 u32 u32 u32", lambda a, b, c: a ^ b ^ c),
    "v_xad_u32": ("u32 u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "v_add3_u32": ("u32 u32 u32 u32", lambda a, b, c: a + b + c),
    "v_bfe_u32": ("u32 u32 u32 u32", field_u32), "v_bfe_i32": ("i32 u32 u32 u32", field_i32),
    "v_bfi_b32": ("u32 u32 u32 u32", lambda m, a, b: (m & a) | (~m & b)),
    "v_bfm_b32": ("u32 u32 u32", lambda n, at: left((np.uint32(1) << (n & np.uint32(31))) - np.uint32(1), at)),
    "v_alignbit_b32": ("u32 u32 u32 u32", _align(1)), "v_alignbyte_b32": ("u32 u32 u32 u32", _align(8)),
    "v_perm_b32": ("u32 u32 u32 u32", permute_bytes), "v_bfrev_b32": ("u32 u32", reverse),
    "v_bcnt_u32_b32": ("u32 u32 u32", lambda x, base: bit_count(x) + base),
    "v_clz_i32_u32": ("i32 u32", leading_zeros), "v_ffbh_u32": ("i32 u32", leading_zeros),
    "v_ctz_i32_b32": ("i32 u32", trailing_zeros), "v_ffbl_b32": ("i32 u32", trailing_zeros),
    "v_cls_i32": ("i32 i32", leading_signs), "v_ffbh_i32": ("i32 i32", leading_signs),
    "v_mul_lo_u32": ("u32 u32 u32", np.multiply), "v_mul_hi_u32": ("u32 u32 u32", high_u32),
    "v_mul_hi_i32": ("i32 i32 i32", high_i32),
    "v_mul_u32_u24": ("u32 u32 u32", lambda a, b: _low24(a) * _low24(b)),
    "v_mul_i32_i24": ("i32 i32 i32", lambda a, b: _signed24(a) * _signed24(b)),
    "v_mul_hi_u32_u24": ("u32 u32 u32", lambda a, b: high_u32(_low24(a), _low24(b))),
    "v_mul_hi_i32_i24": ("i32 i32 i32", lambda a, b: high_i32(_signed24(a), _signed24(b))),
    "v_mad_u32_u24": ("u32 u32 u32 u32", lambda a, b, c: _low24(a) * _low24(b) + c),
    "v_mad_i32_i24": ("i32 i32 i32 i32", lambda a, b, c: _signed24(a) * _signed24(b) + c),
    "v_mad_u32_u16": ("u32 u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b.astype(np.uint32) + c),
    "v_mad_i32_i16": ("i32 i16 i16 i32", lambda a, b, c: a.astype(np.int32) * b.astype(np.int32) + c),
    "v_sad_u8": ("u32 u32 u32 u32", _absolute_bytes),
    "v_sad_u32": ("u32 u32 u32 u32", lambda a, b, c: np.where(a > b, a - b, b - a) + c),
    "v_lshlrev_b64": ("u64 u32 u64", _shift(np.left_shift, 64)),
    "v_lshrrev_b64": ("u64 u32 u64", _shift(np.right_shift, 64)),
    "v_ashrrev_i64": ("i64 u32 i64", _shift(np.right_shift, 64)),
}  # fmt: skip

_HALF: dict[str, tuple[str, Any]] = {
    "v_mov_b16": ("u16 u16", np.positive), "v_not_b16": ("u16 u16", np.invert),
    "v_and_b16": ("u16 u16 u16", np.bitwise_and), "v_or_b16": ("u16 u16 u16", np.bitwise_or),
    "v_xor_b16": ("u16 u16 u16", np.bitwise_xor),
    "v_lshlrev_b16": ("u16 u16 u16", _shift(np.left_shift, 16)),
    "v_lshrrev_b16": ("u16 u16 u16", _shift(np.right_shift, 16)),
    "v_ashrrev_i16": ("i16 u16 i16", _shift(np.right_shift, 16)),
    "v_mul_lo_u16": ("u16 u16 u16", np.multiply),
}  # fmt: skip


def _extremes(t: str) -> dict[str, Rule]:
    two, three = f"{t} {t} {t}", f"{t} {t} {t} {t}"
    entries = {
        "max": (two, np.maximum), "min": (two, np.minimum),
        "max3": (three, lambda a, b, c: np.maximum(np.maximum(a, b), c)),
        "min3": (three, lambda a, b, c: np.minimum(np.minimum(a, b), c)),
        "maxmin": (three, lambda a, b, c: np.minimum(np.maximum(a, b), c)),
        "minmax": (three, lambda a, b, c: np.maximum(np.minimum(a, b), c)),
        "med3": (three, lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))),
    }  # fmt: skip
    return {f"v_{name}_{t}": rule(types, function, exact=True) for name, (types, function) in entries.items()}


def _wrapping(t: str, infix: str) -> dict[str, Rule]:
    """Sums that the clamp modifier saturates."""
    two = f"{t} {t} {t}"
    entries = {
        f"v_add{infix}_{t}": (two, np.add), f"v_sub{infix}_{t}": (two, np.subtract),
        f"v_subrev{infix}_{t}": (two, lambda a, b: b - a),
        f"v_mad_{t}": (f"{t} {t} {t} {t}", lambda a, b, c: a * b + c),
    }  # fmt: skip
    return rules(entries, wide=True)


INTEGERS: dict[str, Rule] = {
    **rules(_WORD, exact=True), **rules(_HALF, exact=True),
    **{name: entry for t in ("u32", "i32", "u16", "i16") for name, entry in _extremes(t).items()},
    **{name: entry for t in ("u32", "i32", "u16", "i16") for name, entry in _wrapping(t, "_nc").items()},
}  # fmt: skip
"""Rules by mnemonic."""
