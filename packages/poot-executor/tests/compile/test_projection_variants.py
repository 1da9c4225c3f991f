"""Projections of other families than llama: biases, other norms and activations, formats side by side, what keeps them
apart, and limits of the target that make them smaller."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.inputs import packed_rows
from poot_executor.compile import Caps
from poot_executor.dtype import BF16, F16, F32, I32, U8
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.graph import TensorType
from poot_executor.weights import WeightKey

ROWS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
PLAIN = Caps(tile_rows=4, group_threads=16, max_bindings=31)
LANES = Caps(group_threads=64, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
CAPS = {"rows": ROWS, "plain": PLAIN, "lanes": LANES}
WIDTH = 64


def linear(g, x, rows, name="f32", bias=False, activations=F32):
    format_ = FORMATS[name]
    weight = g.weight(format_, rows, x.shape[-1])
    return f.linear(x, weight, format_, g.floats(rows) if bias else None, activations)


def normed(g, tokens=2, kind="rms", width=WIDTH):
    x, weight = g.floats(1, tokens, width), g.floats(width)
    if kind == "layer":
        return f.layer_norm(x, weight, g.floats(width), 1e-5)
    return f.rms_norm(x, weight, 1e-5) if kind == "rms" else x


def table(g, tokens, half):
    angle = g.rng.uniform(-3, 3, (1, tokens, half)).astype(np.float32)
    return g.slot(np.cos(angle), F32), g.slot(np.sin(angle), F32)


def pool(g, role, heads, width, dtype=F32):
    values = g.rng.standard_normal((24, heads, width)).astype(np.float32)
    return g.state(role, values, dtype)


def written(g, role, rows, places):
    """The rows of a token each [1, tokens, heads, width], put into a pool of that state."""
    _, tokens, heads, width = rows.shape
    key, before = pool(g, role, heads, width)
    after = p.scatter_update(before, places, p.reshape(rows, (tokens, heads, width)))
    g.builder.next_state(key, after)
    return after


def places(g, tokens):
    return g.slot(g.rng.permutation(24)[:tokens].astype(np.int32), I32)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("kind", ["rms", "layer", "none"])
def test_biases_and_norms(g, run, caps, kind):
    """Q, K and V with biases, Q and K rotated, K and V written."""
    h = normed(g, 3, kind)
    cos, sin = table(g, 3, 4)
    at = places(g, 3)
    q, k, v = (p.reshape(linear(g, h, n * 8, "q8_0", bias=True), (1, 3, n, 8)) for n in (4, 2, 2))
    g.output(f.rope(q, cos, sin))
    written(g, "k", f.rope(k, cos, sin), at)
    written(g, "v", v, at)
    match = run(g, CAPS[caps])
    assert match.regions == ("projection",)
    (dispatch,) = match.program.dispatches
    assert dispatch.schedule["prologue"] == (kind != "none")
    assert dispatch.schedule["weights"] == [1, 1, 1]


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize(
    "names", [("f32", "q4_1"), ("q4_1", "bf16"), ("f16", "f32"), ("q8_0", "q5_0", "f32")], ids="-".join
)
def test_formats_side_by_side(g, run, caps, names):
    """Blocks of one weight are not those of another."""
    h = normed(g, 2)
    for place, name in enumerate(names):
        g.output(linear(g, h, 24 + 8 * place, name) * 2.0)
    match = run(g, CAPS[caps])
    assert match.regions == ("projection",)
    assert match.program.dispatches[0].schedule["weights"] == [1] * len(names)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("interleaved", [True, False], ids=["pairs", "halves"])
@pytest.mark.parametrize(("width", "half"), [(16, 8), (16, 4), (8, 3)], ids=["whole", "partial", "odd"])
def test_rotations(g, run, caps, interleaved, width, half):
    h = normed(g, 2)
    cos, sin = table(g, 2, half)
    q, k = (p.reshape(linear(g, h, n * width), (1, 2, n, width)) for n in (4, 2))
    g.output(f.rope(q, cos, sin, interleaved))
    written(g, "k", f.rope(k, cos, sin, interleaved), places(g, 2))
    assert run(g, CAPS[caps]).regions == ("projection",)


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("activation", [f.gelu, f.gelu_tanh, f.silu, p.tanh, lambda x: p.maximum(x, x * 0.1)])
def test_gated_activations(g, run, caps, activation):
    h = normed(g, 2)
    g.output(activation(linear(g, h, 40, "q4_1", bias=True)) * linear(g, h, 40, "q4_1", bias=True))
    match = run(g, CAPS[caps])
    assert match.regions == ("projection",)
    assert match.program.dispatches[0].schedule["weights"] == [2]


def test_one_plain_layer_with_an_activation(g, run):
    g.output(f.gelu(linear(g, normed(g, 3, "layer"), 40, "bf16", bias=True)))
    assert run(g, LANES).regions == ("projection",)


def test_gates_of_two_formats_are_finished_apart(g, run):
    """One thread cannot have both where lanes share rows: their blocks differ."""
    h = normed(g, 2)
    g.output(f.swiglu(linear(g, h, 40, "q4_1"), linear(g, h, 40, "f32")))
    assert run(g, LANES).regions == ("projection", "projection")
    assert run(g, PLAIN).regions == ("projection",)


def test_a_parallel_block_reads_its_norm_once(g, run):
    """Attention's and the feed-forward's weights over one norm: five in one dispatch."""
    h = normed(g, 1)
    q, k, v = (linear(g, h, n) for n in (32, 16, 16))
    g.output(q)
    at = places(g, 1)
    written(g, "k", p.reshape(k, (1, 1, 2, 8)), at)
    written(g, "v", p.reshape(v, (1, 1, 2, 8)), at)
    g.output(f.swiglu(linear(g, h, 40), linear(g, h, 40)))
    match = run(g, PLAIN)
    assert match.regions == ("projection",)
    assert match.program.dispatches[0].schedule["weights"] == [1, 1, 1, 2]


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_activations_that_are_rounded(g, run, dtype):
    h = p.cast(p.cast(g.floats(1, 3, WIDTH), dtype), F32)
    for rows in (16, 24):
        g.output(linear(g, h, rows, "bf16", activations=dtype))
    assert run(g, LANES).regions == ("projection",)


def test_a_norm_that_an_output_needs_is_stored(g, run):
    h = normed(g, 2)
    g.output(h)
    g.output(linear(g, h, 24))
    assert run(g, PLAIN).regions == ("row_reduction", "contraction")


def test_a_norm_that_something_else_reads_is_stored(g, run):
    h = normed(g, 2)
    g.output(p.sum_(p.exp(h), 1))
    g.output(linear(g, h, 24))
    assert "row_reduction" in run(g, PLAIN).regions


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_norm_that_an_epilogue_reads_is_stored(g, run, tokens):
    """Every thread would have to norm another token's columns."""
    h = normed(g, tokens)
    g.output(linear(g, h, WIDTH) + h)
    match = run(g, PLAIN)
    assert match.regions == ("row_reduction", "contraction")


def test_a_large_input_is_normed_once(g, compiled):
    h = normed(g, 4097)
    g.output(linear(g, h, 24))
    g.output(linear(g, h, 24))
    assert [d.region for d in compiled(g, PLAIN).dispatches] == ["row_reduction", "projection"]


def test_what_waits_for_another_of_its_input_is_apart(g, run):
    """The second product's epilogue needs a reduction of the first: one dispatch cannot have both."""
    h = normed(g, 2)
    first = linear(g, h, 24)
    g.output(first)
    g.output(linear(g, h, 24) * f.softmax(first))
    match = run(g, PLAIN)
    assert match.regions.count("projection") == 2
    reasons = [d.reason for d in match.program.declines if d.matcher == "projection"]
    assert "it waits for another of its input" in reasons


def test_two_inputs_whose_products_wait_crosswise(g, run):
    """Joining either pair is fine, joining both is a circle."""
    x, y = (g.floats(2, 16) for _ in "xy")
    a, d = linear(g, x, 8), linear(g, y, 8)
    g.output(a)
    g.output(d)
    g.output(linear(g, y, 8) * f.softmax(a))
    g.output(linear(g, x, 8) * f.softmax(d))
    run(g, PLAIN)


def test_a_write_waits_for_those_who_read_what_it_overwrites(g, run):
    """An attention over the old positions and the new one apart: the query's product comes before the write."""
    h = normed(g, 1)
    q, k = linear(g, h, 16), linear(g, h, 16)
    key, before = g.state("k", g.rng.standard_normal((24, 16)).astype(np.float32), F32)
    g.output(p.matmul(q if len(q.shape) == 2 else p.reshape(q, (1, 16)), p.transpose(before, (1, 0))))
    g.builder.next_state(key, p.scatter_update(before, places(g, 1), p.reshape(k, (1, 16))))
    match = run(g, PLAIN)
    assert all(type(c).__name__ == "DispatchCommand" for c in match.program.commands)


def test_two_writes_into_one_pool(g, run):
    """One after the other: they are not one dispatch."""
    h = normed(g, 2)
    key, before = g.state("kv", g.rng.standard_normal((24, 16)).astype(np.float32), F32)
    for _ in "kv":
        rows = p.reshape(linear(g, h, 16), (2, 16))
        before = p.scatter_update(before, places(g, 2), rows)
    g.builder.next_state(key, before)
    match = run(g, PLAIN)
    assert match.regions == ("projection", "projection")


@pytest.mark.parametrize("read_as", ["data", "index", "data and updates", "updates"])
def test_products_that_a_write_reads_otherwise_than_as_its_updates(g, run, read_as):
    """Products whose rows are overwritten, or that say where others go, are stored: a write finishes its updates
    alone."""
    product = linear(g, g.floats(6, 32), 1 if read_as == "index" else 2)
    updates, where = g.floats(*product.shape), g.slot(np.array([2, -1, 0, 5, -1, 3], np.int32), I32)
    match read_as:
        case "data":
            g.output(p.scatter_update(product, where, updates))
        case "index":
            middles = g.slot(np.array([4.5, 2.5, 0.5, 5.5, 1.5, 3.5], np.float32), F32)
            rows = p.cast(middles + p.tanh(p.reshape(product, (6,))) * 0.3, I32)
            g.output(p.scatter_update(g.floats(6, 1), rows, updates))
        case "data and updates":
            g.output(p.scatter_update(product, where, product * 2.0))
        case _:
            g.output(p.scatter_update(g.floats(6, 2), where, product * 2.0))
    assert len(run(g, PLAIN).regions) == (1 if read_as == "updates" else 2)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 1, 9), (2, 9)], ids=str)
def test_narrow_rows_that_fill_no_words(g, run, dtype, shape):
    """Neighbouring threads would share a word."""
    h = normed(g, 2)
    rows = p.cast(p.reshape(linear(g, h, 9), shape), dtype)
    before = g.rng.integers(0, 9, (24, *shape[1:])).astype(dtype.numpy)
    key, state = g.state("k", before, dtype)
    g.builder.next_state(key, p.scatter_update(state, places(g, 2), rows))
    run(g, PLAIN)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_products_of_one_element(g, run, shape):
    product = p.matmul(g.floats(1, 32), p.transpose(g.weight(FORMATS["f32"], 3, 32), (1, 0)))
    g.output(p.exp(product))
    g.output(p.tanh(p.reshape(p.slice_(product, (0, 1), (1, 2)), shape)))
    run(g, PLAIN)


def test_a_weight_that_is_rounded_is_not_read_as_stored(g, run):
    """Rounded to bf16 before it is multiplied: the products differ in their third digit."""
    weight = g.weight(FORMATS["f32"], 8, 32)
    rounded = p.cast(p.cast(weight, BF16), F32)
    g.output(p.matmul(g.floats(3, 32), p.transpose(rounded, (1, 0))))
    decoded = p.cast(f.dequantized(g.weight(FORMATS["q8_0"], 8, 32), FORMATS["q8_0"]), BF16)
    g.output(p.matmul(p.cast(g.floats(3, 32), BF16), p.transpose(decoded, (1, 0))))
    assert run(g, PLAIN).regions == ("batched_contraction", "batched_contraction")


@pytest.mark.parametrize("caps", CAPS)
def test_more_groups_than_an_axis_has(g, run, caps):
    limited = {name: getattr(CAPS[caps], name) for name in CAPS[caps].__slots__} | {"max_groups": (3, 65535, 65535)}
    h = normed(g, 3)
    for rows in (130, 70):
        g.output(linear(g, h, rows, "bf16"))
    g.output(f.softmax(g.floats(7, 33)))
    g.output(p.argmax(g.floats(11, 9), 1))
    g.output(p.exp(g.floats(500)))
    match = run(g, Caps(**limited))
    assert any(d.groups[1] > 1 for d in match.program.dispatches)


def test_fewer_tokens_a_thread_where_shared_memory_is_short(g, run):
    h = normed(g, 8)
    cos, sin = table(g, 8, 8)
    g.output(f.rope(p.reshape(linear(g, h, 64), (1, 8, 4, 16)), cos, sin))
    match = run(g, Caps(group_threads=16, tile_rows=4, max_shared_bytes=512))
    (dispatch,) = match.program.dispatches
    assert 1 <= dispatch.schedule["tile"] < 8


@pytest.mark.parametrize("bindings", [8, 12])
def test_fewer_weights_a_dispatch_where_bindings_are_few(g, run, bindings):
    h = normed(g, 1)
    cos, sin = table(g, 1, 8)
    for rows in (4, 2, 2):
        g.output(f.rope(p.reshape(linear(g, h, rows * 16), (1, 1, rows, 16)), cos, sin))
    match = run(g, Caps(group_threads=16, tile_rows=4, max_bindings=bindings))
    assert match.regions == ("projection",) * (3 if bindings == 8 else 2)
    assert all(d.schedule["prologue"] for d in match.program.dispatches)


def test_a_norm_that_leaves_no_bindings_for_the_rest_is_stored(g, run):
    cos, sin = table(g, 1, 8)
    g.output(f.rope(p.reshape(linear(g, normed(g, 1), 32), (1, 1, 2, 16)), cos, sin))
    assert run(g, Caps(group_threads=16, tile_rows=4, max_bindings=6)).regions == ("row_reduction", "projection")


@pytest.mark.parametrize("rows", [1, 5])
def test_weights_in_parts_with_epilogues(g, run, rows):
    caps = Caps(tile_rows=4, group_threads=16, max_binding_bytes=2048)
    x = g.floats(rows, 32)
    g.output(f.gelu(linear(g, x, 37, "f32", bias=True)))
    g.output(linear(g, x, 41, "f32") * 2.0)
    match = run(g, caps)
    parts = [d.schedule["part"] for d in match.program.dispatches if d.region == "contraction"]
    assert parts == [0, 1, 2, 0, 1, 2]


def test_half_word_rows_are_read_element_by_element(g, run):
    """A depth that fills no word: plain matmul, whatever the format."""
    for name in ("f16", "bf16"):
        g.output(linear(g, g.floats(3, 7), 5, name))
    assert run(g, PLAIN).regions == ("batched_contraction", "batched_contraction")


def test_a_weight_is_shared_by_gather_and_contraction(g, run):
    """A tied head: one layout, read by row and by block."""
    format_ = FORMATS["q4_1"]
    weight = g.weight(format_, 37, 32)
    x = f.embedding(weight, format_, g.indices((3,), 37))
    g.output(f.linear(p.tanh(x), weight, format_))
    match = run(g, ROWS)
    assert match.regions == ("gather", "contraction")
    assert len(match.program.weights) == 1


def test_a_contraction_with_a_stored_matrix_that_is_no_weight(g, run):
    w = g.slot(g.rng.standard_normal((8, 32)).astype(np.float32), F32)
    g.output(p.matmul(g.floats(3, 32), p.transpose(w, (1, 0))))
    g.output(p.matmul(g.floats(3, 8), w))
    state = g.state("w", g.rng.standard_normal((8, 32)).astype(np.float32), F32)[1]
    g.output(p.matmul(g.floats(1, 32), p.transpose(state, (1, 0))))
    g.output(p.matmul(g.floats(3, 8), g.weight(FORMATS["f32"], 8, 32)))
    assert run(g, PLAIN).regions == ("batched_contraction",) * 4


@pytest.mark.parametrize("name", ["f32", "bf16", "q8_0"])
def test_experts_that_rows_choose(g, run, name):
    """A router, and a matrix a row from packed or dense experts."""
    format_, experts, rows = FORMATS[name], 3, 8
    stored = packed_rows(g.rng, format_, experts * rows, 32).reshape(experts, rows, -1)
    key = WeightKey(None, "experts")
    g.inputs[key] = stored
    weight = f.dequantized(g.builder.weight(key, TensorType(stored.shape, format_.dtype or U8)), format_)
    x = g.floats(5, 32)
    chosen = p.argmax(linear(g, x, experts), 1)
    g.output(p.tanh(p.indexed_matmul(x, p.transpose(weight, (0, 2, 1)), chosen)))
    match = run(g, PLAIN)
    assert match.regions == ("contraction", "argmax", "indexed_contraction")


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 1), (2, 3, 4)], ids=str)
def test_tables_of_any_rank(g, run, name, shape):
    """Dense weights that nothing multiplies: read where they lie."""
    format_ = FORMATS[name]
    key = WeightKey(None, "table")
    g.inputs[key] = np.round(g.rng.standard_normal(shape) * 4).astype(format_.dtype.numpy).reshape(shape)
    weight = p.cast(g.builder.weight(key, TensorType(shape, format_.dtype)), F32)
    g.output(p.exp(weight * 0.5))
    g.output(g.floats(*shape) + weight)
    assert run(g, ROWS).regions == ("pointwise", "pointwise")
