"""Contractions by products of warpgroups against the oracle: shapes, epilogues, halves, and what they decline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poot_executor.compile import Caps, CompileOptions, Target, compile
from poot_executor.compile.candidates import candidates
from poot_executor.compile.schedule_picks import Schedules, legal
from poot_executor.dtype import BF16, F16, F32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

CAPS = Caps(
    group_threads=128,
    subgroup_width=32,
    max_bindings=31,
    max_shared_bytes=48 << 10,
    max_group_size=1024,
    features=frozenset(["subgroup", "packed_half", "mma", "warpgroup"]),
)


def products(program):
    return [d for d in program.dispatches if "warpgroups" in d.schedule]


def stored(g, tokens, columns, half=BF16):
    """Halves that a norm stores, since two contractions read them."""
    return p.cast(f.rms_norm(g.floats(tokens, columns), g.floats(columns), 1e-5), half)


def linear(x, g, rows, columns, half=BF16):
    weight = g.weight(FORMATS[str(half)], rows, columns)
    return f.linear(p.cast(x, F32), weight, FORMATS[str(half)], activations=half)


@pytest.mark.parametrize(
    ("tokens", "rows", "columns", "half"),
    [(17, 64, 128, F16), (40, 72, 64, BF16), (70, 130, 320, BF16), (130, 24, 192, BF16)],
)
def test_stored_halves(g, run, tokens, rows, columns, half):
    x = stored(g, tokens, columns, half)
    for _ in range(2):
        g.output(linear(x, g, rows, columns, half))
    found = products(run(g, CAPS).program)
    assert len(found) in (1, 2) and all(d.schedule["tokens"] < 2 * tokens for d in found)


def test_gate_and_up_meet_in_the_epilogue(g, run):
    x = stored(g, 33, 128)
    g.output(f.swiglu(linear(x, g, 96, 128), linear(x, g, 96, 128)) + 1.0)
    (dispatch,) = products(run(g, CAPS).program)
    assert dispatch.schedule["weights"] == [2] and dispatch.schedule["anchors"] == 2


def test_several_weights_of_one_input(g, run):
    x = stored(g, 20, 128)
    for rows in (128, 64, 40):
        g.output(linear(x, g, rows, 128))
    (dispatch,) = products(run(g, CAPS).program)
    assert dispatch.schedule["weights"] == [1, 1, 1]


@pytest.mark.parametrize("activations", [BF16, F32], ids=str)
def test_what_is_not_stored_as_halves_is_stored_first(g, run, activations):
    """Computed and rounded, or stored as f32, which is three halves."""
    x = g.floats(18, 128)
    g.output(f.linear(x + 1.0, g.weight(FORMATS["bf16"], 64, 128), FORMATS["bf16"], activations=activations))
    g.output(f.linear(x, g.weight(FORMATS["bf16"], 40, 128), FORMATS["bf16"], activations=activations))
    program = run(g, CAPS).program
    assert [d.schedule["copied"] for d in products(program)] == [False, False]
    assert [d.kernel.name for d in program.dispatches].count("halves") == 2


def test_what_warpgroups_do_not_take(g, compiled):
    x = stored(g, 16, 128)  # so few rows are a step of decoding
    g.output(linear(x, g, 64, 128))
    g.output(linear(x, g, 64, 128))
    y = stored(g, 40, 96)  # no whole chunks
    g.output(linear(y, g, 64, 96))
    g.output(linear(y, g, 64, 96))
    z = g.floats(40, 128)  # halves that are not those of the weight, quants
    g.output(f.linear(z, g.weight(FORMATS["f16"], 64, 128), FORMATS["f16"], activations=BF16))
    g.output(f.linear(z, g.weight(FORMATS["f16"], 64, 128), FORMATS["f16"]))
    g.output(f.linear(z, g.weight(FORMATS["q4_0"], 64, 128), FORMATS["q4_0"], activations=BF16))
    assert not products(compiled(g, CAPS))


def test_without_the_feature_there_are_none(g, compiled):
    x = stored(g, 40, 128)
    g.output(linear(x, g, 64, 128))
    g.output(linear(x, g, 64, 128))
    plain = replace(CAPS, features=CAPS.features - {"warpgroup"})
    program = compiled(g, plain)
    assert not products(program) and any("slices" in d.schedule for d in program.dispatches)


def test_a_tile_may_be_picked(g):
    """Also for none, and only of those that there are; `tune` tries the others."""
    x = stored(g, 40, 128)
    g.output(linear(x, g, 64, 128))
    g.output(linear(x, g, 80, 128))
    graph = g.builder.build()
    (first,) = products(compile(graph, Target("paper", CAPS)))
    key = first.schedule["key"]
    assert first.schedule["tokens"] == 64
    for tokens, expected in ((64, [64]), (32, [32]), (0, [])):
        options = CompileOptions(schedules=Schedules.of({key: {"tokens": tokens}}))
        found = products(compile(graph, Target("paper", CAPS), options))
        assert [d.schedule["tokens"] for d in found] == expected
    tried = [dict(pick) for pick in candidates(key, first.schedule, (), CAPS)]
    assert tried == [{"tokens": tokens} for tokens in (0, 32, 128, 256)]
    assert legal(key, (("tokens", 48),), CAPS) == "tokens is 48: one of 0, 32, 64, 128, 256"
    assert legal(key, (("tokens", 64),), replace(CAPS, features=frozenset())) == "projection has no tokens"
