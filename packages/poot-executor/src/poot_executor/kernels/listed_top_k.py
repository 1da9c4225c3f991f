"""The greatest of a long row, in order: a group a row, over a list of the row's greatest scores (`shortlist`)."""

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
    i32,
    kernel,
    select,
    static,
    thread_id,
    u32,
)  # fmt: skip
from poot_executor.kernels.scores import LOWEST, scaled
from poot_executor.kernels.shortlist import BUCKETS, ENTRIES, bound_of, list_score, maxima


@kernel
def listed_top_k(*, quad: Hook, store: Hook, count: int, wanted: int) -> None:
    """store(row · wanted + i, id of the i-th greatest) for row = group, ties to the lowest id; NaN counts as -inf.

    `quad(row, i)` gives the elements i to i + 3 of `count`; `wanted` is at most half of what a list holds.
    """
    row = group_id(0)
    first = thread_id()
    step = group_size()
    one = f32(1.0)
    scores = Shared(f32, ENTRIES)
    ids = Shared(i32, ENTRIES)
    listed = Shared(u32, 1)

    floor = bound_of(maxima(quad, row, one, first, step, count), i32(wanted))
    if first == 0:
        listed[0] = u32(0)
    barrier()
    for i in range(first * BUCKETS, count, step * BUCKETS):
        four = quad(row, i)
        for j in static(range(BUCKETS)):
            list_score(scaled(four[j], one), i + j, floor, scores, ids, listed)
    barrier()
    entries = i32(listed[0])
    if (entries >= wanted) & (entries <= ENTRIES):
        for e in range(first, entries, step):
            rank = i32(0)
            for other in range(entries):
                before = (scores[other] > scores[e]) | ((scores[other] == scores[e]) & (ids[other] < ids[e]))
                rank = rank + select(before, 1, 0)
            if rank < wanted:
                store(row * wanted + rank, ids[e])
    else:
        # Too many ties, or too few numbers: a sweep a pick, over what comes after the last one.
        last = f32(0.0)
        after = i32(-1)
        for pick in range(wanted):
            best = f32(LOWEST)
            place = i32(count)
            for i in range(first * BUCKETS, count, step * BUCKETS):
                four = quad(row, i)
                for j in static(range(BUCKETS)):
                    score = scaled(four[j], one)
                    left = (after < 0) | (score < last) | ((score == last) & (i + j > after))
                    if left & ((score > best) | ((score == best) & (i + j < place))):
                        best = score
                        place = i + j
            last = group_max(best)
            after = group_min(select(best == last, place, i32(count)))
            if first == 0:
                store(row * wanted + pick, after)
