"""Contractions by register fragments against the oracle: every format, kind of activations, number of rows."""

from __future__ import annotations

import pytest

from poot_eval.conformance.crossed import crossed
from poot_executor.compile import Caps
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
    features=frozenset(["subgroup", "packed_half", "mma"]),
)


def fragments(match):
    return [d for d in match.program.dispatches if "slices" in d.schedule]


@pytest.mark.parametrize(("format", "tokens"), crossed(["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"], [1, 2, 3, 8, 17, 70]))
def test_packed_weights_times_f32_activations(g, run, format, tokens):
    rows = 40 if tokens < 17 else 136
    x = g.floats(tokens, 256)
    g.output(f.linear(x, g.weight(FORMATS[format], rows, 256), FORMATS[format]))
    (dispatch,) = fragments(run(g, CAPS))
    assert dispatch.schedule["thirds"] and dispatch.schedule["spread"] == (tokens <= 2)


@pytest.mark.parametrize(
    ("format", "half", "tokens"), crossed(["q4_0", "q4_1", "q8_0", "bf16", "f16"], [BF16, F16], [1, 5, 20])
)
def test_halves_as_activations(g, run, format, half, tokens):
    x = g.floats(tokens, 128)
    g.output(f.linear(x, g.weight(FORMATS[format], 24, 128), FORMATS[format], activations=half))
    match = run(g, CAPS)
    dense = not FORMATS[format].is_packed
    taken = not dense or (tokens > 4 and format == str(half))
    assert len(fragments(match)) == taken


@pytest.mark.parametrize("tokens", [6, 33])
def test_bf16_weights_times_f32_activations(g, run, tokens):
    x = g.floats(tokens, 192)
    g.output(f.linear(x, g.weight(FORMATS["bf16"], 50, 192), FORMATS["bf16"]))
    (dispatch,) = fragments(run(g, CAPS))
    assert dispatch.schedule["thirds"]


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_norm_before_and_gate_and_up_after(g, run, tokens):
    x, scale = g.floats(tokens, 256), g.floats(256)
    h = f.rms_norm(x, scale, 1e-5)
    gate, up = (g.weight(FORMATS["q4_0"], 48, 256) for _ in range(2))
    g.output(f.swiglu(f.linear(h, gate, FORMATS["q4_0"]), f.linear(h, up, FORMATS["q4_0"])) + 1.0)
    match = run(g, CAPS)
    (dispatch,) = fragments(match)
    assert dispatch.schedule["weights"] == [2] and dispatch.schedule["prologue"]
    assert len(match.program.dispatches) == 1


@pytest.mark.parametrize(("rows", "tokens", "slices"), [(16, 1, 16), (40, 1, 8), (16, 2, 8)])
def test_one_row_of_few_groups_has_twice_the_subgroups(g, run, rows, tokens, slices):
    x = g.floats(tokens, 2048)
    g.output(f.linear(x, g.weight(FORMATS["q4_0"], rows, 2048), FORMATS["q4_0"], activations=BF16))
    (dispatch,) = fragments(run(g, CAPS))
    assert dispatch.schedule["slices"] == slices
    assert dispatch.kernel.resident


def test_what_few_groups_cannot_stage_at_once_has_no_more_subgroups(g, run):
    x = g.floats(1, 1 << 14)
    g.output(f.linear(x, g.weight(FORMATS["q4_0"], 16, 1 << 14), FORMATS["q4_0"], activations=BF16))
    (dispatch,) = fragments(run(g, CAPS))
    assert dispatch.schedule["slices"] == 8 and dispatch.schedule["chunk"] < 1 << 14


def test_a_depth_of_several_chunks(g, run):
    x = g.floats(3, 8192)
    g.output(f.linear(x, g.weight(FORMATS["q4_1"], 20, 8192), FORMATS["q4_1"]))
    (dispatch,) = fragments(run(g, CAPS))
    assert dispatch.schedule["chunk"] < 8192


def test_an_infinite_activation_stays_infinite(g, run):
    infinite = g.builder.computed([[float("inf")] + [0.0] * 127], F32)
    x = g.floats(1, 128) + infinite
    weight = g.weight(FORMATS["q8_0"], 16, 128)
    g.output(f.linear(x, weight, FORMATS["q8_0"]))
    run(g, CAPS)


def test_what_fragments_do_not_take_goes_on_as_before(g, run):
    for format, columns in (("q4_0", 96), ("f32", 128), ("q8_0", 96)):
        x = g.floats(6, columns)
        g.output(f.linear(x, g.weight(FORMATS[format], 8, columns), FORMATS[format]))
    assert not fragments(run(g, CAPS))


@pytest.mark.parametrize(("format", "tokens"), crossed(["q4_0", "q5_1", "q8_0", "bf16"], [20, 70]))
def test_stored_halves_are_staged_as_they_are(g, run, format, tokens):
    # Two contractions apart read what a norm made, so that it is stored, rounded.
    x = p.cast(f.rms_norm(g.floats(tokens, 128), g.floats(128), 1e-5), BF16)
    for _ in range(2):
        g.output(f.linear(p.cast(x, F32), g.weight(FORMATS[format], 24, 128), FORMATS[format], activations=BF16))
    found = fragments(run(g, CAPS))
    assert found and all(d.schedule["copied"] == (format != "q5_1") for d in found)


@pytest.mark.parametrize("tokens", [1, 6, 40])
def test_weights_of_several_formats_share_an_input(g, run, tokens):
    x = f.rms_norm(g.floats(tokens, 512), g.floats(512), 1e-5)
    for format, rows in (("q4_0", 48), ("q8_0", 16), ("q5_1", 32)):
        g.output(f.linear(x, g.weight(FORMATS[format], rows, 512), FORMATS[format]))
    (dispatch,) = fragments(run(g, CAPS))
    assert dispatch.schedule["weights"] == [1, 1, 1]
