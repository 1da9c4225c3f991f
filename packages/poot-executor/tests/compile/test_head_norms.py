"""Norms over each head between a projection and its rotation or write: part of the projection, where a group has whole
heads at a cost that pays."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.crossed import crossed
from poot_executor.compile import Caps
from poot_executor.dtype import BF16, F32, I32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

# A thread with rows of its own; the same without subgroups; lanes that share rows, in one subgroup and in two.
ROWS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
PLAIN = Caps(tile_rows=4, group_threads=16, max_bindings=31)
LANES = Caps(group_threads=64, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
CAPS = {"rows": ROWS, "plain": PLAIN, "lanes": LANES}
WIDTH = 64


def linear(g, x, rows, name="f32", bias=False):
    format_ = FORMATS[name]
    return f.linear(x, g.weight(format_, rows, x.shape[-1]), format_, g.floats(rows) if bias else None)


def normed(g, tokens):
    return f.rms_norm(g.floats(1, tokens, WIDTH), g.floats(WIDTH), 1e-5)


def heads_of(g, h, count, head, **options):
    return p.reshape(linear(g, h, count * head, **options), (1, h.shape[1], count, head))


def table(g, tokens, half):
    angle = g.rng.uniform(-3, 3, (1, tokens, half)).astype(np.float32)
    return g.slot(np.cos(angle), F32), g.slot(np.sin(angle), F32)


def written(g, role, rows, dtype=F32):
    """Rows of a token each [1, tokens, heads, head], put into a pool; the last of several is dropped."""
    _, tokens, heads, head = rows.shape
    places = g.rng.permutation(24)[:tokens].astype(np.int32)
    places[tokens // 2 :] = -1 if tokens > 1 else places[tokens // 2 :]
    key, before = g.state(role, g.rng.integers(0, 9, (24, heads, head)).astype(dtype.numpy), dtype)
    fresh = p.cast(p.reshape(rows, (tokens, heads, head)), dtype)
    g.builder.next_state(key, p.scatter_update(before, g.slot(places, I32), fresh))


def rms(g, x):
    return f.rms_norm(x, g.floats(x.shape[-1], low=0.5, high=1.5), 1e-5)


def layer(g, x):
    return f.layer_norm(x, g.floats(x.shape[-1], low=0.5, high=1.5), g.floats(x.shape[-1]), 1e-3)


def by_the_greatest(g, x):
    most = p.reshape(p.reduce_max(p.abs_(x), 3), (*x.shape[:-1], 1))
    return x / (most + 1.0)


@pytest.mark.parametrize(("norm", "tokens", "caps"), crossed([rms, layer, by_the_greatest], [1, 3, 9], CAPS))
def test_a_layers_projection_norms_its_heads(g, run, caps, tokens, norm):
    """Q and K normed, rotated and K written, V written as it is: one dispatch, its own norm first."""
    h, turn = normed(g, tokens), table(g, tokens, 8)
    q, k, v = (heads_of(g, h, n, 16, name="q8_0") for n in (4, 2, 2))
    g.output(f.rope(norm(g, q), *turn))
    written(g, "k", f.rope(norm(g, k), *turn))
    written(g, "v", v)
    match = run(g, CAPS[caps])
    assert match.regions == ("projection",), match.program.declines
    assert match.program.dispatches[0].schedule["weights"] == [1, 1, 1]
    assert match.program.dispatches[0].schedule["prologue"]
    assert match.program.declines == ()


@pytest.mark.parametrize(("name", "caps"), crossed(["f32", "bf16", "q4_0", "q4_1", "q5_1"], CAPS))
def test_narrow_pools_of_every_kind_of_weight(g, run, caps, name):
    h = normed(g, 3)
    written(g, "k", f.rope(rms(g, heads_of(g, h, 2, 16, name=name)), *table(g, 3, 8)), BF16)
    assert run(g, CAPS[caps]).regions == ("projection",)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("half", [8, 4, 3])
def test_rotations_of_normed_heads(g, run, caps, interleaved, half):
    h = normed(g, 2)
    g.output(f.rope(rms(g, heads_of(g, h, 2, 16)), *table(g, 2, half), interleaved))
    g.output(linear(g, h, 8))
    assert run(g, CAPS[caps]).regions == ("projection",)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("bias", [False, True])
def test_a_head_is_normed_alone(g, run, caps, bias):
    """No rotation; a bias before the norm, which is read twice."""
    h = normed(g, 3)
    g.output(rms(g, heads_of(g, h, 4, 16, bias=bias)) * 2.0)
    assert run(g, CAPS[caps]).regions == ("projection",)


@pytest.mark.parametrize(("tokens", "name"), [(1, "bf16"), (2, "q4_1"), (5, "f32")])
def test_a_group_takes_the_rows_of_a_wide_head_in_turns(g, run, tokens, name):
    """Lanes that share rows: eight rows at a time, where a head has 64 or 48."""
    h = normed(g, tokens)
    g.output(f.rope(rms(g, heads_of(g, h, 2, 64, name=name)), *table(g, tokens, 32)))
    written(g, "k", rms(g, heads_of(g, h, 1, 48, name=name)))
    wide = Caps(group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
    match = run(g, wide)
    assert match.regions == ("projection",)
    assert sorted(match.program.dispatches[0].schedule["rows"]) in ([12, 16], [6, 8], [24, 32])


def ways():
    """The same norm otherwise written: x, its weight, and 1e-5."""

    def kept(x):
        return (*x.shape[:-1], 1)

    def squares(x):
        return p.reshape(p.sum_(x * x, 3), kept(x))

    return {
        "by a quotient": lambda x, w: x / p.sqrt(squares(x) / 16.0 + 1e-5) * w,
        "weight first": lambda x, w: w * p.recip(p.sqrt(squares(x) / 16.0 + 1e-5)) * x,
        "scaled weight": lambda x, w: x * (p.recip(p.sqrt(1e-5 + squares(x) * 0.0625)) * w),
        "scaled terms": lambda x, w: x * p.recip(p.sqrt(p.reshape(p.sum_(x * 0.0625 * x, 3), kept(x)) + 1e-5)) * w,
        "another power": lambda x, w: x * p.pow_(squares(x) / 16.0 + 1e-5, x.builder.splat(-0.5, squares(x).type)) * w,
        "flat heads": lambda x, w: p.reshape(
            (y := p.reshape(x, (x.type.count // 16, 16)))
            * p.recip(p.sqrt(p.reshape(p.sum_(y * y, 1), (y.shape[0], 1)) / 16.0 + 1e-5)) * w, x.shape
        ),
        "half sums": lambda x, w: x * p.recip(p.sqrt(sum_of_halves(x) / 16.0 + 1e-5)) * w,
    }  # fmt: skip


def sum_of_halves(x):
    halves = [p.slice_(x, (0, 0, 0, a), (*x.shape[:-1], a + 8)) for a in (0, 8)]
    return sum_over(halves[0] * halves[0]) + sum_over(halves[1] * halves[1])


def sum_over(x):
    return p.reshape(p.sum_(x, 3), (*x.shape[:-1], 1))


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("caps", ["rows", "lanes"])
def test_a_norm_may_be_written_in_many_ways(g, run, caps, way):
    h = normed(g, 2)
    heads = [heads_of(g, h, n, 16, name="q8_0") for n in (2, 1)]
    for x in heads:
        g.output(f.rope(ways()[way](x, g.floats(16)), *table(g, 2, 8)))
    match = run(g, CAPS[caps])
    assert match.regions == ("projection",), match.program.declines


@pytest.mark.parametrize(("tokens", "name"), [(3, "q4_1"), (40, "bf16"), (40, "q8_0")])
def test_matrix_fragments_norm_heads_too(g, run, tokens, name):
    """A group of fragments has whole heads of 64."""
    x = g.floats(1, tokens, 128)
    for count in (2, 1):
        g.output(f.rope(rms(g, heads_of(g, x, count, 64, name=name)), *table(g, tokens, 32)))
    features = frozenset(["subgroup", "packed_half", "mma"])
    caps = Caps(group_threads=128, subgroup_width=32, max_bindings=31, max_shared_bytes=48 << 10, features=features)
    match = run(g, caps)
    assert match.regions == ("projection",)
    assert "slices" in match.program.dispatches[0].schedule


def declined(match):
    return [d.reason for d in match.program.declines if d.matcher == "projection"]


def test_a_norm_over_whole_rows_is_apart(g, run):
    """One group would have to have them all."""
    g.output(rms(g, p.reshape(linear(g, normed(g, 2), 32), (1, 2, 1, 32))))
    match = run(g, ROWS)
    assert match.regions == ("projection", "row_reduction")
    assert declined(match) == ["a norm over whole rows looks at every group's products"]


def test_a_norm_that_one_group_would_pay_for_is_apart(g, compiled):
    """Heads of 128 columns of 2,048 f32: a megabyte that one group reads while the others have ended."""
    x = g.floats(1, 1, 2048)
    for count in (4, 2):
        g.output(f.rope(rms(g, heads_of(g, x, count, 128)), *table(g, 1, 64)))
    program = compiled(g, Caps(group_threads=256, subgroup_width=32, max_bindings=64, features=frozenset(["subgroup"])))
    assert [d.region for d in program.dispatches].count("projection") == 1
    reasons = {d.reason for d in program.declines if d.matcher == "projection"}
    assert reasons == {"one group would read all 1,048,576 bytes of a block of 128 columns"}


def test_a_reduction_of_something_else_is_apart(g, run):
    """One value a head, but of another input: no group sums it."""
    h, other = normed(g, 2), g.floats(1, 2, 4, 16)
    scale = p.reshape(p.sum_(p.exp(other), 3), (1, 2, 4, 1))
    g.output(heads_of(g, h, 4, 16) / scale)
    match = run(g, ROWS)
    assert "row_reduction" in match.regions and "projection" in match.regions


def test_a_reduction_of_another_head_is_apart(g, run):
    h = normed(g, 2)
    x = heads_of(g, h, 4, 16)
    scale = p.reshape(p.sum_(p.exp(x * 0.1), 3), (1, 2, 4, 1))
    turned = p.concat([p.slice_(scale, (0, 0, 1, 0), (1, 2, 4, 1)), p.slice_(scale, (0, 0, 0, 0), (1, 2, 1, 1))], 2)
    g.output(x / turned)
    match = run(g, ROWS)
    assert "it looks beyond the products of one block" in declined(match)


def test_a_norm_whose_sum_an_output_needs_is_apart(g, run):
    x = heads_of(g, normed(g, 2), 4, 16)
    total = p.sum_(x * x, 3)
    g.output(total)
    g.output(x / p.sqrt(p.reshape(total, (1, 2, 4, 1)) + 1e-5))
    assert "row_reduction" in run(g, ROWS).regions


def test_shared_memory_that_holds_fewer_rows(g, run):
    """Fewer tokens a group, so that products and shares of their sums fit."""
    h = normed(g, 8)
    g.output(f.rope(rms(g, heads_of(g, h, 4, 16)), *table(g, 8, 8)))
    match = run(g, Caps(group_threads=16, tile_rows=4, max_shared_bytes=768))
    (dispatch,) = match.program.dispatches
    assert dispatch.region == "projection" and 1 <= dispatch.schedule["tile"] < 4
