"""A row's greatest scores in shared memory, found in two sweeps over the row instead of one a bit or a pick.

Every thread keeps the maxima of a few buckets of its own. The n-th greatest of all buckets' maxima is a bound that at
least n scores of the row reach, and seldom many more: a bucket with several of them holds as many of them back. What
reaches the bound is listed, in any order, and whoever reads the list compares every entry with every other.
"""

from __future__ import annotations

from poot_executor.kernel.buffers import SharedRef
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.lang import Hook, device, f32, group_sum, i32, select, static, u32
from poot_executor.kernels.scores import LOWEST, key_of, scaled

BUCKETS = 4
"""Buckets of a thread: the scores that it reads at once."""
ENTRIES = 512
"""Scores that a list holds."""
BOUND_BITS = 20
"""Bits of a bound's key: the sign, the exponent and 11 bits of the fraction."""


@device
def maxima(quad: Hook, row: Handle, scale: Handle, first: Handle, step: int, count: int) -> tuple[Handle, ...]:
    """The maxima of the thread's buckets; `quad(row, i)` gives the logits i to i + 3, -inf beyond the row's `count`."""
    m0 = f32(LOWEST)
    m1 = f32(LOWEST)
    m2 = f32(LOWEST)
    m3 = f32(LOWEST)
    for i in range(first * BUCKETS, count, step * BUCKETS):
        four = quad(row, i)
        m0 = max(m0, scaled(four[0], scale))
        m1 = max(m1, scaled(four[1], scale))
        m2 = max(m2, scaled(four[2], scale))
        m3 = max(m3, scaled(four[3], scale))
    return m0, m1, m2, m3


@device
def bound_of(buckets: tuple[Handle, ...], wanted: Handle) -> Handle:
    """A key that at least `wanted` buckets of the group reach, the greatest but for its last bits; 0 where there are
    fewer buckets."""
    found = u32(0)
    for bit in range(BOUND_BITS):
        candidate = found | (u32(1) << u32(31 - bit))
        reached = i32(0)
        for j in static(range(BUCKETS)):
            reached = reached + select(key_of(buckets[j]) >= candidate, 1, 0)
        found = select(group_sum(reached) >= wanted, candidate, found)
    return found


@device
def list_score(score: Handle, id: Handle, floor: Handle, scores: SharedRef, ids: SharedRef, listed: SharedRef) -> None:
    """Add a score whose key reaches the floor, and is not the lowest of all, to the list; `listed[0]` counts them, also
    those that have no place any more."""
    if (key_of(score) >= floor) & (score > LOWEST):
        place = i32(listed.atomic("add", 0, u32(1)))
        if place < ENTRIES:
            scores[place] = score
            ids[place] = id
