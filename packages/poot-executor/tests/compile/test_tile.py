"""Contractions of many activation rows by tiles, against the oracle: formats, edges, epilogues, what declines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poot_eval.conformance.crossed import crossed
from poot_executor.compile import Caps, CompileOptions
from poot_executor.dtype import BF16, F16
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

CAPS = Caps(
    group_threads=64,
    subgroup_width=32,
    max_bindings=31,
    max_shared_bytes=48 << 10,
    features=frozenset(["subgroup"]),
    many_rows=9,
)


def tiles(program):
    return [d for d in program.dispatches if "tokens" in d.schedule and "chunk" in d.schedule]


@pytest.mark.parametrize(
    ("format", "edges"),
    crossed(["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f32", "f16", "bf16"], [(64, 64), (100, 70), (7, 17)]),
)
def test_every_format_and_edges_of_tiles(g, run, format, edges):
    rows, tokens = edges
    x = g.floats(tokens, 96)
    g.output(f.linear(x, g.weight(FORMATS[format], rows, 96), FORMATS[format]))
    (dispatch,) = tiles(run(g, CAPS).program)
    size = 64 if tokens > 32 else 32
    assert (dispatch.schedule["rows"], dispatch.schedule["tokens"], dispatch.schedule["chunk"]) == (64, size, 32)


@pytest.mark.parametrize("tile_rows", [1, 4])
@pytest.mark.parametrize(("groups", "rows", "tokens"), [(8, 64, 64), (9, 64, 32), (17, 32, 32), (33, None, None)])
def test_a_tile_is_as_large_as_fills_the_device(g, run, tile_rows, groups, rows, tokens):
    x = g.floats(64, 32)
    g.output(f.linear(x, g.weight(FORMATS["q4_1"], 256, 32), FORMATS["q4_1"]))
    found = tiles(run(g, replace(CAPS, tile_rows=tile_rows, parallel_groups=groups)).program)
    assert [(d.schedule["rows"], d.schedule["tokens"]) for d in found] == ([] if rows is None else [(rows, tokens)])


def test_shared_memory_bounds_the_tile(g, run):
    x = g.floats(40, 64)
    g.output(f.linear(x, g.weight(FORMATS["q8_0"], 40, 64), FORMATS["q8_0"]))
    (dispatch,) = tiles(run(g, replace(CAPS, max_shared_bytes=16 << 10)).program)
    assert (dispatch.schedule["rows"], dispatch.schedule["tokens"]) == (64, 32)


@pytest.mark.parametrize("columns", [16, 24, 20])
def test_depths_of_dense_weights(g, run, columns):
    x = g.floats(20, columns)
    g.output(f.linear(x, g.weight(FORMATS["f32"], 40, columns), FORMATS["f32"]))
    found = tiles(run(g, CAPS).program)
    assert [d.schedule["chunk"] for d in found] == {16: [16], 24: [8], 20: []}[columns]


@pytest.mark.parametrize("half", [BF16, F16], ids=str)
def test_halves_as_activations(g, run, half):
    x = g.floats(20, 64)
    g.output(f.linear(x, g.weight(FORMATS["q4_1"], 24, 64), FORMATS["q4_1"], activations=half))
    assert tiles(run(g, CAPS).program)


def test_the_norm_before_is_a_dispatch_of_its_own(g, run):
    h = f.rms_norm(g.floats(20, 64), g.floats(64), 1e-5)
    gate, up = (g.weight(FORMATS["q4_0"], 80, 64) for _ in range(2))
    g.output(f.swiglu(f.linear(h, gate, FORMATS["q4_0"]), f.linear(h, up, FORMATS["q4_0"])) + 1.0)
    program = run(g, CAPS).program
    norm, dispatch = program.dispatches
    assert norm.kernel.name == "row_reduction" and dispatch.schedule["weights"] == [2]
    assert tiles(program) == [dispatch]


def test_weights_of_several_formats_side_by_side(g, run):
    x = g.floats(33, 64)
    for format, rows in (("q4_0", 48), ("q8_0", 20), ("bf16", 70)):
        g.output(f.linear(x, g.weight(FORMATS[format], rows, 64), FORMATS[format]) * 0.5)
    (dispatch,) = tiles(run(g, CAPS).program)
    assert dispatch.schedule["weights"] == [1, 1, 1]


@pytest.mark.parametrize("width", [32, 64, 128])
def test_what_finishes_blocks_of_products(g, run, width):
    """A norm over each head, a rotation of its halves, narrow elements in whole words."""
    x = g.floats(20, 64)
    heads = p.reshape(f.linear(x, g.weight(FORMATS["q4_1"], 2 * width, 64), FORMATS["q4_1"]), (1, 20, 2, width))
    turn = tuple(p.reshape(g.floats(20, width // 2), (1, 20, 1, width // 2)) for _ in range(2))
    g.output(f.rope(f.rms_norm(heads, g.floats(width), 1e-5), *turn))
    g.output(p.cast(f.linear(x, g.weight(FORMATS["f16"], 40, 64), FORMATS["f16"]), BF16))
    (dispatch,) = tiles(run(g, CAPS).program)
    assert dispatch.schedule["weights"] == [1, 1]


def test_weights_in_parts(g, run):
    x = g.floats(20, 64)
    g.output(f.linear(x, g.weight(FORMATS["f32"], 150, 64), FORMATS["f32"]))
    found = tiles(run(g, replace(CAPS, max_binding_bytes=16384)).program)
    assert [d.schedule["part"] for d in found] == [0, 1, 2]


def test_few_rows_and_deterministic_programs_have_the_kernels_of_few_rows(g, compiled):
    weight = g.weight(FORMATS["q4_0"], 64, 64)
    for count in (8, 16, 64):
        g.output(f.linear(g.floats(count, 64), weight, FORMATS["q4_0"]))
    assert len(tiles(compiled(g, CAPS))) == 1
    assert not tiles(compiled(g, CAPS, CompileOptions(deterministic=True)))
    assert not tiles(compiled(g, replace(CAPS, many_rows=None)))
