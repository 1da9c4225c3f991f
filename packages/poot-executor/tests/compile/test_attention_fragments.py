"""Attention by matrix fragments against the oracle: shapes that fill no tile, masks of every kind, stale positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poot_eval.conformance.crossed import crossed
from poot_eval.kernel_ir import run_kernel
from poot_executor.compile import Caps
from poot_executor.compile.lower.weight_power import weight_power
from poot_executor.compile.schedule_attention import fragment_attention
from poot_executor.compile.schedule_picks import legal
from poot_executor.dtype import BF16, BOOL, F16, F32, I32, round_bf16
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access

CAPS = Caps(
    group_threads=128,
    subgroup_width=32,
    max_bindings=31,
    max_shared_bytes=48 << 10,
    max_group_size=1024,
    features=frozenset(["subgroup", "packed_half", "mma"]),
)
SPLIT = replace(CAPS, parallel_groups=64)
COPIES = replace(CAPS, features=CAPS.features | {"warpgroup"})


def fragments(match):
    return [d for d in match.program.dispatches if d.region == "attention" and "warps" in d.schedule]


def held(array, half):
    return round_bf16(array).reshape(array.shape) if half is BF16 else array.astype(half.numpy)


class Pools:
    """Queries over KV pools that are NaN where nothing was written."""

    def __init__(self, g, rows=1, tokens=20, heads=4, kv_heads=2, depth=32, columns=32, span=90, half=BF16, start=None):
        self.g, self.rows, self.tokens, self.heads, self.span = g, rows, tokens, heads, span
        self.kv_heads, self.depth, self.half = kv_heads, depth, half
        starts = g.rng.integers(0, span - tokens + 1, rows) if start is None else np.full(rows, start)
        self.starts, lasts = starts.astype(np.int32), np.full(rows, tokens - 1, np.int32)
        lasts[-1] = max(0, tokens - 3)
        self.pools = [g.rng.uniform(-2, 2, (rows, span, kv_heads, n)).astype(np.float32) for n in (depth, columns)]
        for pool in self.pools:
            for row in range(rows):
                pool[row, self.starts[row] + lasts[row] + 1 :] = np.nan
        self.q = g.floats(rows, tokens, heads, depth, low=-2, high=2)
        self.position, self.last = g.slot(self.starts, I32), g.slot(lasts, I32)
        self.visible = f.written_mask(self.position, self.last, span)

    def held(self):
        return [self.g.slot(held(pool, self.half), self.half) for pool in self.pools]

    def attend(self, mask=None, window=None, kv=None, activations=None, **options):
        keys, values = self.held() if kv is None else kv
        if mask is None:
            mask = f.causal_mask(self.position, self.last, self.tokens, self.span, window)
        options.setdefault("visible", self.visible)
        return f.attention(
            self.q, keys, values, mask, self.depth**-0.5, activations=activations or self.half, **options
        )


SHAPES = {
    "one fragment": {"tokens": 16, "heads": 1, "kv_heads": 1, "span": 16},
    "heads of three": {"rows": 2, "tokens": 17, "heads": 6, "depth": 96, "columns": 96, "span": 70},
    "head of 64": {"tokens": 40, "depth": 64, "columns": 64, "span": 150},
    "head of 128": {"tokens": 70, "heads": 1, "kv_heads": 1, "depth": 128, "columns": 128, "span": 200},
    "few columns": {"tokens": 33, "heads": 2, "columns": 16, "span": 65},
    "many columns": {"tokens": 9, "heads": 4, "columns": 112, "span": 61},
    "from the first": {"tokens": 24, "start": 0, "span": 130},
    "to the last": {"tokens": 24, "start": 106, "span": 130},
}


@pytest.mark.parametrize(("shape", "way"), crossed(SHAPES, ["registers", "copies"]))
def test_shapes(g, run, shape, way):
    """Tiles come through registers, or are copied."""
    g.output(Pools(g, **SHAPES[shape]).attend())
    match = run(g, COPIES if way == "copies" else CAPS)
    (dispatch,) = fragments(match)
    copies = sum(op.kind == "shared_copy" for op in dispatch.kernel.body.walk())
    assert (copies > 0) == (way == "copies")
    assert all(np.isfinite(x).all() for x in match.result.outputs.values())


def test_a_great_head_has_more_shared_memory(g, run):
    g.output(Pools(g, tokens=16, heads=1, kv_heads=1, depth=256, columns=256, span=40).attend())
    (dispatch,) = fragments(run(g, COPIES))
    assert (dispatch.schedule["positions"], dispatch.schedule["apart"]) == (32, True)


def test_halves_of_the_other_kind(g, run):
    g.output(Pools(g, half=F16).attend())
    (dispatch,) = fragments(run(g, CAPS))
    assert dispatch.schedule["half"] == "f16"


@pytest.mark.parametrize(
    ("warps", "tiles", "positions", "apart"), [(1, 2, 16, 1), (4, 1, 16, 0), (2, 2, 64, 0), (8, 1, 128, 1)]
)
def test_schedules(g, run, warps, tiles, positions, apart):
    g.output(Pools(g, tokens=45, span=100).attend())
    pick = picked(warps=warps, tiles=tiles, positions=positions, apart=apart)
    (dispatch,) = fragments(run(g, replace(CAPS, pick=pick)))
    assert (dispatch.schedule["warps"], dispatch.schedule["tiles"]) == (warps, tiles)
    assert dispatch.groups == (2, -(-90 // (16 * warps * tiles)), 1)


def picked(**values):
    return tuple(sorted(values.items()))


@pytest.mark.parametrize("window", [None, 7, 40])
def test_groups_share_the_positions_of_a_row(g, run, window):
    """Splits, some of which see nothing, in a kernel and one that combines them."""
    a = Pools(g, tokens=18, heads=2, span=300, start=200)
    g.output(a.attend(window=window, sinks=g.floats(2)))
    match = run(g, SPLIT)
    (dispatch,) = fragments(match)
    assert dispatch.schedule["splits"] > 1 and match.regions.count("attention") == 2


@pytest.mark.parametrize("window", [1, 5, 33])
def test_windows(g, run, window):
    g.output(Pools(g, tokens=50, span=140, start=64).attend(window=window))
    assert len(fragments(run(g, CAPS))) == 1


def test_a_mask_that_layers_share_is_not_read(g, run):
    """It is stored for who computes it at every position; its ends are computed by row."""
    a = Pools(g, tokens=20, span=90)
    mask = f.causal_mask(a.position, a.last, a.tokens, a.span, 6)
    for _ in range(2):
        g.output(a.attend(mask))
    assert len(fragments(run(g, CAPS))) == 2


def test_what_families_do_to_scores(g, run):
    a = Pools(g, tokens=20)
    slopes = f.linear_bias(g.floats(4, low=0.1, high=0.5), a.position, a.tokens, a.span)
    g.output(a.attend(softcap=2.0, sinks=g.floats(4, low=-3, high=3)))
    g.output(a.attend(bias=slopes, window=30))
    assert len(fragments(run(g, CAPS))) == 2


@pytest.mark.parametrize("caps", [CAPS, COPIES], ids=["registers", "copies"])
def test_paged_pools(g, run, caps):
    a = Pools(g, rows=2, tokens=18, span=96)
    blocks = g.rng.permutation(2 * 96 // 8).reshape(2, 12).astype(np.int32)
    wide = p.broadcast(p.reshape(g.slot(blocks, I32), (2, 12, 1)), (2, 12, 8))
    places = p.reshape(wide * 8 + p.iota(g.builder, wide.shape, 2, I32), (2, 96))
    kv = []
    for pool in a.pools:
        lain = np.empty((24, 8, *pool.shape[2:]), np.float32)
        lain[blocks.ravel()] = pool.reshape(24, 8, *pool.shape[2:])
        kv.append(p.gather(g.slot(held(lain.reshape(192, *pool.shape[2:]), BF16), BF16), places))
    g.output(a.attend(kv=kv))
    match = run(g, caps)
    assert len(fragments(match)) == 1
    assert all(np.isfinite(x).all() for x in match.result.outputs.values())


@pytest.mark.parametrize("beside", ["alone", "causal"])
def test_a_mask_that_compares_nothing_is_asked(g, run, beside):
    """Any bits, at every position; one row of them sees nothing, and weighs all alike."""
    a = Pools(g, tokens=20, span=70, start=50)
    bits = g.rng.random((1, 20, 70)) < 0.3
    bits[0, 7] = False
    mask = g.slot(bits, BOOL)
    if beside == "causal":
        mask = mask & f.causal_mask(a.position, a.last, a.tokens, a.span)
    a.pools = [np.nan_to_num(pool) for pool in a.pools]
    g.output(a.attend(mask, visible=None))
    assert len(fragments(run(g, CAPS))) == 1


def test_no_mask(g, run):
    q, k, v = (g.floats(1, 2, n, 32, low=-2, high=2) for n in (20, 75, 75))
    k, v = p.cast(k, BF16), p.cast(v, BF16)
    weights = f.softmax(p.cast(q, BF16) @ p.transpose(k, (0, 1, 3, 2)))
    g.output(p.exp((p.cast(weights, BF16) @ v) * 0.1))
    assert len(fragments(run(g, CAPS))) == 1


@pytest.mark.parametrize(
    "shape",
    [{"activations": F32}, {"tokens": 7}, {"depth": 40}, {"columns": 24}, {"depth": 256, "columns": 256, "span": 30}],
    ids=str,
)
def test_what_fragments_do_not_take_goes_on_as_before(g, run, shape):
    """Numbers that would have to be rounded, few rows, heads of odd or great size."""
    activations = shape.pop("activations", None) if "activations" in shape else None
    g.output(Pools(g, **{"tokens": 20, **shape}).attend(activations=activations))
    match = run(g, CAPS)
    assert "attention" in match.regions and not fragments(match)


def pick(rows=8192, batches=8, span=2048, depth=128, columns=128, half=BF16, caps=CAPS, splits=True):
    return fragment_attention(rows, batches, span, depth, columns, half, caps, splits=splits)


def test_the_heuristic():
    prefill = pick()
    assert (prefill.rows, prefill.positions, prefill.apart, prefill.splits) == (64, 64, False, 1)
    assert pick(depth=64, columns=64).positions == 64
    assert pick(rows=20).warps == 2 and pick(rows=16).warps == 1
    few = pick(rows=64, span=4096, caps=SPLIT)
    assert few.splits == 64 // 8
    assert pick(rows=64, span=4096, caps=SPLIT, splits=False).splits == 1
    assert pick(rows=15) is None and pick(half=None) is None
    assert pick(caps=replace(CAPS, features=CAPS.features - {"mma"})) is None
    assert pick(caps=replace(CAPS, max_shared_bytes=20 << 10)).positions < prefill.positions
    assert pick(caps=replace(CAPS, max_shared_bytes=4 << 10)) is None
    assert pick(depth=256, columns=256) is None and pick(depth=256, columns=256, caps=COPIES).positions == 32


@pytest.mark.parametrize("depth", [32, 64, 96, 128])
def test_lines_of_shared_memory_meet_every_bank_once(depth):
    """Vectors of eight lanes at a time: of two positions of K, of four of V, every other one."""
    made = pick(depth=depth, columns=depth)
    keys = [(g * made.key_pitch + 4 * t + w) % 32 for g in range(2) for t in range(4) for w in range(4)]
    values = [(2 * t * made.value_pitch + 4 * g + w) % 32 for g in range(2) for t in range(4) for w in range(4)]
    assert sorted(keys) == sorted(values) == list(range(32))


def test_powers_of_weights(rng):
    """Within one unit in the last place, denormals too; a score that is no number stays none."""
    count, group = 1 << 12, 64
    b = KernelBuilder("powers", group)
    x, y = b.buffer("x", F32, Access.READ), b.buffer("y", F32, Access.READ_WRITE)
    i = b.group_id() * group + b.thread_id()
    y[i] = weight_power(x[i])
    given = (-np.exp2(rng.uniform(-30, 7, count))).astype(np.float32)
    given[:6] = [0.0, -0.0, -104.0, -103.9, -3e38, -np.inf]
    given[6] = np.nan
    result = np.zeros(count, np.float32)
    assert not run_kernel(b.finish(), [given, result], (count // group, 1, 1))
    exact = np.exp(given.astype(np.float64))
    step = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert np.isnan(result[6]) and (np.abs(result - exact) <= step)[np.arange(count) != 6].all()
    assert result[:2].tolist() == [1.0, 1.0] and result[[2, 4, 5]].tolist() == [0.0] * 3 and result[3] > 0.0


def test_picks():
    key = "attention 8192x128 8 span=2048 depth=128 bf16 masked"
    for pick_ in ({"warps": 8}, {"positions": 32, "tiles": 2}, {"fragments": 0}):
        assert legal(key, picked(**pick_), CAPS) is None
    for pick_ in ({"warps": 3}, {"positions": 40}, {"tiles": 5}, {"fragments": 1}):
        assert legal(key, picked(**pick_), CAPS) is not None
    assert legal(key, picked(warps=8), replace(CAPS, features=frozenset(["subgroup"]))) is not None
