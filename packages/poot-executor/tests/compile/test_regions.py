"""Which values are stored, what is computed inside what, and whole layers as lists of regions."""

from __future__ import annotations

import numpy as np
import pytest

from poot_executor.compile import Caps
from poot_executor.compile.attention import fuse_attention
from poot_executor.compile.passes import run_passes
from poot_executor.compile.pipeline import weight_layouts
from poot_executor.compile.projections import fuse_projections
from poot_executor.compile.regions import form_regions
from poot_executor.dtype import BF16, F16, F32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

DENSE = FORMATS["f32"]
CAPS = Caps(tile_rows=4, group_threads=16, max_bindings=31)


def formed(g):
    """The graph after its passes, and its regions before any are fused."""
    graph, _ = run_passes(g.builder.build())
    return graph, form_regions(graph)


def kinds(g):
    """Regions as formed: the kind and what it stores."""
    graph, regions = formed(g)
    return [f"{r.kind} {graph.equation(r.root).op} {r.root.type}" for r in regions.regions]


def reasons(g):
    _, regions = formed(g)
    return [d.reason.split("%")[0] for d in regions.declines]


def x(g, *shape, dtype=F32):
    return g.floats(*shape, dtype=dtype)


# What is stored


def test_a_chain_is_one_region(g):
    g.output(p.tanh(p.exp(x(g, 4, 6)) * 2.0))
    assert kinds(g) == ["pointwise tanh f32[4, 6]"]


def test_outputs_are_stored_and_read_where_it_pays(g):
    y = p.exp(x(g, 4, 6))
    g.output(y)
    g.output(y + 1.0)
    assert kinds(g) == ["pointwise exp f32[4, 6]", "pointwise add f32[4, 6]"]


def test_what_several_read_is_stored_when_it_is_dear(g):
    y = p.exp(x(g, 4, 6))
    g.output(y + 1.0)
    g.output(y * 2.0)
    assert kinds(g) == ["pointwise exp f32[4, 6]", "pointwise add f32[4, 6]", "pointwise mul f32[4, 6]"]


def test_what_several_read_is_recomputed_when_it_is_cheap(g):
    y = x(g, 4, 6) + x(g, 4, 6)
    g.output(p.exp(y))
    g.output(p.tanh(y))
    assert kinds(g) == ["pointwise exp f32[4, 6]", "pointwise tanh f32[4, 6]"]


def test_many_cheap_operations_are_dear(g):
    y = x(g, 4, 6)
    for _ in range(13):
        y = p.maximum(y, x(g, 4, 6))
    g.output(p.exp(y))
    g.output(p.tanh(y))
    assert kinds(g) == ["pointwise max f32[4, 6]", "pointwise exp f32[4, 6]", "pointwise tanh f32[4, 6]"]


def test_what_a_broadcast_repeats_is_stored_when_it_is_dear(g):
    row = p.exp(x(g, 1, 6))
    g.output(p.broadcast(row, (5, 6)) * x(g, 5, 6))
    assert kinds(g) == ["pointwise exp f32[1, 6]", "pointwise mul f32[5, 6]"]


def test_what_a_broadcast_does_not_repeat_is_computed_inside(g):
    row = p.exp(x(g, 1, 6))
    g.output(p.broadcast(row, (1, 6)) * x(g, 1, 6))
    assert kinds(g) == ["pointwise mul f32[1, 6]"]


def test_movement_is_never_stored_by_itself(g):
    """What it moves is, where one region reads it often."""
    y = p.transpose(p.exp(x(g, 4, 6)), (1, 0))
    g.output(p.exp(y))
    g.output(p.tanh(y))
    assert kinds(g) == ["pointwise exp f32[4, 6]", "pointwise exp f32[6, 4]", "pointwise tanh f32[6, 4]"]


def test_what_a_contraction_reads_is_stored_when_it_is_dear(g):
    """Every element of its operands is read once for each of the other's rows."""
    g.output(p.matmul(p.exp(x(g, 3, 4)), x(g, 4, 5) + 1.0))
    assert kinds(g) == ["pointwise exp f32[3, 4]", "batched_contraction matmul f32[3, 5]"]


def test_what_a_gather_takes_from_is_stored_when_it_is_dear(g):
    g.output(p.gather(p.exp(x(g, 3, 4)), g.indices((7,), 3)))
    assert kinds(g) == ["pointwise exp f32[3, 4]", "gather gather f32[7, 4]"]


def test_what_a_scatter_updates_is_stored(g):
    g.output(p.scatter_update(x(g, 3, 4) + 1.0, g.indices((1,), 3), p.exp(x(g, 1, 4))))
    assert kinds(g) == ["pointwise add f32[3, 4]", "scatter scatter_update f32[3, 4]"]


def test_a_residual_chain_is_stored_link_by_link(g):
    """Each link feeds a norm and the next."""
    y = x(g, 3, 8)
    for layer in range(3):
        h = f.rms_norm(y, x(g, 8), 1e-5)
        y = y + f.linear(h, g.weight(DENSE, 8, 8), DENSE) * float(layer + 1)
    g.output(y)
    expected = ["row_reduction mul f32[3, 8]", "contraction add f32[3, 8]"] * 3
    assert kinds(g) == expected


def test_a_chain_that_nothing_stores_is_cut(g):
    """No expression is longer than what compilers of kernels take, whatever nothing else divides."""
    value = x(g, 8)
    for _ in range(200):
        value = p.tanh(value) + 0.5
    g.output(value)
    _, regions = formed(g)
    assert len(regions.regions) == 7 and len(regions.cuts) == 6


@pytest.mark.parametrize("bindings", [3, 4, 8])
def test_an_expression_over_too_many_buffers_is_split(g, run, bindings):
    """Sums of ten inputs, in a chain and in a tree; a norm of one of them."""
    xs = [x(g, 3, 8) for _ in range(10)]
    chain = xs[0]
    for other in xs[1:]:
        chain = p.tanh(chain) + other
    g.output(chain)
    tree = xs
    while len(tree) > 1:
        tree = [a * 0.5 + b for a, b in zip(tree[::2], tree[1::2], strict=False)] + tree[len(tree) // 2 * 2 :]
    g.output(f.softmax(tree[0]))
    match = run(g, Caps(group_threads=16, max_bindings=bindings))
    assert len(match.regions) > 2
    assert all(len(d.kernel.params) <= bindings for d in match.program.dispatches)


def test_an_expression_of_as_many_buffers_as_there_are_is_not_split(g, run):
    y = x(g, 3, 8)
    for _ in range(6):
        y = p.exp(p.minimum(y, x(g, 3, 8)))
    g.output(y)
    assert run(g, Caps(max_bindings=8)).regions == ("pointwise",)
    assert run(g, Caps(max_bindings=7)).regions == ("pointwise", "pointwise")


# What is absorbed


def test_elementwise_work_after_a_contraction_is_its_epilogue(g):
    y = f.linear(x(g, 3, 8), g.weight(DENSE, 6, 8), DENSE, bias=x(g, 6))
    g.output(p.tanh(y * 0.5) + x(g, 3, 6))
    assert kinds(g) == ["contraction add f32[3, 6]"]


def test_an_epilogue_may_be_reshaped(g):
    y = f.linear(x(g, 1, 3, 8), g.weight(DENSE, 6, 8), DENSE)
    g.output(p.reshape(p.exp(y), (3, 2, 3)))
    assert kinds(g) == ["contraction reshape f32[3, 2, 3]"]


def test_an_epilogue_is_not_transposed(g):
    y = f.linear(x(g, 3, 8), g.weight(DENSE, 6, 8), DENSE)
    g.output(p.exp(p.transpose(y, (1, 0))))
    assert kinds(g) == ["contraction matmul f32[3, 6]", "pointwise exp f32[6, 3]"]


def test_an_epilogue_is_not_broadcast(g):
    y = f.linear(x(g, 1, 8), g.weight(DENSE, 6, 8), DENSE)
    g.output(p.broadcast(y, (4, 6)) + x(g, 4, 6))
    assert kinds(g) == ["contraction matmul f32[1, 6]", "pointwise add f32[4, 6]"]


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_a_narrow_epilogue_is_apart(g, dtype):
    """Two threads would share the words."""
    y = f.linear(x(g, 3, 8), g.weight(DENSE, 6, 8), DENSE)
    g.output(p.cast(y, dtype))
    assert kinds(g) == ["contraction matmul f32[3, 6]", f"pointwise cast {dtype}[3, 6]"]


def test_two_contractions_of_one_epilogue(g):
    """It is the epilogue of one and reads what the other stores."""
    one, two = (f.linear(x(g, 3, 8), g.weight(DENSE, 6, 8), DENSE) for _ in "ab")
    g.output(p.tanh(one) * two)
    assert kinds(g) == ["contraction matmul f32[3, 6]", "contraction mul f32[3, 6]"]


def test_a_contraction_that_two_read_keeps_its_product(g):
    y = f.linear(x(g, 3, 8), g.weight(DENSE, 6, 8), DENSE)
    g.output(y + 1.0)
    g.output(p.exp(y))
    assert kinds(g) == ["contraction matmul f32[3, 6]", "pointwise add f32[3, 6]", "pointwise exp f32[3, 6]"]


def test_a_contraction_whose_epilogue_an_output_cuts(g):
    y = f.linear(x(g, 3, 8), g.weight(DENSE, 6, 8), DENSE) + 1.0
    g.output(y)
    g.output(p.exp(y))
    assert kinds(g) == ["contraction add f32[3, 6]", "pointwise exp f32[3, 6]"]


# Reductions


def test_a_softmax_is_one_region(g):
    g.output(f.softmax(x(g, 2, 3, 8)))
    graph, regions = formed(g)
    (region,) = regions.regions
    assert [e.op for e in region.reductions] == ["reduce_max", "sum"]
    assert region.anchor is None
    assert graph.equation(region.root).op == "div"


def test_both_norms_are_one_region(g):
    g.output(f.rms_norm(x(g, 3, 8), x(g, 8), 1e-5))
    g.output(f.layer_norm(x(g, 2, 3, 8), x(g, 8), x(g, 8), 1e-5))
    graph, regions = formed(g)
    assert [[e.op for e in r.reductions] for r in regions.regions] == [["sum"], ["sum", "sum"]]
    assert regions.declines == ()
    assert {r.kind for r in regions.regions} == {"row_reduction"}
    assert graph.equations


def test_a_norm_takes_in_what_is_before_it(g):
    g.output(f.rms_norm(x(g, 3, 8) + p.exp(x(g, 3, 8)), x(g, 8), 1e-5))
    assert kinds(g) == ["row_reduction mul f32[3, 8]"]


def test_a_reduction_is_a_region_of_its_own(g):
    g.output(p.sum_(p.exp(x(g, 3, 8)), 1))
    graph, regions = formed(g)
    (region,) = regions.regions
    assert region.anchor is graph.equation(region.root)
    assert region.reductions == (region.anchor,)


def test_a_variance_takes_in_its_mean(g):
    y = x(g, 3, 8)
    centred = y - f.mean(y)
    g.output(p.sum_(centred * centred, 1))
    graph, regions = formed(g)
    (region,) = regions.regions
    assert [e.op for e in region.reductions] == ["sum", "sum"]
    assert region.anchor is graph.equation(region.root)


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_over_other_axes_are_apart(g, axis):
    y = x(g, *((17, 4, 8) if axis == 0 else (4, 17, 8)))
    total = p.sum_(y, axis)
    kept = (1, 4, 8) if axis == 0 else (4, 1, 8)
    g.output(y / p.reshape(total, kept))
    assert kinds(g) == ["row_reduction sum f32[4, 8]", f"pointwise div {y.type}"]
    assert len(reasons(g)) == 1


def test_a_few_elements_that_lie_apart_are_summed_inside_an_expression(g, run):
    """What a few experts gave, weighed and added to the residual."""
    parts, weights = x(g, 3, 4, 8), x(g, 3, 4)
    mixed = p.sum_(parts * p.broadcast(p.reshape(weights, (3, 4, 1)), parts.shape), 1)
    g.output(x(g, 3, 8) + mixed)
    assert kinds(g) == ["pointwise add f32[3, 8]"]
    run(g)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_the_greatest_of_a_few_elements(g, run, dtype):
    """NaN is not greater than anything."""
    values = g.rng.standard_normal((5, 3, 8)).astype(np.float32).round(1)
    values[:, 0, 0], values[0, 1, 1], values[2, 2, 2] = np.nan, np.nan, -np.inf
    y = g.slot(values, F32)
    g.output(p.cast(p.reduce_max(y, 0) * 2.0, dtype))
    assert len(kinds(g)) == 1
    run(g)


def test_a_dear_sum_of_a_few_elements_that_many_read_is_stored(g, run):
    y = p.exp(x(g, 4, 8))
    total = p.broadcast(p.reshape(p.sum_(y, 0), (1, 8)), (4, 8))
    g.output(y / total)
    assert kinds(g) == ["pointwise exp f32[4, 8]", "pointwise sum f32[8]", "pointwise div f32[4, 8]"]
    run(g)


def test_a_row_s_reduction_that_is_read_along_columns(g):
    """Square, so that only the place where it is broadcast tells."""
    y = x(g, 4, 4)
    total = p.reshape(p.sum_(y, 1), (1, 4))
    g.output(y * p.broadcast(total, (4, 4)))
    assert kinds(g) == ["row_reduction sum f32[4]", "pointwise mul f32[4, 4]"]


def test_a_row_s_reduction_that_is_read_in_the_middle(g):
    """One value for each row of the middle axis, repeated before and after."""
    y = x(g, 4, 4, 4)
    total = p.reshape(p.sum_(p.slice_(y, (0, 0, 0), (1, 4, 4)), 2), (1, 4, 1))
    g.output(y * p.broadcast(total, (4, 4, 4)))
    assert kinds(g) == ["row_reduction sum f32[1, 4]", "pointwise mul f32[4, 4, 4]"]


def test_reductions_of_other_lengths_are_apart(g):
    y = x(g, 3, 8)
    half = p.sum_(p.slice_(y, (0, 0), (3, 4)), 1)
    g.output(y * p.broadcast(p.reshape(half, (3, 1)), (3, 8)))
    assert kinds(g) == ["row_reduction sum f32[3]", "pointwise mul f32[3, 8]"]
    assert reasons(g) == ["it does not reduce the rows of "]


def test_a_reduction_that_two_regions_read_is_stored(g):
    y = x(g, 3, 8)
    total = p.broadcast(p.reshape(p.sum_(y, 1), (3, 1)), (3, 8))
    g.output(p.exp(y - total))
    g.output(p.tanh(y - total))
    assert kinds(g) == ["row_reduction sum f32[3]", "pointwise exp f32[3, 8]", "pointwise tanh f32[3, 8]"]


def test_a_reduction_before_a_contraction_s_epilogue_is_stored(g):
    y = x(g, 3, 8)
    total = p.broadcast(p.reshape(p.sum_(y, 1), (3, 1)), (3, 6))
    g.output(f.linear(y, g.weight(DENSE, 6, 8), DENSE) * total)
    assert kinds(g) == ["row_reduction sum f32[3]", "contraction mul f32[3, 6]"]
    assert reasons(g) == ["its reader "]


@pytest.mark.parametrize("width", [7, 8])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_narrow_roots_of_row_reductions(g, run, dtype, width):
    """Rows of whole words store themselves; others are rounded from what a region stores before."""
    g.output(p.cast(f.softmax(x(g, 3, width)), dtype))
    stored = f"row_reduction cast {dtype}[3, 8]" if width == 8 else f"pointwise cast {dtype}[3, 7]"
    assert kinds(g)[-1] == stored
    run(g)


def test_a_rounded_softmax_before_a_contraction_is_one_region_whatever_its_rows(g, run):
    for width in (7, 8):
        g.output(p.matmul(p.cast(f.softmax(x(g, 3, width)), BF16), x(g, width, 4, dtype=BF16)))
    seen = kinds(g)
    assert seen.count("batched_contraction matmul f32[3, 4]") == 2
    assert "row_reduction div f32[3, 7]" in seen and "row_reduction cast bf16[3, 8]" in seen
    run(g)


def test_a_chain_of_norms_is_one_region(g, run):
    y = x(g, 3, 8)
    for _ in range(3):
        y = f.rms_norm(y, x(g, 8), 1e-5)
    g.output(y)
    assert kinds(g) == ["row_reduction mul f32[3, 8]"]
    run(g)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_reduction_to_one_number(g, run, dtype, shape):
    total = p.reshape(p.sum_(p.exp(x(g, 5)), 0), shape)
    g.output(p.cast(p.tanh(total), dtype))
    run(g)


def test_every_decline_names_an_equation(g):
    y = x(g, 40, 6)
    g.output(y - p.broadcast(p.reshape(p.sum_(y, 0), (1, 6)), (40, 6)))
    graph, regions = formed(g)
    (decline,) = regions.declines
    assert graph.equations[decline.equation].op == "sum"
    assert decline.matcher == "row_reduction"


# Whole layers


def listed(graph):
    """One line a region: its kind, what it stores, and what is in it."""
    graph, _ = run_passes(graph)
    layouts = weight_layouts(graph, CAPS)
    regions = fuse_projections(graph, fuse_attention(graph, form_regions(graph), layouts, CAPS), layouts, CAPS)
    lines = []
    for region in regions.regions:
        inside = []
        if region.projection is not None:
            inside = ["norm"] if region.projection.prologue is not None else []
            inside += [
                "+".join("w" for _ in s.anchors) + (" scatter" if s.scatter else "") for s in region.projection.segments
            ]
        inside += [e.op for e in region.reductions]
        stored = ", ".join(f"{graph.equation(r).op} {r.type}" for r in region.roots)
        lines.append(f"{region.kind}: {stored}" + (f" [{', '.join(inside)}]" if inside else ""))
    return lines


def layer(rows, tokens, queries, turned, pool):
    """Five dispatches."""
    stored = f"concat f32{turned}, scatter_update f32{pool}, scatter_update f32{pool}"
    return [
        f"projection: {stored} [norm, w, w scatter, w scatter]",
        f"attention: matmul f32[{rows}, 2, {queries}, 8]",
        f"contraction: add f32[{rows * tokens}, 32] [w]",
        f"projection: mul f32[{rows * tokens}, 48] [norm, w+w]",
        f"contraction: add f32[{rows * tokens}, 32] [w]",
    ]


def around(rows, tokens, layers):
    """What a step does once. The embedding is so cheap that whoever reads it gathers it."""
    tables = [f"pointwise: {op} f32[{rows}, {tokens}, 4]" for op in ("cos", "sin")]
    logits = [
        f"projection: matmul f32[{rows}, 11] [norm, w]",
        f"argmax: argmax i32[{rows}]",
        f"row_reduction: reduce_max i32[{rows}] [reduce_max]",
    ]
    return [*tables, *layers, *logits]


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
def test_a_decode_step(decoder, paged, interleaved):
    turned = [2, 1, 4, 4, 2] if interleaved else [2, 1, 4, 8]
    expected = layer(2, 1, 2, turned, [32, 2, 8])
    assert listed(decoder(2, 1, paged=paged, interleaved=interleaved).graph()) == around(2, 1, [*expected, *expected])


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
def test_a_prefill_step(decoder, paged):
    expected = layer(1, 3, 6, [1, 3, 4, 8], [16, 2, 8])
    assert listed(decoder(1, 3, paged=paged).graph()) == around(1, 3, [*expected, *expected])


def test_a_deep_model_has_the_same_layers_throughout(decoder):
    """A residual stream of more additions than an expression may have on top of each other: every link is stored
    anyway, so that none is cut where it meets a norm."""
    expected = layer(1, 1, 2, [1, 1, 4, 8], [16, 2, 8])
    assert listed(decoder(1, 1, layers=40).graph()) == around(1, 1, expected * 40)
