"""Attention: which graphs become one kernel, what the others say, and that both compute what the oracle does."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from poot_executor.compile import Caps
from poot_executor.compile.schedule import attention_schedule
from poot_executor.dtype import BF16, F16, F32, I32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

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

FILLERS = {"finite": f.MASKED, "faint": -1e30, "infinite": float("-inf")}


class Attended:
    """A causal attention over a span, written out so that each step can be written otherwise."""

    def __init__(self, g, rows=2, tokens=3, heads=4, kv_heads=2, width=8, span=21, dtype=F32, values=None):
        self.g, self.span, self.kv_heads, self.tokens = g, span, kv_heads, tokens
        self.group = heads // kv_heads
        values = values or width
        lead = (rows, kv_heads)
        self.q = g.floats(*lead, self.group * tokens, width, low=-2, high=2)
        self.k = g.floats(*lead, span, width, dtype=dtype, low=-2, high=2)
        self.v = g.floats(*lead, span, values, dtype=dtype)
        self.rows = rows
        starts = g.rng.integers(0, span - tokens + 1, rows).astype(np.int32)
        at = p.reshape(g.slot(starts, I32), (rows, 1, 1)) + p.iota(g.builder, (1, tokens, 1), 1, I32)
        at = p.broadcast(at, (rows, tokens, span))
        self.column = p.iota(g.builder, (rows, tokens, span), 2, I32)
        self.causal = self.column <= at
        self.near = self.causal & (self.column > at - 4)

    def per_token(self, x):
        """[rows, tokens, span] beside the scores, each token once a head of the group."""
        shape = (self.rows, self.kv_heads, self.group, self.tokens, self.span)
        wide = p.broadcast(p.reshape(x, (self.rows, 1, 1, self.tokens, self.span)), shape)
        return p.reshape(wide, (self.rows, self.kv_heads, self.group * self.tokens, self.span))

    def scores(self, scale=0.35, q=None):
        raw = (self.q if q is None else q) @ p.transpose(self.k, (0, 1, 3, 2))
        return raw if scale is None else raw * scale

    def masked(self, x, mask=None, filler="finite"):
        return self.where(self.per_token(self.causal if mask is None else mask), x, FILLERS[filler])

    def where(self, mask, x, otherwise):
        return p.select(mask, x, self.g.builder.splat(otherwise, x.type))

    def out(self, weights, v=None):
        return weights @ (self.v if v is None else v)


def kept(x):
    return (*x.shape[:-1], 1)


def powers_of(x):
    return p.exp(x - p.reshape(p.reduce_max(x, len(x.shape) - 1), kept(x)))


def total_of(powers):
    return p.reshape(p.sum_(powers, len(powers.shape) - 1), kept(powers))


def spread(x, like):
    return p.broadcast(x, like.shape)


# Ways to write a softmax


def plain(x):
    return f.softmax(x)


def times_reciprocal(x):
    powers = powers_of(x)
    return powers * p.recip(total_of(powers))


def reciprocal_times(x):
    powers = powers_of(x)
    return p.mul(spread(p.recip(total_of(powers)), powers), powers)


def plus_negation(x):
    most = p.reshape(p.reduce_max(x, len(x.shape) - 1), kept(x))
    powers = p.exp(p.add(spread(-most, x), x))
    return powers / total_of(powers)


def negation_of_the_spread(x):
    most = spread(p.reshape(p.reduce_max(x, len(x.shape) - 1), kept(x)), x)
    powers = p.exp(x + -most)
    return powers * spread(p.recip(total_of(powers)), powers)


def by_heads(x):
    rows, heads, tokens, span = x.shape
    split = p.reshape(x, (rows, heads, tokens // 3, 3, span))
    return p.reshape(f.softmax(split), x.shape)


def flat(x):
    lead = x.shape[0] * x.shape[1] * x.shape[2]
    return p.reshape(f.softmax(p.reshape(x, (lead, x.shape[3]))), x.shape)


SOFTMAXES = [plain, times_reciprocal, reciprocal_times, plus_negation, negation_of_the_spread, by_heads, flat]


@pytest.mark.parametrize("softmax", SOFTMAXES, ids=lambda s: s.__name__)
def test_a_softmax_may_be_written_in_many_ways(g, run, softmax):
    a = Attended(g)
    g.output(a.out(softmax(a.masked(a.scores()))))
    assert run(g, PLAIN).regions == ("attention",)


# What may stand between scores and softmax


def scaled_queries(a):
    return a.masked(a.scores(None, q=a.q * 0.35))


def scaled_after_the_mask(a):
    return a.where(a.per_token(a.causal), a.scores(None), -1e38) * 0.35


def soft_cap(a):
    return a.masked(p.tanh(a.scores() / 3.0) * 3.0)


def linear_bias(a):
    slopes = p.reshape(a.g.floats(a.kv_heads, low=0.1, high=0.5), (1, a.kv_heads, 1, 1))
    distance = p.cast(a.per_token(a.column), F32)
    return a.masked(a.scores() + distance * slopes)


def bias_first(a):
    bias = a.g.floats(*a.scores().shape)
    return a.masked(bias + a.scores())


def window(a):
    return a.masked(a.scores(), a.near)


def two_masks(a):
    return a.masked(a.masked(a.scores(), a.near), a.causal)


def negated_mask(a):
    return p.select(~a.per_token(a.causal), a.g.builder.splat(f.MASKED, a.scores().type), a.scores())


def additive_mask(a):
    weight = p.select(
        a.per_token(a.causal),
        a.g.builder.splat(0.0, a.scores().type),
        a.g.builder.splat(-100.0, a.scores().type),
    )
    return a.scores() + weight


def no_mask(a):
    return a.scores()


EXPONENTS = [
    scaled_queries, scaled_after_the_mask, soft_cap, linear_bias, bias_first, window, two_masks, negated_mask,
    additive_mask, no_mask,
]  # fmt: skip


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("exponent", EXPONENTS, ids=lambda e: e.__name__)
def test_anything_elementwise_may_be_done_to_scores(g, run, exponent, caps):
    a = Attended(g, tokens=2 if caps == "rows" else 1)
    g.output(a.out(f.softmax(exponent(a))))
    regions = run(g, CAPS[caps]).regions
    assert regions == (("attention", "attention") if caps in ("split", "shared") else ("attention",))


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (6, 1), (1, 1)], ids=["mha", "gqa", "mqa", "one"])
@pytest.mark.parametrize("caps", CAPS)
def test_heads_may_share_keys(g, run, caps, heads):
    a = Attended(g, heads=heads[0], kv_heads=heads[1], width=12, span=37, values=20)
    g.output(p.exp(a.out(f.softmax(a.masked(a.scores()))) * 0.1))
    assert set(run(g, CAPS[caps]).regions) == {"attention"}


@pytest.mark.parametrize(("span", "tokens"), [(4, 1), (15, 1), (16, 2), (33, 9), (48, 1)], ids=str)
@pytest.mark.parametrize("caps", ["plain", "split"])
def test_a_span_need_not_be_whole_tiles(g, run, caps, span, tokens):
    a = Attended(g, rows=1, kv_heads=1, heads=2, span=span, tokens=tokens, width=6)
    g.output(a.out(f.softmax(a.masked(a.scores()))))
    assert set(run(g, CAPS[caps]).regions) == {"attention"}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("back", [False, True], ids=["narrow", "widened"])
@pytest.mark.parametrize("span", [20, 21])
def test_probabilities_may_be_rounded(g, run, dtype, back, span):
    a = Attended(g, dtype=dtype, span=span)
    weights = p.cast(f.softmax(a.masked(a.scores(q=p.cast(a.q, dtype)))), dtype)
    g.output(a.out(p.cast(weights, F32) if back else weights))
    assert run(g, PLAIN).regions == ("attention",)


def test_rounded_probabilities_are_rounded(g, run):
    """Two positions of equal weight but for 2^-12, and values whose difference shows it."""
    q = g.slot(np.array([[[1.0, 0.0]]], np.float32), F32)
    k = g.slot(np.array([[[0.0, 0.0], [2.0**-9, 0.0], [0.0, 0.0]]], np.float32), F32)
    v = g.slot(np.array([[[1.0], [-1.0], [0.0]]], np.float32), F32)
    weights = f.softmax(q @ p.transpose(k, (0, 2, 1)))
    g.output(p.cast(p.cast(weights, BF16), F32) @ v)
    match = run(g, PLAIN)
    assert match.regions == ("attention",)
    (result,) = match.result.outputs.values()
    assert result[0, 0, 0] == 0.0, "a difference of 2^-9 / 3 is below what bf16 holds"


def test_keys_may_be_repeated_instead_of_shared(g, run):
    """Every query head with a copy of its KV head."""
    rows, heads, kv_heads, tokens, span, width = 2, 4, 2, 3, 19, 8
    q = g.floats(rows, heads, tokens, width)
    pools = [g.floats(rows, kv_heads, span, width) for _ in "kv"]
    shape = (rows, kv_heads, heads // kv_heads, span, width)
    k, v = (
        p.reshape(p.broadcast(p.reshape(x, (rows, kv_heads, 1, span, width)), shape), (rows, heads, span, width))
        for x in pools
    )
    g.output(f.softmax((q @ p.transpose(k, (0, 1, 3, 2))) * sqrt(1 / width)) @ v)
    assert run(g, PLAIN).regions == ("attention",)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("filler", ["finite", "faint"])
def test_a_row_that_sees_nothing_weighs_all_alike(g, run, caps, filler):
    a = Attended(g, rows=1, tokens=1, heads=2, kv_heads=1)
    nothing = p.broadcast(p.reshape(g.slot(np.array([False]), p.not_(a.causal).dtype), (1, 1, 1)), a.causal.shape)
    g.output(a.out(f.softmax(a.masked(a.scores(), a.causal & nothing, filler))))
    match = run(g, CAPS[caps])
    assert set(match.regions) == {"attention"}
    (result,) = match.result.outputs.values()
    assert np.allclose(
        result, g.inputs[next(k for k in g.inputs if k.tag == "x2")].mean(axis=2, keepdims=True), atol=1e-5
    )


@pytest.mark.parametrize("caps", CAPS)
def test_minus_infinity_everywhere_is_no_number(g, run, caps):
    """As the graph has it: the difference of two infinities; rows that see something are not touched by it."""
    a = Attended(g, rows=2, tokens=1, heads=2, kv_heads=1)
    some = p.broadcast(p.reshape(g.slot(np.array([True, False]), p.not_(a.causal).dtype), (2, 1, 1)), a.causal.shape)
    g.output(a.out(f.softmax(a.masked(a.scores(), a.causal & some, "infinite"))))
    match = run(g, CAPS[caps])
    assert set(match.regions) == {"attention"}
    (result,) = match.result.outputs.values()
    assert np.isfinite(result[0]).all() and np.isnan(result[1]).all()


def test_masked_numbers_that_differ_are_scores(g, run):
    """Faint as they are, they say which of the masked positions weighs most in a row that sees nothing."""
    a = Attended(g, rows=1, tokens=1, heads=1, kv_heads=1, span=6)
    faint = g.builder.computed(np.float32([-1e30, -2e30, -1e30, -3e30, -4e30, -1e30]).reshape(1, 1, 1, 6), F32)
    nothing = a.per_token(a.column < p.broadcast(g.slot(np.zeros((1, 1, 1), np.int32), I32), a.column.shape))
    g.output(a.out(f.softmax(p.select(nothing, a.scores(), faint))))
    assert run(g, PLAIN).regions == ("attention",)


def declines(match, matcher="attention"):
    return [d.reason for d in match.program.declines if d.matcher == matcher]


def check_declined(run, g, reason, caps=PLAIN):
    match = run(g, caps)
    assert "attention" not in match.regions
    assert reason in declines(match), match.program.declines
    for decline in match.program.declines:
        assert 0 <= decline.equation < len(match.program.graph.equations)
    return match


def test_probabilities_that_are_an_output(g, run):
    a = Attended(g)
    weights = f.softmax(a.masked(a.scores()))
    g.output(weights)
    g.output(a.out(weights))
    match = check_declined(run, g, "the probabilities are read elsewhere")
    equations = [match.program.graph.equations[d.equation] for d in match.program.declines if d.matcher == "attention"]
    assert [e.op for e in equations] == ["matmul", "matmul"]
    assert [e.output.shape for e in equations] == [a.scores().shape, a.q.shape]


def test_probabilities_that_two_products_read(g, run):
    a = Attended(g)
    weights = f.softmax(a.masked(a.scores()))
    g.output(a.out(weights))
    g.output(a.out(weights, a.v * 2.0))
    check_declined(run, g, "the probabilities are read elsewhere")


def test_probabilities_that_the_epilogue_reads(g, run):
    """As many columns of V as positions, so that they can be added up."""
    a = Attended(g, span=16, values=16)
    weights = f.softmax(a.masked(a.scores()))
    g.output(a.out(weights) + weights)
    check_declined(run, g, "the probabilities are read elsewhere")


def test_probabilities_that_the_values_read(g, run):
    a = Attended(g, tokens=8, heads=2, kv_heads=2, span=16, values=16)
    weights = f.softmax(a.masked(a.scores()))
    v = p.slice_(p.concat([weights, a.v], 2), (0, 0, 0, 0), a.v.shape)
    g.output(a.out(weights, v))
    check_declined(run, g, "the probabilities are read elsewhere")


def test_scores_that_are_an_output(g, run):
    a = Attended(g)
    scores = a.scores()
    g.output(scores)
    g.output(a.out(f.softmax(a.masked(scores))))
    check_declined(run, g, "the scores are read elsewhere")


def test_scores_that_two_softmaxes_read(g, run):
    a = Attended(g)
    scores = a.scores()
    for mask in (a.causal, a.near):
        g.output(a.out(f.softmax(a.masked(scores, mask))))
    check_declined(run, g, "the scores are read elsewhere")


def test_scores_that_are_read_at_another_place_too(g, run):
    a = Attended(g, tokens=8, heads=1, kv_heads=1, span=8)
    scores = a.scores()
    g.output(a.out(f.softmax(scores + p.transpose(scores, (0, 1, 3, 2)))))
    check_declined(run, g, "the scores are read elsewhere")


def test_probabilities_that_are_rounded_twice(g, run):
    a = Attended(g, span=20)
    g.output(a.out(p.cast(p.cast(f.softmax(a.masked(a.scores())), BF16), F16)))
    check_declined(run, g, "the probabilities are rounded twice")


def test_a_product_of_what_is_no_softmax(g, run):
    a = Attended(g)
    g.output(a.out(p.exp(a.masked(a.scores(), filler="faint"))))
    check_declined(run, g, "its left operand is no softmax")


@pytest.mark.parametrize("kind", ["sum of another", "maximum of another", "a constant", "added sum"])
def test_what_is_nearly_a_softmax(g, run, kind):
    a = Attended(g)
    x = a.masked(a.scores(), filler="faint")
    powers = powers_of(x)
    weights = {
        "sum of another": lambda: powers / (total_of(powers * powers) + 1.0),
        "maximum of another": lambda: (y := p.exp(x - p.reshape(p.reduce_max(x * 0.5, 3), kept(x)))) / total_of(y),
        "a constant": lambda: powers / 3.0,
        "added sum": lambda: powers + total_of(powers),
    }[kind]()
    g.output(a.out(weights))
    check_declined(run, g, "its left operand is no softmax")


def test_a_softmax_of_an_input(g, run):
    a = Attended(g)
    g.output(a.out(f.softmax(g.floats(*a.scores().shape))))
    check_declined(run, g, "the softmax is not over a contraction")


def test_a_softmax_over_other_rows(g, run):
    """Every row of the probabilities is read across two of the softmax."""
    a = Attended(g, span=20)
    x = a.masked(a.scores())
    halves = p.reshape(x, (*x.shape[:2], x.shape[2] * 2, x.shape[3] // 2))
    g.output(a.out(p.reshape(f.softmax(halves), x.shape)))
    check_declined(run, g, "its left operand is reshaped across rows")


def test_a_short_span_needs_less_shared_memory(g, run):
    """Fewer rows a group where the queries of many do not fit."""
    a = Attended(g, rows=1, tokens=9, heads=2, kv_heads=1, width=64)
    g.output(a.out(f.softmax(a.masked(a.scores()))))
    caps = Caps(group_threads=16, max_shared_bytes=2048)
    match = run(g, caps)
    (dispatch,) = match.program.dispatches
    assert dispatch.region == "attention"
    assert dispatch.schedule["queries"] < 8


def test_a_row_that_shared_memory_does_not_hold(g, run):
    a = Attended(g, rows=1, tokens=1, heads=1, kv_heads=1, width=64)
    g.output(a.out(f.softmax(a.masked(a.scores()))))
    check_declined(
        run,
        g,
        "a row of 64 columns needs more than 256 bytes of shared memory",
        Caps(group_threads=8, max_shared_bytes=256),
    )


@pytest.mark.parametrize("bindings", [4, 5, 8])
def test_few_bindings(g, run, bindings):
    """Queries, keys, values, starts and the result are five; groups that share a row need three more."""
    a = Attended(g, rows=1, tokens=1, heads=1, kv_heads=1, span=33)
    g.output(a.out(f.softmax(a.masked(a.scores()))))
    caps = Caps(group_threads=8, parallel_groups=64, max_bindings=bindings)
    if bindings == 4:
        check_declined(run, g, "it reads and writes 5 buffers, the target binds fewer", caps)
    else:
        assert run(g, caps).regions == ("attention",) * (2 if bindings == 8 else 1)


@pytest.mark.parametrize(("tiles", "splits"), [(1, 1), (4, 1), (5, 2), (8, 4), (64, 32)])
def test_few_tiles_are_walked_by_one_group(tiles: int, splits: int) -> None:
    """A second dispatch pays from more than `whole_tiles` on; then each group has `split_tiles` of them."""
    caps = replace(SPLIT, split_tiles=2, whole_tiles=4)
    schedule = attention_schedule(1, 1, tiles * caps.group_threads, 8, 8, caps)
    assert schedule is not None and schedule.splits == splits
