"""The sampled draw: min-p, top-k, top-p and Gumbel-max over one row of logits, a group a row.

`graph.sampling` states the steps. Nothing is sorted: scores map to u32 keys of the same order, and a threshold is built
bit by bit from the highest, each bit one sweep that counts (top-k) or weighs (top-p) what lies at or above the
candidate. The mass is summed in integers, as two halves of 12 bits whose sums fit 32 bits for a vocabulary below 2^20,
so that it does not depend on order.
"""

from __future__ import annotations

from poot_executor.kernel.handle import Handle
from poot_executor.kernel.lang import (
    Hook,
    bitcast,
    device,
    exp,
    f32,
    group_id,
    group_max,
    group_min,
    group_size,
    group_sum,
    i32,
    kernel,
    log,
    mulhi,
    rint,
    select,
    thread_id,
    u32,
)  # fmt: skip
from poot_executor.kernels.threefry import threefry

VOCABULARY_MOST = 1 << 20
"""Ids up to which the halves of the mass fit."""
LOWEST = float("-inf")


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


@device
def gumbel(bits: Handle) -> Handle:
    """-log(-log(u)) for u = ((bits >> 9) + 0.5) · 2^-23."""
    u = (f32(bits >> 9) + 0.5) * (2.0**-23)
    return -log(-log(u))


@kernel
def sample_token(
    *, logit: Hook, seed: Hook, position: Hook, setting: Hook, top_k: Hook, store: Hook, count: int
) -> None:
    """store(row, id of the draw) for row = group; `count` ids."""
    row = group_id(0)
    first = thread_id()
    step = group_size()
    scale = setting(row, i32(0))
    min_p = setting(row, i32(1))
    top_p = setting(row, i32(2))
    noise = setting(row, i32(3))
    most = top_k(row)

    best = f32(LOWEST)
    for i in range(first, count, step):
        score = scaled(logit(row, i), scale)
        best = select(score > best, score, best)
    top = group_max(best)
    top_key = key_of(top)

    threshold = u32(0)
    if min_p > 0.0:
        threshold = min(key_of(scaled(top + log(min_p), f32(1.0))), top_key)

    if most > 0:
        found = u32(0)
        for bit in range(32):
            candidate = found | (u32(1) << u32(31 - bit))
            above = i32(0)
            for i in range(first, count, step):
                key = key_of(scaled(logit(row, i), scale))
                above = above + select(key >= candidate, 1, 0)
            found = select(group_sum(above) >= most, candidate, found)
        threshold = max(threshold, found)

    if top_p < 1.0:
        low = u32(0)
        high = u32(0)
        for i in range(first, count, step):
            score = scaled(logit(row, i), scale)
            mass = select(key_of(score) >= threshold, weight_of(score, top), u32(0))
            low = low + (mass & 4095)
            high = high + (mass >> 12)
        low = group_sum(low)
        high = group_sum(high) + (low >> 12)
        low = low & 4095
        # The target is ceil(top_p · total), exactly: top_p = digits · 2^-shift, total = high · 2^12 + low, a product of
        # 66 bits.
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
        # Shift right by 24 or more, keeping whether anything was cut off; what is left has at most 42 bits.
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
        target_low = word0 & 4095
        target_high = (word0 >> 12) | (word1 << 20)

        found = u32(0)
        for bit in range(32):
            candidate = found | (u32(1) << u32(31 - bit))
            low = u32(0)
            high = u32(0)
            for i in range(first, count, step):
                score = scaled(logit(row, i), scale)
                key = key_of(score)
                mass = select(key >= max(candidate, threshold), weight_of(score, top), u32(0))
                low = low + (mass & 4095)
                high = high + (mass >> 12)
            low = group_sum(low)
            high = group_sum(high) + (low >> 12)
            low = low & 4095
            enough = (high > target_high) | ((high == target_high) & (low >= target_low))
            found = select(enough, candidate, found)
        threshold = max(threshold, min(found, top_key))

    key0 = seed(row, i32(0))
    key1 = seed(row, i32(1))
    at = u32(position(row))
    best = f32(LOWEST)
    place = i32(count)
    for i in range(first, count, step):
        score = scaled(logit(row, i), scale)
        if key_of(score) >= threshold:
            if noise != 0.0:
                score = score + noise * gumbel(threefry(key0, key1, at, u32(i)))
                score = select(score == score, score, LOWEST)
            if (score > best) | ((score == best) & (i < place)):
                best = score
                place = i
    winner = group_max(best)
    lowest = group_min(select(best == winner, place, i32(count)))
    if first == 0:
        store(row, lowest)
