"""What operations on packed halves and register fragments compute, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import round_bf16

Array = NDArray[Any]

LANES = 32
"""Lanes of a subgroup that multiplies fragments."""


def halves(word: Array, half: str) -> tuple[Array, Array]:
    """The two bf16 or f16 of u32 words as float32, the low one first."""
    low, high = word & np.uint32(0xFFFF), word >> np.uint32(16)
    if half == "bf16":
        return (low << np.uint32(16)).view(np.float32), (high << np.uint32(16)).view(np.float32)
    first, second = (part.astype(np.uint16).view(np.float16).astype(np.float32) for part in (low, high))
    return first, second


def packed(low: Array, high: Array, half: str) -> Array:
    """Two float arrays, each rounded once to nearest even, as the halves of u32 words."""
    first, second = (_bits(_odd(x), half) for x in (low, high))
    return first | (second << np.uint32(16))


def pack_bf16(low: Array, high: Array) -> Array:
    """The operation `pack_bf16`."""
    low, high = np.broadcast_arrays(low, high)
    return packed(low, high, "bf16")


def packed_fma(a: Array, b: Array, c: Array, half: str) -> Array:
    """The operation `packed_fma`: products and all but absurdly distant sums are exact in float64."""
    parts = zip(*(halves(x, half) for x in np.broadcast_arrays(a, b, c)), strict=True)
    low, high = (x.astype(np.float64) * y + z for x, y, z in parts)
    return packed(low, high, half)


def mma(a: Array, b: Array, c: Array, half: str) -> Array:
    """The operation `mma` on values [groups, threads, words] of whole subgroups: summed in float64, rounded once."""
    left, right, start = (_matrices(x) for x in (a, b, c))
    # [subgroups, lane group g, lane t, word, half of the word]
    x = np.stack(halves(left, half), axis=-1).reshape(-1, 8, 4, 4, 2).astype(np.float64)
    y = np.stack(halves(right, half), axis=-1).reshape(-1, 8, 4, 2, 2).astype(np.float64)
    z = start.reshape(-1, 8, 4, 2, 2)
    # Word w of a holds row g + 8·(w mod 2) and columns 2t + 8·(w div 2); b likewise by column.
    rows = x.reshape(-1, 8, 4, 2, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, 16)
    columns = y.transpose(0, 3, 2, 4, 1).reshape(-1, 16, 8)
    before = z.transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)
    after = (rows @ columns + before).astype(np.float32)
    return after.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(*c.shape[:2], 4)


def _matrices(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1, LANES, x.shape[-1])


def _odd(x: Array) -> Array:
    """To float32, rounded to odd: rounding that once more to a half is as rounding the original."""
    narrow = x.astype(np.float32)
    if x.dtype == np.float32:
        return narrow
    outward = np.abs(narrow.astype(np.float64)) > np.abs(x)
    bits = narrow.view(np.uint32) - outward.astype(np.uint32)
    inexact = (narrow.astype(np.float64) != x) & np.isfinite(x)
    return np.where(inexact, bits | np.uint32(1), narrow.view(np.uint32)).view(np.float32)


def _bits(x: Array, half: str) -> Array:
    if half == "bf16":
        return round_bf16(x).view(np.uint32) >> np.uint32(16)
    return x.astype(np.float16).view(np.uint16).astype(np.uint32)
