"""Sinks: a score more a row that has a share of the softmax and no value, however the graph says it."""

from __future__ import annotations

import numpy as np
import pytest

from poot_executor.compile import Caps
from poot_executor.dtype import BF16, BOOL, F32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

ROWS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
PLAIN = Caps(tile_rows=4, group_threads=16, max_bindings=31)
SPLIT = Caps(group_threads=8, parallel_groups=64, subgroup_width=4, max_bindings=31, features=frozenset(["subgroup"]))
CAPS = {"rows": ROWS, "plain": PLAIN, "split": SPLIT}
ROWS_, HEADS, TOKENS, SPAN, WIDTH = 2, 2, 3, 21, 8


class Sunk:
    """Scores of a masked attention, a sink a head, and the values."""

    def __init__(self, g, filler=f.MASKED, sink=None, seen=0.7):
        self.g = g
        shape = (ROWS_, HEADS, TOKENS, SPAN)
        q, k = g.floats(*shape[:3], WIDTH, low=-2, high=2), g.floats(ROWS_, HEADS, SPAN, WIDTH, low=-2, high=2)
        self.v = g.floats(ROWS_, HEADS, SPAN, WIDTH)
        mask = g.slot(g.rng.random(shape) < seen, BOOL)
        self.scores = q @ p.transpose(k, (0, 1, 3, 2))
        self.x = p.select(mask, self.scores * 0.35, g.builder.splat(filler, self.scores.type))
        heads = g.floats(HEADS, low=-3, high=3) if sink is None else g.slot(np.full(HEADS, sink, np.float32), F32)
        self.sink = p.broadcast(p.reshape(heads, (1, HEADS, 1, 1)), (*shape[:3], 1))

    def kept(self, reduced):
        return p.reshape(reduced, self.sink.shape)

    def part(self, weights, first):
        return p.slice_(weights, (0, 0, 0, first), (ROWS_, HEADS, TOKENS, first + SPAN))


def last_column(a):
    return a.part(f.softmax(p.concat([a.x, a.sink], 3)), 0)


def first_column(a):
    return a.part(f.softmax(p.concat([a.sink, a.x], 3)), 1)


def a_term(a):
    most = p.maximum(a.kept(p.reduce_max(a.x, 3)), a.sink)
    powers = p.exp(a.x - most)
    return powers / (a.kept(p.sum_(powers, 3)) + p.exp(a.sink - most))


def a_term_first(a):
    most = p.maximum(a.sink, a.kept(p.reduce_max(a.x, 3)))
    powers = p.exp(a.x + -most)
    return powers * p.recip(p.exp(a.sink + -most) + a.kept(p.sum_(powers, 3)))


def a_flat_term(a):
    """Maxima and sums without their last axis."""
    sink = p.reshape(a.sink, (ROWS_, HEADS, TOKENS))
    most = p.maximum(p.reduce_max(a.x, 3), sink)
    powers = p.exp(a.x - a.kept(most))
    return powers / a.kept(p.exp(sink - most) + p.sum_(powers, 3))


WAYS = [last_column, first_column, a_term, a_term_first, a_flat_term]


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_a_sink_may_be_written_in_many_ways(g, run, caps, way):
    a = Sunk(g)
    g.output(way(a) @ a.v)
    assert set(run(g, CAPS[caps]).regions) == {"attention"}


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("way", [last_column, a_term], ids=lambda w: w.__name__)
@pytest.mark.parametrize("sink", [40.0, -40.0, -1e37, float("-inf")])
def test_a_sink_may_be_anything(g, run, caps, way, sink):
    a = Sunk(g, sink=sink)
    g.output(way(a) @ a.v)
    assert set(run(g, CAPS[caps]).regions) == {"attention"}


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("filler", [f.MASKED, -1e30, float("-inf")])
@pytest.mark.parametrize("sink", [0.5, -3e30, -1e30])
def test_a_row_that_sees_nothing_but_the_sink(g, run, caps, filler, sink):
    """The sink takes everything, or shares it with fillers that are as large."""
    a = Sunk(g, filler, sink, seen=0.0)
    g.output(a_term(a) @ a.v)
    match = run(g, CAPS[caps])
    assert set(match.regions) == {"attention"}
    (result,) = match.result.outputs.values()
    assert (np.abs(result).max() == 0.0) == (sink > filler)


def test_rounded_probabilities_beside_a_sink(g, run):
    a = Sunk(g)
    g.output(p.cast(last_column(a), BF16) @ p.cast(a.v, BF16))
    assert run(g, PLAIN).regions == ("attention",)


def declined(run, g, reason):
    match = run(g, PLAIN)
    assert "attention" not in match.regions
    assert reason in [d.reason for d in match.program.declines if d.matcher == "attention"], match.program.declines


def test_a_sink_that_is_a_score(g, run):
    """Made of the scores themselves: it is not there before they are."""
    a = Sunk(g)
    a.sink = p.slice_(a.scores, (0, 0, 0, 0), (ROWS_, HEADS, TOKENS, 1))
    g.output(last_column(a) @ a.v)
    declined(run, g, "the scores are read elsewhere")


@pytest.mark.parametrize(
    "case", ["two columns", "other columns", "another sink", "maximum without it", "sum without it"]
)
def test_what_is_nearly_a_sink(g, run, case):
    a = Sunk(g, filler=-50.0)
    most = p.maximum(a.kept(p.reduce_max(a.x, 3)), a.sink)
    powers = p.exp(a.x - most)
    total = a.kept(p.sum_(powers, 3))
    plain = p.exp(a.x - a.kept(p.reduce_max(a.x, 3)))
    weights = {
        "two columns": lambda: a.part(f.softmax(p.concat([a.x, a.sink, a.sink * 0.5], 3)), 0),
        "other columns": lambda: a.part(f.softmax(p.concat([a.x, a.sink], 3)), 1),
        "another sink": lambda: powers / (total + p.exp(a.sink * 0.5 - most)),
        "maximum without it": lambda: plain / (a.kept(p.sum_(plain, 3)) + p.exp(a.sink * 0.1)),
        "sum without it": lambda: powers / total,
    }[case]()
    g.output(weights @ a.v)
    declined(run, g, "its left operand is no softmax")
