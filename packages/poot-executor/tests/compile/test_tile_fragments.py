"""Tiles of many activation rows by opaque matrix fragments, against the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poot_eval.conformance.crossed import crossed
from poot_executor.compile import Caps
from poot_executor.dtype import BF16, F16, F32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.kernel.fragments import FragmentShape

WIDE = (FragmentShape(16, 16, 16, F16, F32), FragmentShape(16, 16, 16, BF16, F32))
SMALL = (FragmentShape(8, 8, 8, F16, F32), FragmentShape(16, 8, 16, BF16, F32))
CAPS = Caps(
    group_threads=64,
    subgroup_width=32,
    max_bindings=31,
    max_shared_bytes=48 << 10,
    features=frozenset(["subgroup", "fragments"]),
    many_rows=9,
    fragments=WIDE,
)


def tiles(program):
    return [d for d in program.dispatches if d.schedule.get("shape") is not None]


@pytest.mark.parametrize("half", [BF16, F16], ids=str)
@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f16", "bf16", "f32"])
def test_every_format_and_kind_of_halves(g, run, format, half):
    x = g.floats(40, 96)
    g.output(f.linear(x, g.weight(FORMATS[format], 70, 96), FORMATS[format], activations=half))
    found = tiles(run(g, CAPS).program)
    dense = not FORMATS[format].is_packed
    assert len(found) == (not dense or format == str(half))
    assert all(d.schedule["shape"] == f"16x16x16 {half} to f32" and d.schedule["chunk"] == 32 for d in found)


@pytest.mark.parametrize(
    ("format", "half", "layout"), crossed(["q4_1", "q8_0"], [BF16, F16], [(8, 4), (32, 1), (64, 1)])
)
def test_other_shapes_subgroups_and_layouts(g, run, format, half, layout):
    width, tile_rows = layout
    x = g.floats(33, 64)
    g.output(f.linear(x, g.weight(FORMATS[format], 40, 64), FORMATS[format], activations=half))
    caps = replace(CAPS, subgroup_width=width, tile_rows=tile_rows, fragments=SMALL)
    (dispatch,) = tiles(run(g, caps).program)
    assert dispatch.schedule["threads"] == 4 * width
    assert dispatch.schedule["chunk"] == (32 if width == 8 else 64)


@pytest.mark.parametrize(("count", "tokens"), [(9, 32), (33, 64), (64, 64), (65, 128)])
def test_a_tile_is_more_than_half_full(g, run, count, tokens):
    x = g.floats(count, 64)
    g.output(f.linear(x, g.weight(FORMATS["q4_0"], 40, 64), FORMATS["q4_0"], activations=F16))
    (dispatch,) = tiles(run(g, CAPS).program)
    assert (dispatch.schedule["tokens"], dispatch.schedule["chunk"]) == (tokens, 32 if tokens == 128 else 64)


@pytest.mark.parametrize("format", ["q4_0", "q5_1", "bf16"])
@pytest.mark.parametrize("half", [BF16, F16], ids=str)
def test_the_norm_before_is_stored_as_halves(g, run, half, format):
    """Two weights side by side read what a norm of its own stored."""
    h = p.cast(f.rms_norm(g.floats(20, 64), g.floats(64), 1e-5), half)
    gate, up = (g.weight(FORMATS[format], 80, 64) for _ in range(2))
    gate, up = (f.linear(p.cast(h, F32), w, FORMATS[format], activations=half) for w in (gate, up))
    g.output(f.swiglu(gate, up) + 1.0)
    program = run(g, CAPS).program
    norm, dispatch = program.dispatches
    assert norm.kernel.name == "row_reduction" and dispatch.schedule["weights"] == [2]
    assert tiles(program) == ([] if (format, half) == ("bf16", F16) else [dispatch])


@pytest.mark.parametrize("width", [32, 128])
def test_what_finishes_blocks_of_products(g, run, width):
    """A norm over each head, a rotation of its halves, narrow elements in whole words."""
    x = g.floats(40, 64)
    product = f.linear(x, g.weight(FORMATS["q4_1"], 2 * width, 64), FORMATS["q4_1"], activations=F16)
    heads = p.reshape(product, (1, 40, 2, width))
    turn = tuple(p.reshape(g.floats(40, width // 2), (1, 40, 1, width // 2)) for _ in range(2))
    g.output(f.rope(f.rms_norm(heads, g.floats(width), 1e-5), *turn))
    g.output(p.cast(f.linear(x, g.weight(FORMATS["f16"], 40, 64), FORMATS["f16"], activations=F16), BF16))
    (dispatch,) = tiles(run(g, CAPS).program)
    assert dispatch.schedule["weights"] == [1, 1]


def test_a_product_that_may_be_further_off_than_a_sum_is_left_alone(g, run):
    x = g.floats(12, 64)
    g.output(f.linear(x, g.weight(FORMATS["q4_0"], 40, 64), FORMATS["q4_0"], activations=F16))
    for error, taken in ((0.25, 1), (0.5, 1), (1.0, 0)):
        caps = replace(CAPS, errors={**CAPS.errors, "fragment_mma": error})
        assert len(tiles(run(g, caps).program)) == taken


@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q5_1", "q8_0", "bf16", "f16", "f32"])
def test_f32_activations_are_three_bf16(g, run, format):
    """Computed in the dispatch, and stored by a norm. What bf16 does not hold is summed in registers."""
    x, computed = g.floats(40, 96), g.floats(40, 96)
    for h in (f.rms_norm(x, g.floats(96), 1e-5), p.tanh(computed)):
        for _ in range(2):
            g.output(f.linear(h, g.weight(FORMATS[format], 40, 96), FORMATS[format]))
    found = [d for d in run(g, CAPS).program.dispatches if "shape" in d.schedule]
    taken = format not in ("f16", "f32")
    assert found and all(
        (d.schedule["parts"], d.schedule["shape"] is None) == (1 + 2 * taken, not taken) for d in found
    )


def test_f32_activations_without_bf16_are_summed_in_registers(g, run):
    x = g.floats(20, 64)
    g.output(f.linear(x, g.weight(FORMATS["q4_0"], 40, 64), FORMATS["q4_0"]))
    program = run(g, replace(CAPS, fragments=WIDE[:1])).program
    assert not tiles(program) and program.dispatches[0].schedule["lanes"] == 8


def test_an_infinite_activation_stays_infinite(g, run):
    infinite = g.builder.computed([[float("inf")] + [0.0] * 127], F32)
    x = g.floats(12, 128) + p.broadcast(infinite, (12, 128))
    g.output(f.linear(x, g.weight(FORMATS["q8_0"], 16, 128), FORMATS["q8_0"]))
    assert tiles(run(g, CAPS).program)


def test_activations_of_every_magnitude_keep_their_bits(g, run):
    """Thirds that are denormal, and neighbours far apart."""
    x = g.floats(12, 64) * g.builder.computed(2.0 ** np.linspace(-100, 60, 64)[None, :], F32)
    g.output(f.linear(x, g.weight(FORMATS["bf16"], 16, 64), FORMATS["bf16"]))
    assert tiles(run(g, CAPS).program)
