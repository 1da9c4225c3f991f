"""Layers of the known families, traced the way a driver traces them: how many dispatches each takes, and that they
compute what the oracle does, over pools that block tables map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from poot_eval import EvalOptions, end_to_end_bound, eval
from poot_eval.compare import assert_matches
from poot_eval.conformance.crossed import crossed
from poot_eval.conformance.inputs import floats, packed_rows
from poot_eval.conformance.session import open_session
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, Target, compile
from poot_executor.dtype import BF16, F32, I32, U8, DType
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import WeightKey

ROWS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
LANES = Caps(group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
SPLIT = Caps(tile_rows=4, group_threads=16, max_bindings=31, parallel_groups=64)
CAPS = {"rows": ROWS, "lanes": LANES, "split": SPLIT}

WIDTH, HEADS, KV_HEADS, HEAD, FFN, SPAN, BLOCK, BLOCKS, WORDS = 32, 4, 2, 8, 64, 32, 16, 5, 40


@dataclass(frozen=True)
class Family:
    """What tells families apart. `turned` columns of a head are rotated; `most` of `experts` are chosen."""

    bias: bool = False
    head_norm: bool = False
    both_sides: bool = False
    softcap: float | None = None
    window: int | None = None
    tanh: bool = False
    experts: int = 0
    most: int = 2
    sinks: bool = False
    slopes: bool = False
    turned: int = HEAD
    interleaved: bool = False
    scale: float = 1.0
    format: str = "f32"
    activations: DType = F32


FAMILIES = {
    "llama": (Family(), 5),
    "narrow llama": (Family(format="bf16", activations=BF16), 5),
    "packed llama": (Family(format="q4_1"), 5),
    "qwen2": (Family(bias=True), 5),
    "qwen3": (Family(head_norm=True), 5),
    "interleaved": (Family(interleaved=True, head_norm=True), 5),
    "partial": (Family(turned=6, scale=0.7), 5),
    "no rotation, slopes": (Family(turned=0, slopes=True), 5),
    "sinks": (Family(sinks=True, window=9, bias=True), 5),
    # Each norm after a block looks at whole rows, which no group of the projection before it has: a dispatch of its
    # own, with the residual.
    "gemma": (Family(both_sides=True, softcap=20.0, window=9, tanh=True, head_norm=True), 7),
    # After attention's three: norm and router; the choice; its weights; norm, gate and up; down; their sum and the
    # residual. A choice needs all logits, the rest needs the choice, a sum needs every expert.
    "experts": (Family(experts=4), 9),
    "packed experts": (Family(experts=4, format="q4_0"), 9),
}


class Step:
    """Two layers of a family over rows × tokens, with a paged pool or a contiguous one."""

    def __init__(self, family, rows, tokens, paged=True):
        self.family, self.rows, self.tokens, self.paged = family, rows, tokens, paged
        self.format, self.b = FORMATS[family.format], Builder("family")
        b, both = self.b, (rows, tokens)
        ids = b.slot(SlotKey(SlotKind.TOKEN), TensorType(both, I32))
        self.position, last = (b.slot(SlotKey(k), TensorType((rows,), I32)) for k in (SlotKind.POS, SlotKind.LAST))
        place = b.slot(SlotKey(SlotKind.WRITE_MAP), TensorType(both, I32))
        self.place = p.reshape(place, (rows * tokens,))
        self.masks = [f.causal_mask(self.position, last, tokens, SPAN, w) for w in (family.window, None)]
        self.visible = f.written_mask(self.position, last, SPAN)
        if family.turned:
            rates = b.computed(1e4 ** -(np.arange(family.turned // 2) / 4), F32)
            self.turn = f.rotary_table(self.position, tokens, rates, family.scale)
        if paged:
            block = b.slot(SlotKey(SlotKind.SLOT_MAP), TensorType((rows, SPAN // BLOCK), I32))
            at = p.iota(b, (rows, SPAN // BLOCK, BLOCK), 2, I32)
            self.held = p.reshape(p.reshape(block * BLOCK, (rows, SPAN // BLOCK, 1)) + at, (rows, SPAN))
        table = f.stored_weight(b, WeightKey(None, "embedding"), self.format, (WORDS, WIDTH))
        x = f.embedding(table, self.format, p.reshape(ids, (rows * tokens,)))
        x = x * WIDTH**0.5 if family.both_sides else x
        for layer in range(2):
            x = x + self.after(self.attention(x, layer), layer, "attention")
            mixed = self.experts(x, layer) if family.experts else self.mlp(x, layer)
            x = x + self.after(mixed, layer, "mlp")
        b.output("x", x)

    def weight(self, layer, role, *shape):
        return self.b.weight(WeightKey(layer, role), TensorType(shape, F32))

    def norm(self, x, layer, role):
        return f.rms_norm(x, self.weight(layer, role, x.shape[-1]), 1e-5, 1.0 if self.family.both_sides else 0.0)

    def after(self, x, layer, role):
        return self.norm(x, layer, f"{role}_after") if self.family.both_sides else x

    def linear(self, x, layer, role, rows, bias=False):
        weight = f.stored_weight(self.b, WeightKey(layer, role), self.format, (rows, x.shape[-1]))
        bias = self.weight(layer, f"{role}_bias", rows) if bias else None
        return f.linear(x, weight, self.format, bias, self.family.activations)

    def attention(self, x, layer):
        family, h = self.family, self.norm(x, layer, "norm")
        q, k, v = (
            p.reshape(self.linear(h, layer, role, n * HEAD, family.bias), (self.rows, self.tokens, n, HEAD))
            for role, n in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        if family.head_norm:
            q, k = self.norm(q, layer, "q_norm"), self.norm(k, layer, "k_norm")
        if family.turned:
            q, k = (f.rope(y, *self.turn, interleaved=family.interleaved) for y in (q, k))
        keys, values = (self.remember(layer, role, y) for role, y in (("k", k), ("v", v)))
        slopes = self.weight(layer, "slopes", HEADS) if family.slopes else None
        out = f.attention(
            q, keys, values, self.masks[layer % 2], HEAD**-0.5, self.visible, family.softcap, family.activations,
            f.linear_bias(slopes, self.position, self.tokens, SPAN) if slopes is not None else None,
            self.weight(layer, "sinks", HEADS) if family.sinks else None,
        )  # fmt: skip
        return self.linear(p.reshape(out, (x.shape[0], HEADS * HEAD)), layer, "o", WIDTH, family.bias)

    def remember(self, layer, role, y):
        key, positions = StateKey(layer, role), BLOCKS * BLOCK if self.paged else self.rows * SPAN
        before = self.b.state(key, TensorType((positions, KV_HEADS, HEAD), self.family.activations))
        fresh = p.cast(p.reshape(y, (self.rows * self.tokens, KV_HEADS, HEAD)), self.family.activations)
        after = p.scatter_update(before, self.place, fresh)
        self.b.next_state(key, after)
        return p.gather(after, self.held) if self.paged else p.reshape(after, (self.rows, SPAN, KV_HEADS, HEAD))

    def mlp(self, x, layer):
        h = self.norm(x, layer, "mlp_norm")
        gate, up = self.linear(h, layer, "gate", FFN), self.linear(h, layer, "up", FFN)
        return self.linear((f.geglu if self.family.tanh else f.swiglu)(gate, up), layer, "down", WIDTH)

    def matrices(self, layer, role, rows, columns):
        shape = (self.family.experts, rows, columns)
        weight = f.stored_weight(self.b, WeightKey(layer, role), self.format, shape)
        return p.transpose(f.dequantized(weight, self.format), (0, 2, 1))

    def experts(self, x, layer):
        count, experts, most = x.shape[0], self.family.experts, self.family.most
        h = self.norm(x, layer, "mlp_norm")
        logits = self.linear(h, layer, "router", experts)
        chosen = p.arg_top_k(logits, most)
        row = p.broadcast(p.reshape(p.iota(self.b, (count,), 0, I32), (count, 1)), (count, most))
        weights = f.softmax(p.gather(p.reshape(logits, (count * experts,)), row * experts + chosen))
        chosen, row = p.reshape(chosen, (count * most,)), p.reshape(row, (count * most,))
        read = p.gather(h, row)
        gate, up = (p.indexed_matmul(read, self.matrices(layer, r, FFN, WIDTH), chosen) for r in ("gate", "up"))
        down = p.indexed_matmul(f.swiglu(gate, up), self.matrices(layer, "down", WIDTH, FFN), chosen)
        return p.sum_(p.reshape(down, (count, most, WIDTH)) * p.reshape(weights, (count, most, 1)), 1)

    def inputs(self, graph, rng):
        """Weights near 1 / √depth; row 0 far on, row 1 near the start, with one token less where it has several."""
        rows, tokens = self.rows, self.tokens
        start = np.array([SPAN - tokens - 2, 3][:rows], np.int32)
        last = np.array([tokens - 1, max(0, tokens - 2)][:rows], np.int32)
        blocks = np.array([[1, 3], [4, 2]][:rows], np.int32) if self.paged else np.arange(2 * rows).reshape(rows, 2)
        at = start[:, None] + np.arange(tokens)
        place = blocks[np.arange(rows)[:, None], at // BLOCK] * BLOCK + at % BLOCK
        place = np.where(np.arange(tokens) <= last[:, None], place, -1)
        given = {
            SlotKind.TOKEN: rng.integers(0, WORDS, (rows, tokens)), SlotKind.POS: start, SlotKind.LAST: last,
            SlotKind.WRITE_MAP: place, SlotKind.SLOT_MAP: blocks,
        }  # fmt: skip
        found = {}
        for item in graph.inputs:
            key, shape, dtype = item.key, item.value.shape, item.value.dtype
            if isinstance(key, SlotKey):
                found[key] = given[key.kind].astype(np.int32)
            elif isinstance(key, StateKey):
                found[key] = floats(rng, shape, dtype, -1, 1)
            elif key is not None and dtype is U8:
                columns = shape[-1] // self.format.nbytes * self.format.columns
                found[key] = packed_rows(rng, self.format, int(np.prod(shape[:-1])), columns).reshape(shape)
            elif key is not None:
                size = 0.3 if len(shape) > 1 else 1.0
                found[key] = floats(rng, shape, dtype, -size, size)
        return found


def per_layer(program):
    """Dispatches from one layer's attention to the next's, but for values that all layers share."""
    attentions = [i for i, d in enumerate(program.dispatches) if d.region == "attention"]
    return attentions[-1] - attentions[0]


def check_dispatches(program, name):
    _, count = FAMILIES[name]
    assert per_layer(program) == count
    reasons = {d.reason for d in program.declines}
    assert reasons == ({"a norm over whole rows looks at every group's products"} if count == 7 else set())


NARROW = [name for name, (family, _) in FAMILIES.items() if family.activations is not F32]
"""Families whose steps are not run: narrow activations have no bound over two layers."""
COMPARED = [name for name in FAMILIES if name not in NARROW]
FORMS = ["llama", *NARROW, "gemma", "experts"]
"""One family of each count of dispatches, and narrow ones: from contiguous pools, others are a sweep."""


@pytest.mark.parametrize(
    ("name", "rows", "tokens", "paged", "caps"),
    [
        pytest.param(name, 1, 6, False, "lanes", marks=[] if name in FORMS else [pytest.mark.sweep(most=2)])
        for name in FAMILIES
    ]
    + [(name, 2, *step) for name in NARROW for step in ((1, True, "lanes"), (3, True, "rows"))],
)
def test_dispatches_a_layer(name, rows, tokens, paged, caps):
    """Of a prompt from a contiguous pool; and from a paged one, where no step is run below."""
    program = compile(Step(FAMILIES[name][0], rows, tokens, paged).b.build(), Target("paper", CAPS[caps]))
    check_dispatches(program, name)


def test_positions_that_groups_share_are_combined():
    """One dispatch more where rows and heads do not fill the device."""
    program = compile(Step(Family(), 1, 1).b.build(), Target("paper", SPLIT))
    regions = [d.region for d in program.dispatches]
    assert regions.count("attention") == 4


def check(step, caps, rng):
    """A whole step is held to the distance of the float32 oracle from the float64 one."""
    graph = step.b.build()
    inputs = step.inputs(graph, rng)
    oracle, single = eval(graph, inputs), eval(graph, inputs, EvalOptions(precision="f32"))
    with open_session(ReferenceDevice(caps), graph, inputs) as session:
        result = session.run(session.lower())
        for name, expected in oracle.outputs.items():
            assert_matches(result.outputs[name], expected, end_to_end_bound(single.outputs[name], expected), name)
        for key, expected in oracle.state.items():
            assert_matches(result.state[key], expected, end_to_end_bound(single.state[key], expected), str(key))
        return session.program


@pytest.mark.parametrize(("name", "step"), crossed(COMPARED, [(2, 1, "lanes"), (2, 3, "rows")]))
def test_a_paged_step_of_every_family(rng, name, step):
    rows, tokens, caps = step
    check_dispatches(check(Step(FAMILIES[name][0], rows, tokens), CAPS[caps], rng), name)


@pytest.mark.parametrize(("name", "paged"), crossed(["llama", "sinks", "gemma", "no rotation, slopes"], [True, False]))
def test_a_step_whose_groups_share_positions(rng, name, paged):
    check(Step(FAMILIES[name][0], 2, 1, paged), SPLIT, rng)
