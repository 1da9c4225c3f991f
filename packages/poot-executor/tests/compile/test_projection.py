"""Projections: which regions join, and that they compute what the oracle does, on targets of every kind of schedule."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.crossed import crossed
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, Target, compile
from poot_executor.dtype import BF16, F32, I32, DType, round_bf16
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import WeightKey

# A thread with rows of its own, activations passed round narrow subgroups; the same without subgroups; lanes that share
# rows.
ROWS = Caps(tile_rows=8, group_threads=32, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
PLAIN = Caps(tile_rows=4, group_threads=16, max_bindings=31)
LANES = Caps(group_threads=64, subgroup_width=8, max_bindings=31, features=frozenset(["subgroup"]))
WIDE_LANES = Caps(group_threads=128, subgroup_width=32, max_bindings=31, features=frozenset(["subgroup"]))
CAPS = {"rows": ROWS, "plain": PLAIN, "lanes": LANES, "wide_lanes": WIDE_LANES}

X, Y, PLACE = SlotKey(SlotKind.INPUT, "x"), SlotKey(SlotKind.INPUT, "y"), SlotKey(SlotKind.WRITE_MAP)
COS, SIN = SlotKey(SlotKind.INPUT, "cos"), SlotKey(SlotKind.INPUT, "sin")
WIDTH, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16


@pytest.fixture
def rng(request):
    seed = int(np.random.SeedSequence().entropy) % (1 << 32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def stored(rng, format, rows, columns):
    """Random stored rows of a format, with scales near 0.05."""
    layout = FORMATS[format]
    if layout.dtype is not None:
        values = (rng.standard_normal((rows, columns)) * 0.2).astype(np.float32)
        return {DType.F32: values, DType.F16: values.astype(np.float16), DType.BF16: round_bf16(values)}[layout.dtype]
    raw = rng.integers(0, 256, (rows, layout.row_bytes(columns)), dtype=np.uint8)
    blocks = raw.reshape(rows, -1, layout.nbytes)
    for i in range(sum(field.name in ("scale", "minimum") for field in layout.fields)):
        scales = (rng.standard_normal(blocks.shape[:2]) * 0.05).astype(np.float16)
        blocks[..., 2 * i : 2 * i + 2] = scales[..., None].view(np.uint8)
    return raw


class Layer:
    """A decoder layer without its attention: norm, Q, K and V with rotation and KV write; norm, gate and up."""

    def __init__(self, tokens, format, kv_dtype=F32, interleaved=True):
        self.b = b = Builder("layer")
        self.format, self.tokens = FORMATS[format], tokens
        self.shapes = {}
        x = b.slot(X, TensorType((1, tokens, WIDTH), F32))
        place = b.slot(PLACE, TensorType((tokens,), I32))
        cos, sin = (b.slot(key, TensorType((1, tokens, HEAD // 2), F32)) for key in (COS, SIN))
        h = f.rms_norm(x, b.weight(WeightKey(0, "norm"), TensorType((WIDTH,), F32)), 1e-5)
        q = p.reshape(self.linear(h, "q", HEADS * HEAD), (1, tokens, HEADS, HEAD))
        k = p.reshape(self.linear(h, "k", KV_HEADS * HEAD), (1, tokens, KV_HEADS, HEAD))
        v = p.reshape(self.linear(h, "v", KV_HEADS * HEAD), (1, tokens, KV_HEADS, HEAD))
        b.output("q", f.rope(q, cos, sin, interleaved=interleaved))
        for role, rows in (("k", f.rope(k, cos, sin, interleaved=interleaved)), ("v", v)):
            key = StateKey(0, role)
            before = b.state(key, TensorType((24, KV_HEADS, HEAD), kv_dtype))
            fresh = p.cast(p.reshape(rows, (tokens, KV_HEADS, HEAD)), kv_dtype)
            b.next_state(key, p.scatter_update(before, place, fresh))
        y = b.slot(Y, TensorType((1, tokens, WIDTH), F32))
        g = f.rms_norm(y, b.weight(WeightKey(0, "mlp_norm"), TensorType((WIDTH,), F32)), 1e-5)
        b.output("mlp", f.swiglu(self.linear(g, "gate", 96), self.linear(g, "up", 96)))
        self.kv_dtype = kv_dtype

    def linear(self, x, role, rows):
        key = WeightKey(0, role)
        self.shapes[key] = (rows, WIDTH)
        weight = f.stored_weight(self.b, key, self.format, (rows, WIDTH))
        return f.linear(x, weight, self.format)

    def inputs(self, rng):
        given = {key: stored(rng, self.format.name, *shape) for key, shape in self.shapes.items()}
        for role in ("norm", "mlp_norm"):
            given[WeightKey(0, role)] = (1 + 0.1 * rng.standard_normal(WIDTH)).astype(np.float32)
        angle = rng.uniform(-3, 3, (1, self.tokens, HEAD // 2))
        places = rng.permutation(24)[: self.tokens].astype(np.int32)
        places[rng.integers(self.tokens)] = -1 if self.tokens > 1 else places[0]
        states = {StateKey(0, r): rng.standard_normal((24, KV_HEADS, HEAD)).astype(np.float32) for r in "kv"}
        if self.kv_dtype is BF16:
            states = {key: round_bf16(value) for key, value in states.items()}
        return {
            **given, **states, PLACE: places,
            **{key: rng.standard_normal((1, self.tokens, WIDTH)).astype(np.float32) for key in (X, Y)},
            COS: np.cos(angle).astype(np.float32), SIN: np.sin(angle).astype(np.float32),
        }  # fmt: skip

    def run(self, rng, caps):
        graph = self.b.build()
        used = {i.key for i in graph.inputs}
        inputs = {key: value for key, value in self.inputs(rng).items() if key in used}
        return assert_device_matches(ReferenceDevice(caps), graph, inputs)


@pytest.mark.parametrize(("tokens", "caps"), crossed([1, 3, 9], CAPS))
def test_a_layers_projections_are_two_dispatches(rng, caps, tokens):
    match = Layer(tokens, "q4_1").run(rng, CAPS[caps])
    assert match.regions == ("projection", "projection"), (match.regions, match.program.declines)
    qkv, mlp = match.program.dispatches
    assert qkv.schedule["weights"] == [1, 1, 1]
    assert mlp.schedule["weights"] == [2]
    assert qkv.schedule["prologue"]
    assert mlp.schedule["prologue"]


@pytest.mark.parametrize(("format", "caps"), crossed(FORMATS, CAPS))
def test_every_format(rng, caps, format):
    assert Layer(2, format).run(rng, CAPS[caps]).regions == ("projection", "projection")


@pytest.mark.parametrize("caps", CAPS)
def test_rotation_of_halves(rng, caps):
    match = Layer(2, "q8_0", interleaved=False).run(rng, CAPS[caps])
    assert match.regions == ("projection", "projection")


@pytest.mark.parametrize(("interleaved", "caps"), crossed([True, False], CAPS))
def test_narrow_kv_is_written_in_whole_words(rng, caps, interleaved):
    match = Layer(5, "q4_0", kv_dtype=BF16, interleaved=interleaved).run(rng, CAPS[caps])
    assert match.regions.count("projection") >= 2


def test_an_epilogue_that_looks_too_far_says_why(rng):
    """A turn of a row's columns by a third needs more products than a group has."""
    b = Builder("reversed")
    format = FORMATS["q8_0"]
    y = f.linear(
        b.slot(X, TensorType((2, 32), F32)), f.stored_weight(b, WeightKey(None, "w"), format, (64, 32)), format
    )
    y = p.reshape(y, (2, 64))
    b.output("y", p.concat([p.slice_(p.exp(y), (0, 20), (2, 64)), p.slice_(p.exp(y), (0, 0), (2, 20))], 1))
    inputs = {X: rng.standard_normal((2, 32)).astype(np.float32), WeightKey(None, "w"): stored(rng, "q8_0", 64, 32)}
    match = assert_device_matches(ReferenceDevice(WIDE_LANES), b.build(), inputs)
    assert match.regions == ("contraction", "pointwise")
    assert [d.reason for d in match.program.declines] == ["a group has no whole blocks of 64 columns"]


def test_a_weight_over_the_binding_limit_is_read_in_parts(rng):
    b = Builder("parts")
    format = FORMATS["f32"]
    weight = f.stored_weight(b, WeightKey(None, "head"), format, (70, 32))
    b.output("y", f.linear(b.slot(X, TensorType((2, 32), F32)), weight, format))
    inputs = {X: rng.standard_normal((2, 32)).astype(np.float32), WeightKey(None, "head"): stored(rng, "f32", 70, 32)}
    caps = Caps(tile_rows=8, group_threads=16, max_binding_bytes=4096)
    match = assert_device_matches(ReferenceDevice(caps), b.build(), inputs)
    assert match.regions == ("contraction",) * 3
    assert [d.schedule["part"] for d in match.program.dispatches] == [0, 1, 2]


def test_a_head_of_very_many_rows_leaves_its_norm_apart():
    """16,032 groups would read 16 KiB each for the norm of one row: longer than a dispatch takes."""

    def program(vocabulary):
        b = Builder("head")
        x = b.slot(X, TensorType((1, 2048), F32))
        h = f.rms_norm(x, b.weight(WeightKey(None, "norm"), TensorType((2048,), F32)), 1e-5)
        weight = f.stored_weight(b, WeightKey(None, "head"), FORMATS["bf16"], (vocabulary, 2048))
        b.output("logits", f.linear(h, weight, FORMATS["bf16"]))
        return compile(b.build(), Target("lanes", WIDE_LANES))

    small, large = program(8192), program(128_256)
    assert [d.region for d in small.dispatches] == ["projection"]
    assert [d.region for d in large.dispatches] == ["row_reduction", "contraction"]
    assert any("bytes for their norms" in decline.reason for decline in large.declines)
