"""The sampled draw: min-p, top-k, top-p and Gumbel-max over one row of logits, a group a row.

`graph.sampling` states the steps. Nothing is sorted. A row that filters nothing takes one sweep, which draws, or was
drawn by many groups before (`draw_parts`). Others list the row's greatest scores (`shortlist`), and what is kept is
decided by comparing the entries. Where the list does not hold all that is kept (a flat row with a great top-p),
thresholds are built bit by bit from the highest, a sweep a bit, which counts (top-k) or weighs (top-p) what lies at or
above the candidate.
"""

from __future__ import annotations

from poot_executor.kernel.lang import (
    Hook,
    Shared,
    barrier,
    f32,
    group_id,
    group_max,
    group_min,
    group_size,
    group_sum,
    i32,
    kernel,
    log,
    select,
    static,
    thread_id,
    u32,
)  # fmt: skip
from poot_executor.kernels.mass import LOW_BITS, LOW_MASK, carried, falls_short, reaches, share_of
from poot_executor.kernels.noise import perturbed
from poot_executor.kernels.scores import LOWEST, key_of, scaled, weight_of
from poot_executor.kernels.shortlist import BUCKETS, ENTRIES, bound_of, list_score, maxima

VOCABULARY_MOST = 1 << 20
"""Ids up to which the halves of the mass fit."""
NUCLEUS = 256
"""Scores that are listed for a top-p without a top-k, where half the buckets are as many."""


@kernel
def sample_token(
    *,
    quad: Hook,
    seed: Hook,
    position: Hook,
    setting: Hook,
    top_k: Hook,
    store: Hook,
    drawn: tuple[Hook, ...],
    count: int,
    parts: int,
) -> None:
    """store(row, id of the draw) for row = group; `count` ids, of which `quad(row, i)` gives the logits i to i + 3.

    `drawn` is empty, or the two hooks of `draw_parts`, which has drawn rows that filter nothing in `parts` parts.
    """
    row = group_id(0)
    first = thread_id()
    step = group_size()
    scale = setting(row, i32(0))
    min_p = setting(row, i32(1))
    top_p = setting(row, i32(2))
    noise = setting(row, i32(3))
    most = top_k(row)
    key0 = seed(row, i32(0))
    key1 = seed(row, i32(1))
    at = u32(position(row))

    scores = Shared(f32, ENTRIES)
    ids = Shared(i32, ENTRIES)
    weights = Shared(u32, ENTRIES)
    above_high = Shared(u32, ENTRIES)
    above_low = Shared(u32, ENTRIES)
    listed = Shared(u32, 1)

    best = f32(LOWEST)
    place = i32(count)
    threshold = u32(0)
    settled = i32(0)
    top = f32(LOWEST)

    if (most > 0) | (top_p < 1.0) | (min_p > 0.0):
        buckets = maxima(quad, row, scale, first, step, count)
        top = group_max(max(buckets[0], buckets[1], buckets[2], buckets[3]))
        if min_p > 0.0:
            threshold = min(key_of(scaled(top + log(min_p), f32(1.0))), key_of(top))

        wanted = select(most > 0, most, i32(min(NUCLEUS, BUCKETS * step // 2)))
        if ((most > 0) | (top_p < 1.0)) & (wanted <= ENTRIES // 2):
            bound = bound_of(buckets, wanted)
            floor = max(bound, threshold)
            if first == 0:
                listed[0] = u32(0)
            barrier()
            low = u32(0)
            high = u32(0)
            for i in range(first * BUCKETS, count, step * BUCKETS):
                four = quad(row, i)
                for j in static(range(BUCKETS)):
                    score = scaled(four[j], scale)
                    if most <= 0:
                        mass = select(key_of(score) >= threshold, weight_of(score, top), u32(0))
                        low = low + (mass & LOW_MASK)
                        high = high + (mass >> LOW_BITS)
                    list_score(score, i + j, floor, scores, ids, listed)
            barrier()
            entries = i32(listed[0])
            if (entries > 0) & (entries <= ENTRIES):
                for e in range(first, entries, step):
                    weights[e] = weight_of(scores[e], top)
                barrier()
                own_low = u32(0)
                own_high = u32(0)
                for e in range(first, entries, step):
                    score = scores[e]
                    rank = i32(0)
                    over_low = u32(0)
                    over_high = u32(0)
                    for other in range(entries):
                        over = scores[other] > score
                        mass = select(over, weights[other], u32(0))
                        rank = rank + select(over, 1, 0)
                        over_low = over_low + (mass & LOW_MASK)
                        over_high = over_high + (mass >> LOW_BITS)
                    over_high, over_low = carried(over_high, over_low)
                    kept = (most <= 0) | (rank < most)
                    own_low = own_low + select(kept, weights[e] & LOW_MASK, u32(0))
                    own_high = own_high + select(kept, weights[e] >> LOW_BITS, u32(0))
                    # What top-k drops has more above it than any target.
                    above_high[e] = select(kept, over_high, ~u32(0))
                    above_low[e] = over_low
                own_high, own_low = carried(group_sum(own_high), group_sum(own_low))
                if most <= 0:
                    high, low = carried(group_sum(high), group_sum(low))
                else:
                    high = own_high
                    low = own_low
                target_high = ~u32(1)
                target_low = u32(0)
                if top_p < 1.0:
                    target_high, target_low = share_of(top_p, high, low)
                # All that is kept is listed: the k greatest, all that min-p leaves, or what reaches the target.
                whole = (most > 0) | (bound <= threshold) | reaches(own_high, own_low, target_high, target_low)
                if whole:
                    settled = i32(1)
                    for e in range(first, entries, step):
                        score = scores[e]
                        below = falls_short(above_high[e], above_low[e], target_high, target_low)
                        if below | (score == top):
                            value = perturbed(score, noise, key0, key1, at, ids[e])
                            if (value > best) | ((value == best) & (ids[e] < place)):
                                best = value
                                place = ids[e]

    elif parts > 0:
        settled = i32(1)
        for part in range(first, parts, step):
            score = drawn[0](row * parts + part)
            id = i32(drawn[1](row * parts + part))
            if (score > best) | ((score == best) & (id < place)):
                best = score
                place = id

    if settled == 0:
        if most > 0:
            found = u32(0)
            for bit in range(32):
                candidate = found | (u32(1) << u32(31 - bit))
                reached = i32(0)
                for i in range(first * BUCKETS, count, step * BUCKETS):
                    four = quad(row, i)
                    for j in static(range(BUCKETS)):
                        inside = i + j < count
                        hit = inside & (key_of(scaled(four[j], scale)) >= candidate)
                        reached = reached + select(hit, 1, 0)
                found = select(group_sum(reached) >= most, candidate, found)
            threshold = max(threshold, found)

        if top_p < 1.0:
            low = u32(0)
            high = u32(0)
            for i in range(first * BUCKETS, count, step * BUCKETS):
                four = quad(row, i)
                for j in static(range(BUCKETS)):
                    score = scaled(four[j], scale)
                    mass = select(key_of(score) >= threshold, weight_of(score, top), u32(0))
                    low = low + (mass & LOW_MASK)
                    high = high + (mass >> LOW_BITS)
            high, low = carried(group_sum(high), group_sum(low))
            target_high, target_low = share_of(top_p, high, low)
            found = u32(0)
            for bit in range(32):
                candidate = found | (u32(1) << u32(31 - bit))
                low = u32(0)
                high = u32(0)
                for i in range(first * BUCKETS, count, step * BUCKETS):
                    four = quad(row, i)
                    for j in static(range(BUCKETS)):
                        score = scaled(four[j], scale)
                        heavy = key_of(score) >= max(candidate, threshold)
                        mass = select(heavy, weight_of(score, top), u32(0))
                        low = low + (mass & LOW_MASK)
                        high = high + (mass >> LOW_BITS)
                high, low = carried(group_sum(high), group_sum(low))
                found = select(reaches(high, low, target_high, target_low), candidate, found)
            threshold = max(threshold, min(found, key_of(top)))

        for i in range(first * BUCKETS, count, step * BUCKETS):
            four = quad(row, i)
            for j in static(range(BUCKETS)):
                score = scaled(four[j], scale)
                # What lies beyond the row is -inf at a place that is none, and never wins.
                if key_of(score) >= threshold:
                    value = perturbed(score, noise, key0, key1, at, i + j)
                    if (value > best) | ((value == best) & (i + j < place)):
                        best = value
                        place = i + j

    winner = group_max(best)
    lowest = group_min(select(best == winner, place, i32(count)))
    if first == 0:
        store(row, lowest)
