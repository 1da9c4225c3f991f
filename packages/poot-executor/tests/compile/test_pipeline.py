"""Whole compilations: determinism, shared kernels, limits, refusals that name what they refuse."""

from __future__ import annotations

import re

import numpy as np
import pytest

from poot_executor.compile import Caps, CompileLimits, CompileOptions, Granularity, Target, compile
from poot_executor.compile.program import CopyCommand
from poot_executor.dtype import BF16, F16, F32, I8, I32, U8, U32
from poot_executor.errors import CompileLimit, Unsupported
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.weights import WeightKey


def layers(count, tokens=2, scale=lambda layer: 1.0):
    """A chain of norm, two gated products and a residual."""
    b = Builder("layers")
    x = p.exp(b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((tokens, 32), F32)))
    for layer in range(count):
        weights = {
            role: b.weight(WeightKey(layer, role), TensorType(shape, F32))
            for role, shape in {"norm": (32,), "gate": (40, 32), "up": (40, 32), "down": (32, 40)}.items()
        }
        dense = FORMATS["f32"]
        h = f.rms_norm(x, weights["norm"], 1e-5)
        h = f.swiglu(f.linear(h, weights["gate"], dense), f.linear(h, weights["up"], dense)) * scale(layer)
        x = x + f.linear(h, weights["down"], dense)
    b.output("x", x)
    return b.build()


def text(program):
    """Everything of a program that can be written down."""
    lines = [str(program.graph), repr(program.weights), repr(program.slots), repr(program.outputs)]
    for command in program.commands:
        if isinstance(command, CopyCommand):
            lines.append(repr(command))
        else:
            lines += [str(command.kernel), repr(command.args), repr(command.groups), repr(dict(command.schedule))]
    return "\n".join(lines)


TARGET = Target("paper", Caps(tile_rows=4, group_threads=16))


def test_equal_graphs_give_equal_programs():
    one, two = (compile(layers(3), TARGET) for _ in range(2))
    assert text(one) == text(two)
    assert one.constants == two.constants


def test_equal_layers_share_their_kernels():
    program = compile(layers(6), TARGET)
    assert [d.region for d in program.dispatches] == ["pointwise", *["projection", "contraction"] * 6]
    assert len({id(d.kernel) for d in program.dispatches}) == 3


def test_layers_that_differ_in_a_number_do_not():
    program = compile(layers(4, scale=lambda layer: 2.0 if layer == 2 else 1.0), TARGET)
    gates = [d.kernel.digest() for d in program.dispatches[1::2]]
    assert gates[0] == gates[1] == gates[3] != gates[2]


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (1.0, 2.0), (0.1, 0.10000001)], ids=str)
def test_pads_of_different_numbers_are_different_kernels(g, run, numbers):
    x = g.floats(3)
    for number in numbers:
        g.output(p.pad(x, [1], [1], number))
    match = run(g)
    for (name, value), number in zip(match.result.outputs.items(), numbers, strict=True):
        assert value[[0, -1]].tobytes() == np.float32([number, number]).tobytes(), name


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_a_pad_is_rounded_to_its_dtype(g, run, dtype):
    x = p.cast(g.floats(6), dtype)
    g.output(p.cast(p.pad(x, [1], [1], 0.1), F32) * 3.0)
    run(g)


def test_masks_of_different_numbers_are_different_kernels(g, run):
    """Two attentions that differ in constants that are no splats: one of them masks, the other adds up."""
    q, k, v = (g.floats(1, 1, 6, 4) for _ in "qkv")
    condition = g.slot(np.arange(6)[None, None, None] < np.arange(6)[None, None, :, None], p.not_(q < k).dtype)
    for row in ([-1e30] * 6, [-1e30, 0.0, 0.5, 0.25, 0.0, 1.0]):
        otherwise = g.builder.broadcast_to(g.builder.computed(np.float32(row), F32), condition.shape)
        q = q * 0.5
        scores = p.select(condition, q @ p.transpose(k, (0, 1, 3, 2)), otherwise)
        g.output(f.softmax(scores) @ v)
    assert run(g, Caps(group_threads=8)).regions == ("attention", "attention")


@pytest.mark.parametrize(
    ("name", "limit"),
    [("equations", 10), ("dispatches", 3), ("constant_bytes", 100), ("arena_bytes", 100), ("expression_operations", 8)],
)
def test_a_limit_is_an_error_that_says_which(name, limit):
    b = Builder("limited")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((4, 32), F32))
    for _ in range(3):
        x = p.sum_(x, 0) * b.computed(np.arange(32.0), F32) + f.gelu_tanh(x)
    b.output("x", p.sum_(x, 0))
    graph = b.build()
    compile(graph, TARGET)
    limits = CompileLimits(**{name: limit})
    with pytest.raises(CompileLimit, match=rf"compile limit {name} is {limit}, this program needs \d+") as caught:
        compile(graph, TARGET, CompileOptions(limits=limits))
    assert caught.value.count > limit


def refused(make, missing, caps=Caps(max_bindings=8)):  # noqa: B008
    b = Builder("refused")
    b.output("y", make(b, lambda *shape: b.slot(SlotKey(SlotKind.INPUT, str(len(b._inputs))), TensorType(shape, F32))))
    with pytest.raises(Unsupported, match=missing):
        compile(b.build(), Target("paper", caps))


def test_refusals_name_the_equation():
    wide = re.escape("%9: f32[9] = concat(%0, %1, %2, %3, %4, %5, %6, %7, %8, axis=0)") + ".* 10 buffers, .* binds 8"
    refused(lambda b, slot: p.concat([slot(1) for _ in range(9)], 0), wide)
    grid = r"%1: f32\[100\] = exp\(%0\): a grid of 13 groups: the target launches 2 by 3"
    refused(lambda b, slot: p.exp(slot(100)), grid, Caps(group_threads=8, max_groups=(2, 3, 1)))


def test_weights_that_are_not_what_a_layout_holds():
    def packed(b, slot):
        return p.packed_dequant(b.slot(SlotKey(SlotKind.INPUT, "raw"), TensorType((4, 34), U8)), "q8_0")

    refused(packed, "packed bytes come from a weight")
    refused(
        lambda b, slot: p.packed_dequant(p.cast(p.iota(b, (2, 34), 1, I32), U8), "q8_0"),
        "packed bytes come from a weight",
    )
    refused(
        lambda b, slot: p.cast(b.weight(WeightKey(None, "ids"), TensorType((4,), I32)), F32),
        r"weight .*ids.* dense weights are",
    )

    def twice(b, slot):
        weight = b.weight(WeightKey(None, "w"), TensorType((4, 680), U8))
        return p.concat([p.packed_dequant(weight, "q8_0"), p.packed_dequant(weight, "q4_1")], 1)

    refused(twice, "it is read as q8_0 and as q4_1")


@pytest.mark.parametrize(("limit", "shape"), [(1024, (300,)), (4096, (64, 17))], ids=str)
def test_tensors_over_the_binding_limit(limit, shape):
    what = re.escape(f"tensor f32[{', '.join(map(str, shape))}]")
    refused(lambda b, slot: p.exp(slot(*shape)) + 1.0, what, Caps(max_binding_bytes=limit))


def test_a_device_of_whole_graphs_refuses_what_it_has_not():
    caps = Caps(granularity=Granularity.GRAPH, operations=frozenset(["exp"]))
    refused(lambda b, slot: p.tanh(p.exp(slot(3))), r"tanh -> f32\[3\]: device paper has no tanh", caps)


def test_long_chains_become_several_kernels(g, run):
    """Far deeper than a kernel, or Python's stack, should be."""
    x, y = g.floats(4), g.floats(4)
    for _ in range(300):
        x = p.tanh(x) * 0.5 + y
    g.output(x)
    match = run(g)
    assert 5 < len(match.regions) < 40


def test_what_is_shared_counts_once(g, compiled):
    """2^40 operations, were both operands computed each for itself."""
    x = g.floats(4)
    for _ in range(40):
        x = p.minimum(x * x, x + 1.0)
    g.output(x)
    assert len(compiled(g).dispatches) < 5


def test_movements_do_not_multiply_without_bound(g, run):
    """Each concat asks for what is under it twice."""
    x = g.floats(5)
    for _ in range(14):
        x = p.slice_(p.concat([x, p.tanh(x)], 0), (2,), (7,))
    g.output(x)
    assert len(run(g).regions) > 1


@pytest.mark.parametrize("dtype", [BF16, F16, I8, U8, U32], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 1), (1, 3, 3)], ids=str)
def test_odd_counts_of_every_dtype(g, run, dtype, shape):
    """As slots, intermediates, reductions and outputs."""
    x = g.slot(g.rng.integers(0, 100, shape).astype(np.int32), I32)
    narrow = p.cast(x, dtype)
    g.output(narrow)
    g.output(p.cast(narrow, F32) * 0.5)
    given = g.slot(g.rng.integers(0, 100, shape).astype(dtype.numpy), dtype)
    g.output(given)
    g.output(p.cast(p.cast(given, F32) + 1.0, BF16))
    if shape:
        g.output(p.cast(p.sum_(p.cast(given, F32), 0), F16))
        g.output(p.cast(f.softmax(p.cast(given, F32) * 0.1), BF16))
    run(g)


def test_integers_divide_towards_zero(g, run):
    values = np.int32([-7, 7, -8, 8, -1, 0, 2**31 - 1, -(2**31)])
    x = g.slot(values, I32)
    for divisor in (1, 2, 3, -1, -2, -3, 2**31 - 1, -(2**31)):
        if divisor == -1:  # -2^31 / -1 wraps, and a target may do anything
            continue
        y = g.builder.splat(divisor, x.type)
        g.output(p.div(x, y))
        g.output(p.rem(x, y))
    divisors = g.slot(np.int32([2, -2, 3, -3, 5, -7, -(2**31), 2]), I32)
    g.output(p.div(x, divisors))
    g.output(p.rem(x, divisors))
    unsigned = p.bitcast(x, U32)
    g.output(p.div(unsigned, g.builder.splat(3, unsigned.type)))
    g.output(p.rem(unsigned, p.bitcast(divisors, U32)))
    run(g)


def test_verified_compilations_are_the_same(g):
    graph = layers(1)
    assert text(compile(graph, TARGET, CompileOptions(verify=True))) == text(compile(graph, TARGET))
