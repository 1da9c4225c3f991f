"""Matchers look at structure: graphs that were commuted, reshaped and re-associated at random give the same regions."""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poot_eval.conformance.inputs import Recorder, packed_rows
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, Target, compile
from poot_executor.compile.classify import ELEMENTWISE
from poot_executor.dtype import F32, I32, U8
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.graph.show import show
from poot_executor.graph.traced import Traced
from poot_executor.weights import WeightKey

CAPS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
WIDTH, HEADS, HEAD, TOKENS, SPAN = 32, 2, 16, 2, 19


# What is rewritten


def linear(g, x, rows, name="q8_0"):
    return f.linear(x, g.weight(FORMATS[name], rows, WIDTH), FORMATS[name])


def projection(g):
    """Norm, Q and K normed by heads and rotated, K and V written into pools."""
    h = f.rms_norm(g.floats(1, TOKENS, WIDTH), g.floats(WIDTH), 1e-5)
    angle = g.rng.uniform(-3, 3, (1, TOKENS, HEAD // 2)).astype(np.float32)
    turn = g.slot(np.cos(angle), F32), g.slot(np.sin(angle), F32)
    place = g.slot(g.rng.permutation(9)[:TOKENS].astype(np.int32), I32)
    for role, count in (("q", HEADS), ("k", 1), ("v", 1)):
        y = p.reshape(linear(g, h, count * HEAD), (1, TOKENS, count, HEAD))
        if role != "v":
            y = f.rope(f.rms_norm(y, g.floats(HEAD, low=0.5, high=1.5), 1e-5), *turn)
        if role == "q":
            g.output(y)
            continue
        key, before = g.state(role, g.rng.standard_normal((9, count, HEAD)).astype(np.float32), F32)
        g.builder.next_state(key, p.scatter_update(before, place, p.reshape(y, (TOKENS, count, HEAD))))


def mlp(g):
    x = g.floats(TOKENS, WIDTH)
    h = f.layer_norm(x, g.floats(WIDTH), g.floats(WIDTH), 1e-5)
    g.output(f.geglu(linear(g, h, 24), linear(g, h, 24)))


def paged_attention(g, **options):
    """Over a pool that a block table maps, windowed and capped."""
    blocks = g.slot(np.array([[3, 1], [2, 4]], np.int32), I32)
    at = p.reshape(blocks * 16, (2, 2, 1)) + p.iota(g.builder, (2, 2, 16), 2, I32)
    held = p.reshape(at, (2, 32))
    k, v = (p.gather(g.floats(80, 1, 8), held) for _ in "kv")
    position, last = g.slot(np.array([25, 3], np.int32), I32), g.slot(np.zeros(2, np.int32), I32)
    mask, visible = f.causal_mask(position, last, 1, 32, 9), f.written_mask(position, last, 32)
    q = g.floats(2, 1, HEADS, 8, low=-1, high=1)
    g.output(f.attention(q, k, v, mask, 0.35, visible, softcap=5.0, **options))


def attention_with_sinks(g):
    paged_attention(g, sinks=g.floats(HEADS, low=-1, high=1))


def experts(g):
    x, which = g.floats(3, WIDTH), g.slot(g.rng.integers(0, 2, 3).astype(np.int32), I32)
    made = []
    for role in ("gate", "up"):
        stored = packed_rows(g.rng, FORMATS["q4_1"], 2 * 24, WIDTH).reshape(2, 24, -1)
        g.inputs[WeightKey(0, role)] = stored
        weight = f.dequantized(g.builder.weight(WeightKey(0, role), TensorType(stored.shape, U8)), FORMATS["q4_1"])
        made.append(p.indexed_matmul(x, p.transpose(weight, (0, 2, 1)), which))
    g.output(f.swiglu(made[0] * 0.1, made[1]))


GRAPHS = {f.__name__: f for f in (projection, mlp, paged_attention, attention_with_sinks, experts)}


# How


def rewritten(graph, rng, share=0.4):
    """The same function of the same inputs, each equation written otherwise with a probability of `share`."""
    b, known = Builder(graph.name), {}
    for item in graph.inputs:
        value = item.value
        made = {SlotKey: b.slot, StateKey: b.state, WeightKey: b.weight}.get(type(item.key))
        known[value] = b.computed(item.data, value.dtype) if made is None else made(item.key, value.type)
    for equation in graph.equations:
        operands = [known[v] for v in equation.inputs]
        ways = [w for w in WAYS if w(b, equation, operands, rng, True)] if rng.random() < share else []
        if ways:
            y = ways[rng.integers(len(ways))](b, equation, operands, rng, False)
        else:
            y = b.apply(equation.op, *operands, **equation.params)
        known[equation.output] = y
    for name, value in graph.outputs.items():
        b.output(name, known[value])
    for pair in graph.state:
        b.next_state(pair.key, known[pair.after])
    return b.build()


def commuted(b, equation, operands, rng, asked):
    """Operands change places."""
    return equation.op in ("add", "mul", "max", "min", "and", "or") and (asked or b.apply(equation.op, *operands[::-1]))


def as_a_sum(b, equation, operands, rng, asked):
    """a − b is a + (−b)."""
    fits = equation.op == "sub" and equation.output.dtype.is_float
    return fits and (asked or operands[0] + -operands[1])


def as_a_product(b, equation, operands, rng, asked):
    """a / b is a · (1 / b)."""
    fits = equation.op == "div" and equation.output.dtype.is_float
    return fits and (asked or operands[0] * p.recip(operands[1]))


def by_rows(b, equation, operands, rng, asked):
    """Elementwise work on [rows, columns], or on an axis more."""
    shape = equation.output.shape
    if equation.op not in ELEMENTWISE or len(shape) < 2:
        return False
    if asked:
        return True
    other = (prod(shape[:-1]), shape[-1]) if rng.random() < 0.5 else (shape[0], 1, *shape[1:])
    return p.reshape(b.apply(equation.op, *(p.reshape(x, other) for x in operands), **equation.params), shape)


def there_and_back(b, equation, operands, rng, asked):
    """The result through a shape, or an order of axes, and back."""
    shape = equation.output.shape
    if asked:
        return bool(shape)
    y = b.apply(equation.op, *operands, **equation.params)
    if rng.random() < 0.5:
        return p.reshape(p.reshape(y, (y.type.count,)), shape)
    order = tuple(int(i) for i in rng.permutation(len(shape)))
    return p.transpose(p.transpose(y, order), tuple(int(i) for i in np.argsort(order)))


def negated_choice(b, equation, operands, rng, asked):
    """select(¬c, b, a)."""
    return equation.op == "select" and (asked or p.select(~operands[0], operands[2], operands[1]))


def in_two_steps(b, equation, operands, rng, asked):
    """A broadcast one axis at a time."""
    if equation.op != "broadcast":
        return False
    shapes = zip(equation.inputs[0].shape, equation.output.shape, strict=True)
    grown = [a for a, (m, n) in enumerate(shapes) if m != n]
    if len(grown) < 2 or asked:
        return len(grown) >= 2
    y = operands[0]
    for axis in rng.permutation(grown):
        y = p.broadcast(y, (*y.shape[:axis], equation.output.shape[axis], *y.shape[axis + 1 :]))
    return y


def reassociated(b, equation, operands, rng, asked):
    """(a · c) · d is a · (c · d)."""
    outer, inner = equation.op, b._equations[-1] if b._equations else None
    fits = outer in ("mul", "add") and inner is not None and inner.op == outer and equation.output.dtype is F32
    fits = fits and inner.output == operands[0].value and operands[1].value != operands[0].value
    if not fits or asked:
        return fits
    first, second = (Traced(b, v) for v in inner.inputs)
    return b.apply(outer, first, b.apply(outer, second, operands[1]))


WAYS = [commuted, as_a_sum, as_a_product, by_rows, there_and_back, negated_choice, in_two_steps, reassociated]


def made(name, seed):
    """A graph with inputs, and what draws the rest."""
    rng = np.random.default_rng(seed)
    g = Recorder(name, rng)
    GRAPHS[name](g)
    return g, rng


@pytest.fixture(scope="module")
def written():
    """written(name): a graph as it is written, the same for every seed, and the regions that it gives."""

    @cache
    def known(name):
        graph = made(name, 0)[0].builder.build()
        return show(graph), [d.region for d in compile(graph, Target("paper", CAPS)).dispatches]

    return known


def check(written, name, seed, run):
    g, rng = made(name, seed)
    plain = g.builder.build()
    text, expected = written(name)
    assert show(plain) == text
    graph = rewritten(plain, rng)
    if run:
        program = assert_device_matches(ReferenceDevice(CAPS), graph, g.given()).program
    else:
        program = compile(graph, Target("paper", CAPS))
    assert [d.region for d in program.dispatches] == expected, program.declines


QUICK = settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", GRAPHS)
@QUICK
@given(seed=st.integers(0, 2**32 - 1))
def test_rewritten_graphs_have_the_same_regions(written, name, seed):
    check(written, name, seed, run=seed % 3 == 0)


@pytest.mark.sweep(most=2)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("part", range(4))
@settings(QUICK, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_many_rewritten_graphs_have_the_same_regions(written, name, part, seed):
    check(written, name, seed, run=True)
