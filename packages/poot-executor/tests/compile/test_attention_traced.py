"""Attention as families trace it, over pools that hold stale numbers where nothing was written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poot_executor.compile import Caps
from poot_executor.dtype import BF16, F16, F32, I32, round_bf16
from poot_executor.graph import functional as f

ROWS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
PLAIN = Caps(tile_rows=4, group_threads=16, max_bindings=31)
SPLIT = Caps(
    group_threads=8,
    parallel_groups=64,
    early_words=128,
    subgroup_width=4,
    max_bindings=31,
    features=frozenset(["subgroup"]),
)
SHARED = replace(SPLIT, parallel_groups=999, position_lanes=2)
CAPS = {"rows": ROWS, "plain": PLAIN, "split": SPLIT, "shared": SHARED}


def traced(g, tokens, span=35, seen=None, dtype=F32, activations=F32, **options):
    """`functional.attention` over a pool whose positions past what was written are NaN."""
    rows, heads, kv_heads, width = 2, 4, 2, 16
    position = np.array([span - tokens, 3], np.int32) if seen is None else np.array(seen, np.int32)
    last = np.full(rows, tokens - 1, np.int32)
    last[1] = 0
    pools = [g.rng.standard_normal((rows, span, kv_heads, width)).astype(np.float32) for _ in "kv"]
    for pool in pools:
        for row in range(rows):
            pool[row, max(0, position[row] + last[row] + 1) :] = np.nan
    position, last = g.slot(position, I32), g.slot(last, I32)
    hold = round_bf16 if dtype is BF16 else lambda x: x.astype(dtype.numpy)
    k, v = (g.slot(hold(pool).reshape(pool.shape), dtype) for pool in pools)
    mask = f.causal_mask(position, last, tokens, span, options.pop("window", None))
    visible = f.written_mask(position, last, span)
    q = g.floats(rows, tokens, heads, width, low=-1, high=1)
    g.output(f.attention(q, k, v, mask, width**-0.5, visible, activations=activations, **options))


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("tokens", [1, 4])
def test_stale_positions_never_show(g, run, caps, tokens):
    traced(g, tokens)
    match = run(g, CAPS[caps])
    assert set(match.regions) == ({"attention"} if tokens == 1 else {"attention", "pointwise"})
    assert all(np.isfinite(x).all() for x in match.result.outputs.values())


@pytest.mark.parametrize("options", [{"window": 5}, {"softcap": 2.0}, {"window": 3, "softcap": 5.0}], ids=str)
def test_what_families_ask_for(g, run, options):
    """A window makes the mask dear enough to be computed once for all layers."""
    traced(g, 1, **options)
    assert run(g, PLAIN).regions == (("pointwise", "attention") if "window" in options else ("attention",))


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_narrow_pools_and_activations(g, run, dtype):
    traced(g, 1, dtype=dtype, activations=dtype)
    assert run(g, ROWS).regions == ("attention",)
