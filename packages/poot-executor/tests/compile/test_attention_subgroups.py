"""Attention whose subgroups gather for themselves: lanes that share rows of V in every way, and a tile of many."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from poot_eval.conformance.crossed import crossed
from poot_executor.compile import Caps
from poot_executor.dtype import BF16, F32, I32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

FOUR = Caps(group_threads=16, parallel_groups=32, subgroup_width=4, max_bindings=31, features=frozenset(["subgroup"]))
WARP = Caps(
    group_threads=128, subgroup_width=32, max_bindings=31, max_shared_bytes=48 << 10, features=frozenset(["subgroup"])
)


def attended(g, rows, tokens, heads, kv_heads, depth, columns, span, dtype=F32):
    """Causal grouped attention from random positions."""
    group = heads // kv_heads
    q = g.floats(rows, kv_heads, group * tokens, depth, low=-2, high=2)
    k = g.floats(rows, kv_heads, span, depth, dtype=dtype, low=-2, high=2)
    v = g.floats(rows, kv_heads, span, columns, dtype=dtype)
    starts = g.rng.integers(0, span - tokens + 1, rows).astype(np.int32)
    at = p.reshape(g.slot(starts, I32), (rows, 1, 1)) + p.iota(g.builder, (1, tokens, 1), 1, I32)
    shape = (rows, tokens, span)
    mask = p.iota(g.builder, shape, 2, I32) <= p.broadcast(at, shape)
    wide = p.broadcast(p.reshape(mask, (rows, 1, 1, tokens, span)), (rows, kv_heads, group, tokens, span))
    scores = p.cast(q, dtype) @ p.transpose(k, (0, 1, 3, 2)) * (1 / sqrt(depth))
    seen = p.reshape(wide, scores.shape)
    weights = f.softmax(p.select(seen, scores, g.builder.splat(f.MASKED, scores.type)))
    return weights @ p.cast(v, F32)


@pytest.mark.parametrize("columns", [4, 8, 16, 32], ids=lambda c: f"columns{c}")
@pytest.mark.parametrize("tokens", [1, 3])
def test_lanes_share_rows_of_values(g, run, columns, tokens):
    g.output(attended(g, 2, tokens, 4, 2, 8, columns, 43))
    dispatches = run(g, FOUR).program.dispatches
    assert [d.schedule["subgroups"] for d in dispatches if "subgroups" in d.schedule] == [True]


@pytest.mark.parametrize(
    ("head", "dtype", "early"), crossed([(64, 64), (128, 128), (32, 256)], [F32, BF16], [0, 64, 128])
)
def test_heads_of_published_sizes(g, run, head, dtype, early):
    """With room in registers for nothing of the first tile, for keys, and for values as well."""
    depth, columns = head
    g.output(attended(g, 1, 1, 4, 1, depth, columns, 300, dtype))
    caps = replace(WARP, early_words=early, parallel_groups=4)
    (dispatch,) = (d for d in run(g, caps).program.dispatches if "subgroups" in d.schedule)
    assert dispatch.schedule["subgroups"] and dispatch.schedule["early"] == (early > 0)


@pytest.mark.parametrize("columns", [4, 8, 16, 32], ids=lambda c: f"columns{c}")
@pytest.mark.parametrize("lanes", [2, 4])
def test_lanes_share_positions(g, run, columns, lanes):
    """Where a subgroup has fewer positions than it reads rows of V at once, each lane has one of its own."""
    g.output(attended(g, 2, 3, 4, 2, 16, columns, 43))
    (dispatch,) = (
        d
        for d in run(g, replace(FOUR, parallel_groups=999, position_lanes=lanes)).program.dispatches
        if "subgroups" in d.schedule
    )
    taken = 4 // min(columns // 4, 4) <= 4 // lanes
    assert (dispatch.schedule["lanes"], dispatch.schedule["threads"]) == ((lanes, 16 * lanes) if taken else (1, 16))


@pytest.mark.parametrize(
    ("head", "dtype", "early"), crossed([(64, 64), (128, 128), (32, 256)], [F32, BF16], [0, 16, 128])
)
def test_lanes_share_positions_of_published_heads(g, run, head, dtype, early):
    depth, columns = head
    g.output(attended(g, 1, 1, 4, 1, depth, columns, 300, dtype))
    caps = replace(WARP, early_words=early, parallel_groups=99, position_lanes=4, max_group_size=1024)
    (dispatch,) = (d for d in run(g, caps).program.dispatches if "subgroups" in d.schedule)
    assert (dispatch.schedule["lanes"], dispatch.schedule["threads"]) == (4, 512)


@pytest.mark.parametrize(
    ("depth", "change"),
    [(8, {}), (16, {"max_group_size": 32}), (16, {"max_shared_bytes": 1100}), (16, {"parallel_groups": 4})],
    ids=str,
)
def test_positions_that_lanes_cannot_share_have_a_lane_each(g, run, depth, change):
    g.output(attended(g, 1, 2, 2, 2, depth, 16, 30))
    caps = replace(FOUR, **{"parallel_groups": 999, "position_lanes": 4, **change})
    (dispatch,) = (d for d in run(g, caps).program.dispatches if "subgroups" in d.schedule)
    assert dispatch.schedule["subgroups"] and dispatch.schedule["lanes"] == 1


def test_columns_that_lanes_cannot_share_go_on_as_before(g, run):
    g.output(attended(g, 1, 2, 2, 2, 8, 12, 30))
    (dispatch,) = (d for d in run(g, FOUR).program.dispatches if "subgroups" in d.schedule)
    assert not dispatch.schedule["subgroups"]
