"""The law of the compiler: a program computes what the oracle does, for graphs that no model has."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from poot_eval import EvalOptions, eval
from poot_eval.conformance.inputs import floats, integers, packed_rows
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps
from poot_executor.dtype import BF16, BOOL, F16, F32, I8, I32, U8, U32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import WeightKey

# Rows of threads; lanes that share rows, with narrow subgroups; no feature at all and limits that wrap a grid.
CAPS = (
    Caps(tile_rows=4, group_threads=16, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"])),
    Caps(group_threads=32, subgroup_width=4, max_bindings=31, parallel_groups=8, features=frozenset(["subgroup"])),
    Caps(group_threads=8, max_bindings=31, max_groups=(4, 65535, 65535)),
)

SHAPES = [
    (), (1,), (3,), (4,), (6,), (1, 4), (4, 1), (2, 3), (3, 4), (6, 4), (2, 8), (2, 1, 4), (2, 3, 4), (1, 2, 3, 2),
]  # fmt: skip
FLOATS, INTS = (F32, F16, BF16), (I32, U32)
UNARY = {
    "neg": lambda x: -x,
    "abs": p.abs_,
    "exp": lambda x: p.exp(p.minimum(x, one(x, 2.0))),
    "log": lambda x: p.log(p.abs_(x) + 0.5),
    "sqrt": lambda x: p.sqrt(p.abs_(x) + 0.25),
    "recip": lambda x: p.recip(p.abs_(x) + 0.5),
    "tanh": p.tanh,
    "erf": p.erf,
    "sin": p.sin,
    "cos": p.cos,
    "floor": p.floor,
    "round": p.round_,
    "silu": f.silu,
}


def one(x, value):
    return x.builder.splat(value, x.type)


@dataclass
class Drawn:
    """A graph being drawn: its builder, what may be used, and the inputs to run it with."""

    draw: object
    b: Builder
    rng: np.random.Generator
    values: list = field(default_factory=list)
    inputs: dict = field(default_factory=dict)

    def one_of(self, choices):
        return self.draw(st.sampled_from(list(choices)))

    def number(self, low, high):
        return self.draw(st.integers(low, high))

    def contents(self, type):
        if type.dtype is BOOL:
            return np.asarray(self.rng.random(type.shape) < 0.5)
        if type.dtype.is_float:
            return floats(self.rng, type.shape, type.dtype, -2, 2)
        return integers(self.rng, type.shape, type.dtype, -9, 9)

    def slot(self, type, value=None):
        key = SlotKey(SlotKind.INPUT, f"x{len(self.inputs)}")
        self.inputs[key] = self.contents(type) if value is None else value
        return self.b.slot(key, type)

    def state(self, type):
        key = StateKey(None, f"s{len(self.inputs)}")
        self.inputs[key] = self.contents(type)
        return key, self.b.state(key, type)

    def weight(self, name, rows, columns):
        key = WeightKey(None, f"w{len(self.inputs)}")
        format_ = FORMATS[name]
        self.inputs[key] = packed_rows(self.rng, format_, rows, columns)
        return f.stored_weight(self.b, key, format_, (rows, columns)), format_

    def pick(self, fits=lambda _: True):
        found = [v for v in self.values if fits(v)]
        assume(found)
        return self.draw(st.sampled_from([*found, *found[-2:] * 2]))  # chains are what fuses

    def indices(self, shape, limit):
        return self.slot(TensorType(shape, I32), integers(self.rng, shape, I32, 0, limit - 1))


def unary(g):
    x = g.pick(lambda v: v.dtype.is_float)
    return UNARY[g.one_of(UNARY)](x)


def binary(g):
    x = g.pick(lambda v: v.dtype in (*FLOATS, *INTS))
    y = g.pick(lambda v: v.type == x.type)
    if x.dtype.is_float:
        return g.one_of([p.add, p.sub, p.maximum, p.minimum, damped_product, damped_quotient])(x, y)
    op = g.one_of("add sub mul max min and or xor shl shr div rem".split())
    if op in ("div", "rem"):
        y = one(x, g.one_of([1, 2, 3, 7] + ([-2, -5] if x.dtype is I32 else [])))
    return g.b.apply(op, x, y)


def damped_product(a, b):
    return p.mul(p.tanh(a), b)


def damped_quotient(a, b):
    return a / (p.abs_(b) + 0.5)


def broadcasted(g):
    x = g.pick(lambda v: v.dtype.is_float)
    y = g.pick(lambda v: v.dtype is x.dtype and fits_broadcast(v.shape, x.shape))
    return x + y


def fits_broadcast(a, b):
    try:
        return prod(np.broadcast_shapes(a, b)) <= 64
    except ValueError:
        return False


def logical(g):
    x = g.pick(lambda v: v.dtype in (*FLOATS, *INTS))
    y = g.pick(lambda v: v.type == x.type)
    condition = g.b.apply(g.one_of(["eq", "ne", "lt", "le", "gt", "ge"]), x, y)
    return condition if g.number(0, 2) == 0 else p.select(condition, x, y)


def of_bool(g):
    x = g.pick(lambda v: v.dtype is BOOL)
    y = g.pick(lambda v: v.type == x.type)
    return g.one_of([lambda a, b: ~a, p.and_, p.or_, p.xor])(x, y)


def converted(g):
    x = g.pick()
    target = g.one_of([F32, F16, BF16, I32, U32, I8, U8, BOOL])
    if x.dtype.is_float and target.is_int:
        low = 0 if target in (U8, U32) else -100
        x = p.maximum(p.minimum(x, one(x, 100)), one(x, low))
    return p.cast(x, target)


def bits(g):
    x = g.pick(lambda v: v.dtype in (F32, I32, U32, F16, BF16, I8, U8))
    same = {F32: [I32, U32], F16: [BF16], I8: [U8], U8: [I8], I32: [U32], U32: [I32], BF16: [F16]}[x.dtype]
    y = p.bitcast(x, g.one_of(same))
    return p.cast(y, F32) * 1e-9 if y.dtype in (U32, I32) else y


def moved(g):
    x = g.pick()
    rank = len(x.shape)
    kind = g.one_of(["reshape", "transpose", "broadcast", "slice", "concat", "pad"])
    if kind == "reshape":
        shapes = [s for s in SHAPES if prod(s) == x.type.count] + [(x.type.count,), (1, *x.shape), (*x.shape, 1)]
        return p.reshape(x, g.one_of(shapes)) if len(x.shape) < 5 else None
    if kind == "transpose":
        return p.transpose(x, g.draw(st.permutations(range(rank))))
    if kind == "broadcast":
        shape = tuple(g.number(1, 4) if d == 1 else d for d in x.shape)
        return p.broadcast(x, shape) if prod(shape) <= 64 else None
    if kind == "slice":
        start = [g.number(0, d - 1) for d in x.shape]
        stop = [g.number(low + 1, d) for low, d in zip(start, x.shape, strict=True)]
        return p.slice_(x, start, stop, [g.number(1, 2) for _ in start])
    if kind == "concat" and rank:
        axis = g.number(0, rank - 1)
        others = [v for v in g.values if v.dtype is x.dtype and alike(v.shape, x.shape, axis)]
        parts = [x, *(g.one_of(others) for _ in range(g.number(0, 2)))]
        return p.concat(parts, axis) if sum(v.type.count for v in parts) <= 96 else None
    value = {"f": 0.3, "b": True, "i": 3, "u": 3}[x.dtype.numpy.kind]
    low, high = ([g.number(0, 1) for _ in x.shape] for _ in range(2))
    return p.pad(x, low, high, value) if rank and x.type.count <= 32 else None


def alike(a, b, axis):
    return len(a) == len(b) and all(m == n for i, (m, n) in enumerate(zip(a, b, strict=True)) if i != axis)


def reduced(g):
    x = g.pick(lambda v: v.shape and v.dtype in (*FLOATS, *INTS))
    axis = g.number(0, len(x.shape) - 1)
    y = g.one_of([p.sum_, p.reduce_max, p.argmax])(x, axis)
    if y.dtype is x.dtype and g.number(0, 1):  # back beside what it was made of
        kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return x - p.broadcast(p.reshape(y, kept), x.shape)
    return y


def rows(g):
    x = g.pick(lambda v: v.shape and v.dtype is F32)
    weight = g.slot(TensorType(x.shape[-1:], F32))
    y = g.one_of([f.softmax, lambda v: f.rms_norm(v, weight, 1e-3), lambda v: f.layer_norm(v, weight, weight, 1e-3)])(x)
    return p.cast(y, g.one_of([F32, F32, BF16]))


def top_k(g):
    x = g.pick(lambda v: v.shape and v.dtype in (*FLOATS, *INTS))
    return p.arg_top_k(x, g.number(1, x.shape[-1]))


def product(g):
    x = g.pick(lambda v: len(v.shape) >= 2 and v.dtype.is_float)
    y = g.pick(lambda v: v.dtype.is_float and len(v.shape) == len(x.shape) and v.shape[:-2] == x.shape[:-2])
    if y.shape[-2] != x.shape[-1]:
        rank = len(y.shape)
        y = p.transpose(y, (*range(rank - 2), rank - 1, rank - 2))
    return (x @ y) * 0.25 if y.shape[-2] == x.shape[-1] else None


def projected(g):
    x = g.pick(lambda v: v.dtype is F32 and v.shape)
    name = g.one_of(["f32", "bf16", "f16"])
    weight, format_ = g.weight(name, g.number(1, 9), x.shape[-1])
    bias = g.slot(TensorType(weight.shape[:1], F32)) if g.number(0, 1) else None
    return f.linear(x, weight, format_, bias, g.one_of([F32, F32, BF16])) * 0.25


def packed(g):
    x = g.pick(lambda v: v.dtype is F32 and 1 < v.type.count <= 64 and v.type.count % 2 == 0)
    flat = p.reshape(x, (2, x.type.count // 2))
    wide = p.concat([flat] * (32 // flat.shape[1] + 1), 1)
    weight, format_ = g.weight(g.one_of(["q4_0", "q5_1", "q8_0"]), g.number(1, 9), 32)
    return f.linear(p.slice_(wide, (0, 0), (2, 32)), weight, format_) * 0.25


def gathered(g):
    data = g.pick(lambda v: v.shape)
    shape = g.one_of([(), (2,), (3,), (2, 2)])
    return p.gather(data, g.indices(shape, data.shape[0]))


def embedded(g):
    name = g.one_of(["q4_1", "q8_0", "bf16"])
    weight, format_ = g.weight(name, g.number(1, 7), 32)
    rows_ = f.embedding(weight, format_, g.indices((2,), weight.shape[0]))
    return p.slice_(rows_, (0, 0), (2, 8))


def updated(g):
    data = g.pick(lambda v: v.shape)
    count = g.number(1, data.shape[0])
    index = g.rng.permutation(data.shape[0])[:count].astype(np.int32)
    index[g.rng.random(count) < 0.2] = -1
    fresh = TensorType((count, *data.shape[1:]), data.dtype)
    same = [v for v in g.values if v.type == fresh]
    return p.scatter_update(data, g.slot(TensorType((count,), I32), index), g.one_of(same) if same else g.slot(fresh))


def inserted(g):
    data = g.pick(lambda v: v.shape)
    axis = g.number(0, len(data.shape) - 1)
    extent = g.number(1, data.shape[axis])
    shape = (*data.shape[:axis], extent, *data.shape[axis + 1 :])
    return p.dynamic_update_slice(
        data, g.slot(TensorType(shape, data.dtype)), g.indices((), data.shape[axis] - extent + 1), axis
    )


def counted(g):
    shape = g.one_of(s for s in SHAPES if s)
    return p.iota(g.b, shape, g.number(0, len(shape) - 1), g.one_of([F32, I32, U32]))


def siblings(g):
    """Contractions of one input, a norm before them, and epilogues that look at each other and beyond their place."""
    count, width = g.number(1, 4), g.one_of([32, 64])
    x = g.slot(TensorType((count, width), F32))
    if g.number(0, 2):
        x = f.rms_norm(x, g.slot(TensorType((width,), F32)), 1e-3)
    made = [x] if g.number(0, 3) == 0 else []
    for _ in range(g.number(2, 3)):
        weight, format_ = g.weight(g.one_of(["f32", "bf16", "q4_1", "q8_0"]), g.one_of([8, 8, 16]), width)
        y = f.linear(x, weight, format_, activations=g.one_of([F32, F32, F32, BF16])) * 0.1
        for _ in range(g.number(0, 3)):
            y = g.one_of([turned, halved, paired, gated, scattered, lambda g, y, _: p.tanh(y)])(g, y, made)
        made.append(y)
    return made


def turned(g, y, made):
    """Places of a row in another order."""
    count, width = y.shape
    at = g.number(1, width - 1)
    return p.concat([p.slice_(y, (0, at), (count, width)), p.slice_(y, (0, 0), (count, at))], 1)


def halved(g, y, made):
    """The two halves of each head, turned into one another."""
    count, width = y.shape
    heads = p.reshape(y, (count, width // 4, 4))
    low, high = (p.slice_(heads, (0, 0, a), (count, width // 4, a + 2)) for a in (0, 2))
    cos = p.broadcast(p.reshape(p.cos(g.slot(TensorType((count, 2), F32))), (count, 1, 2)), low.shape)
    return p.reshape(p.concat([low * cos - high, high * cos + low], 2), (count, width))


def paired(g, y, made):
    """Neighbours, turned into one another."""
    count, width = y.shape
    pairs = p.reshape(y, (count, width // 2, 2))
    even, odd = (p.slice_(pairs, (0, 0, a), (count, width // 2, a + 1)) for a in (0, 1))
    return p.reshape(p.concat([even - odd * 0.5, odd + even], 2), (count, width))


def gated(g, y, made):
    same = [v for v in made if v.type == y.type]
    other = g.one_of(same) if same else y
    return g.one_of([lambda: f.silu(y) * other, lambda: y + p.tanh(other), lambda: y * f.softmax(other)])()


def scattered(g, y, made):
    """Written into a pool; what is read back is gathered from it."""
    count, width = y.shape
    dtype = g.one_of([F32, F32, BF16])
    key, before = g.state(TensorType((6, width), dtype))
    index = g.slot(TensorType((count,), I32), g.rng.permutation(6)[:count].astype(np.int32))
    after = p.scatter_update(before, index, p.cast(y, dtype))
    g.b.next_state(key, after)
    return p.cast(p.gather(g.one_of([after, before]), index), F32)


def attended(g):
    """Scores, anything elementwise, a softmax and values; insides that may be read elsewhere."""
    lead = g.one_of([(), (2,), (1, 2)])
    count, span, width = g.number(1, 5), g.number(2, 13), g.one_of([2, 4, 5])
    q, k, v = (g.slot(TensorType((*lead, n, width), F32)) for n in (count, span, span))
    axes = tuple(range(len(lead)))
    scores = q @ p.transpose(k, (*axes, len(lead) + 1, len(lead)))
    x = scores * 0.5
    if g.number(0, 1):
        x = g.one_of([lambda: p.tanh(x) * 2.0, lambda: x + g.slot(x.type), lambda: x - p.abs_(x) * 0.25])()
    if g.number(0, 2):
        seen = g.slot(TensorType(x.shape, BOOL), np.asarray(g.rng.random(x.shape) < g.one_of([0.6, 0.1])))
        x = p.select(seen, x, g.b.splat(g.one_of([f.MASKED, -1e30, -50.0]), x.type))
    weights = f.softmax(x)
    made = [scores] if g.number(0, 7) == 0 else []
    made += [weights] if g.number(0, 7) == 0 else []
    out = weights @ v
    return [*made, out * g.slot(out.type) if g.number(0, 1) else out]


MAKERS = [
    unary, unary, binary, binary, broadcasted, logical, of_bool, converted, converted, bits, moved, moved, moved,
    reduced, reduced, rows, top_k, product, projected, packed, gathered, embedded, updated, updated, inserted, counted,
]  # fmt: skip


LAYERS = [siblings, siblings, attended, unary, binary, broadcasted, moved, reduced, rows, product]
"""Makers of what models are made of, in ways that none is."""


@st.composite
def graphs(draw, most=10, makers=tuple(MAKERS)):
    """A small graph of any primitives over slots, states and weights, with its inputs."""
    g = Drawn(draw, Builder("random"), np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
    for _ in range(draw(st.integers(1, 3))):
        dtype = g.one_of([F32, F32, F32, F16, BF16, I32, U32, BOOL, I8, U8])
        g.values.append(g.slot(TensorType(g.one_of(SHAPES), dtype)))
    held = [F32, F32, BF16, I32, BOOL]
    states = [g.state(TensorType(g.one_of(SHAPES), g.one_of(held))) for _ in range(draw(st.integers(0, 2)))]
    g.values += [state for _, state in states]
    for _ in range(draw(st.integers(1, most))):
        made = g.one_of(makers)(g)
        g.values += [x for x in (made if isinstance(made, list) else [made]) if x is not None and x.type.count <= 128]
    for key, state in states:
        same = [v for v in g.values if v.type == state.type]
        if g.number(0, 3):
            g.b.next_state(key, g.one_of([*same, *same[-1:] * 3]))
    for place, x in enumerate(reversed(g.values)):
        if place < 3 or (place < 6 and g.number(0, 2) == 0):
            g.b.output(f"y{place}", x)
    return g.b.build(), g.inputs


def check(case, devices):
    graph, inputs = case
    oracle = eval(graph, inputs, EvalOptions(environment=True))
    numbers = [v for v in oracle.environment.values() if v.dtype.kind == "f"]
    assume(all(np.isfinite(v).all() and (np.abs(v) < 1e4).all() for v in numbers))
    for device in devices:
        assert_device_matches(device, graph, inputs, undecided=1.0)


QUICK = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


@QUICK
@given(graphs())
def test_random_graphs_match_the_oracle(case):
    check(case, [ReferenceDevice(caps) for caps in CAPS])


@settings(QUICK, max_examples=12)
@given(graphs(most=3, makers=tuple(LAYERS)))
def test_random_layers_match_the_oracle(case):
    check(case, [ReferenceDevice(caps) for caps in CAPS])


@pytest.mark.sweep(most=1)
@pytest.mark.parametrize("part", range(25))
@settings(QUICK, max_examples=10)
@given(case=graphs(most=5, makers=tuple(LAYERS)))
def test_many_random_layers_match_the_oracle(case, part):
    check(case, [ReferenceDevice(caps) for caps in CAPS])


@pytest.mark.sweep(most=2)
@pytest.mark.parametrize("part", range(60))
@settings(QUICK, max_examples=25)
@given(case=graphs(most=16))
def test_many_random_graphs_match_the_oracle(case, part):
    check(case, [ReferenceDevice(caps) for caps in CAPS])
