"""Contractions with matrices that rows choose: read as stored, two of one input at once, with the norm before them."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.inputs import packed_rows
from poot_executor.compile import Caps
from poot_executor.dtype import I32, U8
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.graph import TensorType
from poot_executor.weights import WeightKey

ROWS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
PLAIN = Caps(tile_rows=4, group_threads=16, max_bindings=31)
LANES = Caps(group_threads=64, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
CAPS = {"rows": ROWS, "plain": PLAIN, "lanes": LANES}
EXPERTS, WIDTH = 3, 64


def matrices(g, name, rows, columns=WIDTH, experts=EXPERTS):
    """[experts, columns, rows], as an indexed_matmul takes them."""
    format_ = FORMATS[name]
    stored = packed_rows(g.rng, format_, experts * rows, columns).reshape(experts, rows, -1)
    key = WeightKey(None, f"experts{len(g.inputs)}")
    g.inputs[key] = stored
    weight = g.builder.weight(key, TensorType(stored.shape, format_.dtype or U8))
    return p.transpose(f.dequantized(weight, format_), (0, 2, 1))


def chosen(g, count):
    return g.slot(g.rng.integers(0, EXPERTS, count).astype(np.int32), I32)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("name", FORMATS)
def test_experts_of_every_format(g, run, caps, name):
    g.output(p.tanh(p.indexed_matmul(g.floats(5, WIDTH), matrices(g, name, 40), chosen(g, 5)) * 0.1))
    match = run(g, CAPS[caps])
    assert match.regions == ("indexed_contraction",)
    assert match.program.dispatches[0].schedule["weights"] == 1


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("rows", [1, 7, 65])
def test_experts_of_any_number_of_rows(g, run, caps, rows):
    """A group's last rows are another expert's: they are not stored."""
    g.output(p.indexed_matmul(g.floats(4, WIDTH), matrices(g, "q4_1", rows), chosen(g, 4)))
    assert run(g, CAPS[caps]).regions == ("indexed_contraction",)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_gate_and_up_are_one_dispatch(g, run, caps, name, order):
    x, which = g.floats(3, WIDTH), chosen(g, 3)
    gate, up = [p.indexed_matmul(x, matrices(g, name, 24), which) for _ in "gu"][::order]
    g.output(f.swiglu(gate * 0.1, up))
    match = run(g, CAPS[caps])
    assert match.regions == ("indexed_contraction",)
    assert match.program.dispatches[0].schedule["weights"] == 2


def test_what_other_rows_chose_is_apart(g, run):
    x = g.floats(3, WIDTH)
    gate, up = (p.indexed_matmul(x, matrices(g, "f32", 24), chosen(g, 3)) for _ in "gu")
    g.output(f.swiglu(gate, up))
    assert run(g, PLAIN).regions == ("indexed_contraction", "indexed_contraction")


def routed(g, x, count, most):
    """Rows of x, each once for each of its experts: what chose them, the rows, and their number."""
    format_ = FORMATS["f32"]
    logits = f.linear(x, g.weight(format_, EXPERTS, WIDTH), format_)
    which = p.reshape(p.arg_top_k(logits, most), (count * most,))
    row = p.broadcast(p.reshape(p.iota(g.builder, (count,), 0, I32), (count, 1)), (count, most))
    return which, p.gather(x, p.reshape(row, (count * most,)))


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize(("count", "most"), [(1, 2), (3, 2), (4, 1)])
def test_a_norm_before_router_and_experts(g, run, caps, count, most):
    """Every group norms its own row: router and experts read what was not normed."""
    h = f.rms_norm(g.floats(count, WIDTH), g.floats(WIDTH), 1e-5)
    which, rows = routed(g, h, count, most)
    gate, up = (p.indexed_matmul(rows, matrices(g, "q4_0", 24), which) for _ in "gu")
    g.output(f.swiglu(gate * 0.1, up))
    match = run(g, CAPS[caps])
    assert match.regions == ("projection", "top_k", "indexed_contraction")
    assert all(d.schedule.get("prologue", True) for d in match.program.dispatches)


def test_a_norm_that_the_epilogue_reads_is_stored(g, run):
    h = f.rms_norm(g.floats(3, WIDTH), g.floats(WIDTH), 1e-5)
    which, rows = routed(g, h, 3, 1)
    g.output(p.indexed_matmul(rows, matrices(g, "f32", WIDTH), which) + h)
    assert run(g, PLAIN).regions[0] == "row_reduction"


def test_few_bindings_leave_the_norm_apart(g, run):
    h = f.layer_norm(g.floats(3, WIDTH), g.floats(WIDTH), g.floats(WIDTH), 1e-5)
    which, rows = routed(g, h, 3, 2)
    gate, up = (p.indexed_matmul(rows, matrices(g, "f32", 24), which) for _ in "gu")
    g.output(f.swiglu(gate, up))
    match = run(g, Caps(tile_rows=4, group_threads=16, max_bindings=8))
    assert match.regions == ("row_reduction", "contraction", "top_k", "indexed_contraction")


def declined(match):
    return [d.reason for d in match.program.declines if d.matcher == "experts"]


def test_matrices_that_are_no_weight(g, run):
    g.output(p.indexed_matmul(g.floats(3, 8), g.floats(EXPERTS, 8, 6), chosen(g, 3)))
    match = run(g, PLAIN)
    assert match.regions == ("indexed_contraction",)
    assert declined(match) == ["its matrices are no weight as it is stored"]


def test_matrices_over_the_binding_limit(g, run):
    g.output(p.indexed_matmul(g.floats(3, WIDTH), matrices(g, "f32", 40), chosen(g, 3)))
    match = run(g, Caps(tile_rows=4, group_threads=16, max_binding_bytes=8192))
    assert declined(match) == ["the weight is in several parts"]


def test_rows_of_half_words(g, run):
    g.output(p.indexed_matmul(g.floats(3, 7), matrices(g, "bf16", 6, columns=7), chosen(g, 3)))
    match = run(g, PLAIN)
    assert declined(match) == ["rows of bf16[3, 6, 7] are not whole words"]


def test_more_groups_than_an_axis_has(g, run):
    g.output(p.indexed_matmul(g.floats(3, WIDTH), matrices(g, "f32", 100), chosen(g, 3)))
    caps = Caps(tile_rows=4, group_threads=16, max_groups=(3, 65535, 65535))
    assert run(g, caps).program.dispatches[0].groups[1] > 1
    short = Caps(tile_rows=4, group_threads=16, max_groups=(65535, 65535, 2))
    assert declined(run(g, short)) == ["the target launches 2 groups along an axis"]


def test_a_row_that_chooses_no_expert_is_a_fault(g, compiled):
    """The index is checked, and clamped before anything is read."""
    g.output(p.indexed_matmul(g.floats(1, WIDTH), matrices(g, "f32", 8), g.slot(np.array([EXPERTS], np.int32), I32)))
    (dispatch,) = compiled(g, PLAIN).dispatches
    assert any(op.kind == "check" for op in dispatch.kernel.body.ops)


def test_experts_are_read_once_a_row(g, compiled):
    """What a dispatch is said to move: the chosen matrices, not all of them."""
    g.output(p.indexed_matmul(g.floats(2, WIDTH), matrices(g, "f32", 64, experts=100), chosen(g, 2)))
    (dispatch,) = compiled(g, PLAIN).dispatches
    assert 2 * 64 * WIDTH * 4 <= dispatch.work < 4 * 64 * WIDTH * 4 + 100_000
