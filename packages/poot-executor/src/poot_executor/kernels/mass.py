"""The mass that top-p sums: integers of up to 44 bits as two words, `high` · 2^12 + `low`.

A row's halves are summed apart: 12 bits of up to 2^20 ids fit 32 bits. So the sum does not depend on its order.
"""

from __future__ import annotations

from poot_executor.kernel.handle import Handle
from poot_executor.kernel.lang import bitcast, device, i32, mulhi, select, u32

LOW_BITS = 12
LOW_MASK = (1 << LOW_BITS) - 1


@device
def carried(high: Handle, low: Handle) -> tuple[Handle, Handle]:
    """The same mass with `low` below 2^12."""
    return high + (low >> LOW_BITS), low & LOW_MASK


@device
def reaches(high: Handle, low: Handle, target_high: Handle, target_low: Handle) -> Handle:
    """Is a mass at least the target? Both are carried."""
    return (high > target_high) | ((high == target_high) & (low >= target_low))


@device
def falls_short(high: Handle, low: Handle, target_high: Handle, target_low: Handle) -> Handle:
    """Is a mass below the target?"""
    return (high < target_high) | ((high == target_high) & (low < target_low))


@device
def share_of(top_p: Handle, high: Handle, low: Handle) -> tuple[Handle, Handle]:
    """ceil(top_p · mass), exactly, of a carried mass, for top_p below 1.

    top_p is digits · 2^-shift; the product has up to 68 bits, in three words.
    """
    raw = bitcast(top_p, u32)
    digits = select((raw >> 23) > 0, (raw & 0x7FFFFF) | 0x800000, raw & 0x7FFFFF)
    digits = select(top_p > 0.0, digits, u32(0))
    shift = 150 - max(i32((raw >> 23) & 255), 1)
    upper0 = digits * high
    upper1 = mulhi(digits, high)
    word0 = upper0 << 12
    word1 = (upper1 << 12) | (upper0 >> 20)
    word2 = upper1 >> 20
    added = word0 + digits * low
    carry = select(added < word0, u32(1), u32(0)) + mulhi(digits, low)
    word0 = added
    added = word1 + carry
    word2 = word2 + select(added < word1, u32(1), u32(0))
    word1 = added
    # Shift right by 24 or more, keeping whether anything was cut off; what is left has at most 44 bits.
    cut = u32(0)
    left = shift
    while left >= 32:
        cut = cut | word0
        word0 = word1
        word1 = word2
        word2 = u32(0)
        left = left - 32
    if left > 0:
        cut = cut | (word0 << u32(32 - left))
        word0 = (word0 >> u32(left)) | (word1 << u32(32 - left))
        word1 = (word1 >> u32(left)) | (word2 << u32(32 - left))
    up = select(cut > 0, u32(1), u32(0))
    word0 = word0 + up
    word1 = word1 + select((word0 == 0) & (up == 1), u32(1), u32(0))
    return (word0 >> 12) | (word1 << 20), word0 & LOW_MASK
