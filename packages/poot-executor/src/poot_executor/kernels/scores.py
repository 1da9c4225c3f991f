"""Scores of a row: what is drawn from, how they order as integers, and what they weigh."""

from __future__ import annotations

from poot_executor.kernel.handle import Handle
from poot_executor.kernel.lang import bitcast, device, exp, rint, select, u32

LOWEST = float("-inf")
LOWEST_KEY = 0x007FFFFF
"""`key_of(LOWEST)`."""


@device
def scaled(logit: Handle, scale: Handle) -> Handle:
    """The score of a logit: NaN counts as -inf, and the two zeros are one."""
    score = logit * scale
    score = select(score == score, score, LOWEST)
    return select(score == 0.0, 0.0, score)


@device
def key_of(score: Handle) -> Handle:
    """A u32 that orders as the scores do."""
    bits = bitcast(score, u32)
    return select((bits >> 31) == 1, ~bits, bits | 0x80000000)


@device
def weight_of(score: Handle, top: Handle) -> Handle:
    """round_half_even(exp(score - top) · 2^24) as u32; 0 where that is no number."""
    power = exp(score - top)
    power = select(power == power, power, 0.0)
    return u32(rint(power * 16777216.0))
