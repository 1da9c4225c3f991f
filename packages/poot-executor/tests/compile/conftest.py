"""What tests of the compiler share: graphs with inputs, run on the reference device against the oracle; a decoder."""

import numpy as np
import pytest

from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, Target, compile
from poot_executor.dtype import F32, I32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import WeightKey


@pytest.fixture
def g(rng, request):
    """A recorder: a builder beside the inputs of its graph."""
    return Recorder(request.node.originalname, rng)


@pytest.fixture
def run():
    """run(recorder, caps): the match of its graph on a reference device with these caps."""

    def on(recorder, caps=Caps(), **options):  # noqa: B008
        return assert_device_matches(ReferenceDevice(caps), recorder.builder.build(), recorder.given(), **options)

    return on


@pytest.fixture
def compiled():
    """compiled(recorder, caps): the program of its graph, run nowhere."""

    def made(recorder, caps=Caps(), *options):  # noqa: B008
        return compile(recorder.builder.build(), Target("paper", caps), *options)

    return made


@pytest.fixture(scope="session")
def decoder():
    """decoder(rows, tokens, ...): a small llama step."""
    return Decoder


class Decoder:
    """A llama layer over pools, contiguous or paged, traced the way a family traces it."""

    WIDTH, HEADS, KV_HEADS, HEAD, FFN, CAPACITY = 32, 4, 2, 8, 48, 16

    def __init__(self, rows, tokens, paged=False, layers=2, interleaved=False):
        self.b = b = Builder("decoder")
        self.rows, self.tokens, self.interleaved, self.paged = rows, tokens, interleaved, paged
        ids = b.slot(SlotKey(SlotKind.TOKEN), TensorType((rows, tokens), I32))
        position, last = (b.slot(SlotKey(k), TensorType((rows,), I32)) for k in (SlotKind.POS, SlotKind.LAST))
        self.place = p.reshape(b.slot(SlotKey(SlotKind.WRITE_MAP), TensorType((rows, tokens), I32)), (rows * tokens,))
        self.mask = f.causal_mask(position, last, tokens, self.CAPACITY)
        self.visible = f.written_mask(position, last, self.CAPACITY)
        frequencies = b.computed(1e4 ** -(np.arange(self.HEAD // 2) / 4), F32)
        self.turn = f.rotary_table(position, tokens, frequencies)
        if paged:
            blocks = b.slot(SlotKey(SlotKind.SLOT_MAP), TensorType((rows, self.CAPACITY // 4), I32))
            wide = p.broadcast(p.reshape(blocks, (rows, self.CAPACITY // 4, 1)), (rows, self.CAPACITY // 4, 4))
            inner = p.iota(b, wide.shape, 2, I32)
            self.positions = p.reshape(wide * 4 + inner, (rows, self.CAPACITY))
        table = f.stored_weight(b, WeightKey(None, "embedding"), FORMATS["f32"], (11, self.WIDTH))
        x = p.reshape(f.embedding(table, FORMATS["f32"], ids), (rows * tokens, self.WIDTH))
        for layer in range(layers):
            x = x + self.attention(x, layer)
            h = f.rms_norm(x, self.weight(layer, "mlp_norm", self.WIDTH), 1e-5)
            gated = f.swiglu(self.linear(h, layer, "gate", self.FFN), self.linear(h, layer, "up", self.FFN))
            x = x + self.linear(gated, layer, "down", self.WIDTH)
        x = f.last_token(p.reshape(x, (rows, tokens, self.WIDTH)), last)
        x = f.rms_norm(x, self.weight(None, "norm", self.WIDTH), 1e-5)
        logits = f.linear(x, table, FORMATS["f32"])
        b.output("logits", logits)
        b.output("token", p.argmax(logits, 1))
        b.output("non_finite", f.non_finite(logits))

    def weight(self, layer, role, *shape):
        return self.b.weight(WeightKey(layer, role), TensorType(shape, F32))

    def linear(self, x, layer, role, out):
        return f.linear(x, self.weight(layer, role, out, x.shape[-1]), FORMATS["f32"])

    def attention(self, x, layer):
        rows, tokens = self.rows, self.tokens
        h = f.rms_norm(x, self.weight(layer, "norm", self.WIDTH), 1e-5)
        split = {
            r: (rows, tokens, n, self.HEAD) for r, n in (("q", self.HEADS), ("k", self.KV_HEADS), ("v", self.KV_HEADS))
        }
        q, k, v = (p.reshape(self.linear(h, layer, r, n * d), (*_, n, d)) for r, (*_, n, d) in split.items())
        q, k = (f.rope(y, *self.turn, interleaved=self.interleaved) for y in (q, k))
        keys, values = (self.remember(layer, r, y) for r, y in (("k", k), ("v", v)))
        out = f.attention(q, keys, values, self.mask, self.HEAD**-0.5, self.visible)
        return self.linear(p.reshape(out, (rows * tokens, self.HEADS * self.HEAD)), layer, "o", self.WIDTH)

    def remember(self, layer, role, new):
        key = StateKey(layer, role)
        pool = self.b.state(key, TensorType((self.rows * self.CAPACITY, self.KV_HEADS, self.HEAD), F32))
        after = p.scatter_update(pool, self.place, p.reshape(new, (self.rows * self.tokens, self.KV_HEADS, self.HEAD)))
        self.b.next_state(key, after)
        if self.paged:
            return p.gather(after, self.positions)
        return p.reshape(after, (self.rows, self.CAPACITY, self.KV_HEADS, self.HEAD))

    def graph(self):
        return self.b.build()
