"""Draws of rows that filter nothing, in parts: a group a part of a row, so that the noise of many ids is shared out."""

from __future__ import annotations

from poot_executor.kernel.lang import (
    Hook,
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
from poot_executor.kernels.noise import perturbed
from poot_executor.kernels.scores import LOWEST, scaled
from poot_executor.kernels.shortlist import BUCKETS


@kernel
def draw_parts(
    *,
    quad: Hook,
    seed: Hook,
    position: Hook,
    setting: Hook,
    top_k: Hook,
    best_of: Hook,
    place_of: Hook,
    count: int,
    parts: int,
) -> None:
    """best_of and place_of [row, part]: the greatest perturbed score of every `parts`-th run of ids, and its lowest id,
    for rows without top-k, top-p and min-p. Of other rows nothing is written.
    """
    row = group_id(0)
    part = group_id(1)
    first = thread_id()
    run = group_size() * BUCKETS
    scale = setting(row, i32(0))
    noise = setting(row, i32(3))
    if (top_k(row) <= 0) & (setting(row, i32(2)) >= 1.0) & (setting(row, i32(1)) <= 0.0):
        key0 = seed(row, i32(0))
        key1 = seed(row, i32(1))
        at = u32(position(row))
        best = f32(LOWEST)
        place = i32(count)
        for i in range(part * run + first * BUCKETS, count, parts * run):
            four = quad(row, i)
            for j in static(range(BUCKETS)):
                value = perturbed(scaled(four[j], scale), noise, key0, key1, at, i + j)
                # What lies beyond the row is -inf at a place that is none, and never wins.
                if (value > best) | ((value == best) & (i + j < place)):
                    best = value
                    place = i + j
        winner = group_max(best)
        lowest = group_min(select(best == winner, place, i32(count)))
        if first == 0:
            best_of(row * parts + part, winner)
            place_of(row * parts + part, f32(lowest))
