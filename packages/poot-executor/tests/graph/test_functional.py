"""Compositions against formulas in float64 numpy."""

import math

import numpy as np
import pytest

from poot_eval import eval
from poot_executor.dtype import BF16, F16, F32, I32, U8
from poot_executor.errors import GraphError, Unsupported
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.weights import WeightKey

POS, LAST, TOKEN = SlotKey(SlotKind.POS), SlotKey(SlotKind.LAST), SlotKey(SlotKind.TOKEN)


def evaluate(function, **arrays):
    """function(builder, **handles) with each array as a slot; its result, or results by place."""
    b = Builder()
    dtypes = {"f": F32, "i": I32, "u": U8}
    keys = {name: SlotKey(SlotKind.INPUT, name) for name in arrays}
    handles = {n: b.slot(keys[n], TensorType(a.shape, dtypes[a.dtype.kind])) for n, a in arrays.items()}
    results = function(b, **handles)
    for place, x in enumerate(results if isinstance(results, tuple) else (results,)):
        b.output(str(place), x)
    out = eval(b.build(), {keys[n]: a for n, a in arrays.items()}).outputs
    return tuple(out[str(i)] for i in range(len(out))) if isinstance(results, tuple) else out["0"]


@pytest.fixture
def normal(rng):
    return lambda *shape: rng.standard_normal(shape, np.float32)


def test_norms(normal):
    x, w, bias = normal(3, 4, 50), normal(50), normal(50)
    wide = x.astype(np.float64)
    rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    assert np.allclose(evaluate(lambda b, x, w: f.rms_norm(x, w, 1e-5), x=x, w=w), rms * w, atol=1e-6)
    shifted = evaluate(lambda b, x, w: f.rms_norm(x, w, 1e-5, offset=1.0), x=x, w=w)
    assert np.allclose(shifted, rms * (w.astype(np.float64) + 1), atol=2e-6)
    layer = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    result = evaluate(lambda b, x, w, bias: f.layer_norm(x, w, bias, 1e-3), x=x, w=w, bias=bias)
    assert np.allclose(result, layer * w + bias, atol=3e-6)
    assert np.allclose(evaluate(lambda b, x, w: f.layer_norm(x, w, None, 1e-3), x=x, w=w), layer * w, atol=3e-6)


def test_activations(normal):
    x, up = normal(200) * 5, normal(200)
    wide = x.astype(np.float64)
    erf = np.vectorize(math.erf)
    silu = wide / (1 + np.exp(-wide))
    gelu = wide * (1 + erf(wide / math.sqrt(2))) / 2
    tanh = wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
    cases = [
        (f.silu, silu), (f.gelu, gelu), (f.gelu_tanh, tanh),
    ]  # fmt: skip
    for function, expected in cases:
        assert np.allclose(evaluate(lambda b, x, g=function: g(x), x=x), expected, atol=2e-6)
    gated = [
        (f.swiglu, silu), (f.geglu, tanh), (lambda g, u: f.geglu(g, u, tanh=False), gelu),
    ]  # fmt: skip
    for function, expected in gated:
        assert np.allclose(evaluate(lambda b, x, up, g=function: g(x, up), x=x, up=up), expected * up, atol=1e-5)
    assert evaluate(lambda b, x: f.silu(x), x=np.array([-1e4, 1e4], np.float32)).tolist() == [-0.0, 1e4]


def test_softmax_of_large_scores(normal):
    x = normal(2, 3, 9) * 100 + 1e4
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    assert np.allclose(evaluate(lambda b, x: f.softmax(x), x=x), wide / wide.sum(-1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("name", ["f32", "bf16", "q4_1", "q8_0"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_linear_and_embedding_of_stored_weights(name, lead, normal, rng):
    format, shape = FORMATS[name], (5, 64)
    key = WeightKey(0, "w")
    b = Builder()
    weight = f.stored_weight(b, key, format, shape)
    raw = rng.integers(0, 256, (5, format.row_bytes(64)), dtype=np.uint8)
    for block in range(64 // format.columns):
        at = block * format.nbytes
        halves = normal(5, format.nbytes // 2)
        if format.is_packed:  # finite scales
            raw[:, at : at + 4] = halves[:, :2].astype(np.float16).view(np.uint8)[:, :4]
    if not format.is_packed:
        raw = normal(5, 64).view(np.uint8) if name == "f32" else (normal(5, 64).view(np.uint32) >> 16).astype("<u2")
        raw = raw.view(np.uint8)
    numbers = format.decode(raw)
    x, bias = normal(*lead, 64), normal(5)
    tokens = np.array([[4, 0], [1, 4]], np.int32)
    y = f.linear(b.computed(x, F32), weight, format, b.computed(bias, F32))
    b.output("linear", y)
    b.output("rounded", f.linear(b.computed(x, F32), weight, format, activations=F16))
    b.output("embedding", f.embedding(weight, format, b.slot(TOKEN, TensorType((2, 2), I32))))
    stored = raw if format.is_packed else numbers
    out = eval(b.build(), {key: stored, TOKEN: tokens}).outputs
    exact = x.astype(np.float64) @ numbers.astype(np.float64).T
    assert out["linear"].shape == (*lead, 5)
    assert np.allclose(out["linear"], exact + bias, rtol=1e-5, atol=1e-5)
    rounded = x.astype(np.float16).astype(np.float64) @ numbers.astype(np.float64).T
    assert np.allclose(out["rounded"], rounded, rtol=1e-5, atol=1e-5)
    assert np.array_equal(out["embedding"], numbers[tokens])


def test_weights_that_do_not_fit_are_refused(normal):
    b = Builder()
    with pytest.raises(Unsupported, match="whole blocks"):
        f.stored_weight(b, WeightKey(0, "w"), FORMATS["q8_0"], (5, 65))
    weight = f.stored_weight(b, WeightKey(0, "w"), FORMATS["f32"], (5, 64))
    with pytest.raises(GraphError, match=r"linear of f32\[3, 63\]"):
        f.linear(b.computed(normal(3, 63), F32), weight, FORMATS["f32"])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half", [2, 4])
def test_rope_turns_pairs_as_complex_numbers(interleaved, half, normal):
    x, position = normal(2, 3, 5, 8), np.array([7, 900], np.int32)
    frequencies = 10000.0 ** -(np.arange(half) / half)

    def trace(b, x, position):
        cos, sin = f.rotary_table(position, 3, b.computed(frequencies, F32), scale=1.5)
        return f.rope(x, cos, sin, interleaved)

    result = evaluate(trace, x=x, position=position)
    expected = x.astype(np.float64)
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        at = position[:, None] + np.arange(3)
        turn = 1.5 * np.exp(1j * np.float32(at.astype(np.float32) * np.float32(frequencies[i])).astype(np.float64))
        pair = (x[..., first] + 1j * x[..., second].astype(np.float64)) * turn[:, :, None]
        expected[..., first], expected[..., second] = pair.real, pair.imag
    assert np.allclose(result, expected, atol=1e-6)
    assert np.array_equal(result[..., 2 * half :], x[..., 2 * half :])


def test_rope_of_too_many_frequencies_is_refused(normal):
    with pytest.raises(GraphError, match="turn more than 8"):
        evaluate(lambda b, x, c: f.rope(x, c, c), x=normal(1, 1, 1, 8), c=normal(1, 1, 5))


def masks(position, last, tokens, capacity, window=None):
    see = np.zeros((len(position), tokens, capacity), bool)
    for r, t, c in np.ndindex(*see.shape):
        at = position[r] + min(t, last[r])
        see[r, t, c] = c <= at and (window is None or c > at - window)
    return see


@pytest.mark.parametrize("window", [None, 2])
def test_causal_masks(window):
    position, last = np.array([0, 3, 1], np.int32), np.array([2, 0, 1], np.int32)

    def trace(b, position, last):
        mask = f.causal_mask(position, last, 3, 7, window)
        return mask, f.written_mask(position, last, 7), f.visible_rows(mask)

    mask, written, visible = evaluate(trace, position=position, last=last)
    assert np.array_equal(mask, masks(position, last, 3, 7, window))
    assert written.sum(1).tolist() == [3, 4, 3]
    assert np.array_equal(visible, mask.any(1)) and not (visible & ~written).any()


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("given_rows", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention(tokens, given_rows, softcap, normal):
    rows, capacity, heads, kv_heads, width = 2, 6, 4, 2, 8
    q, k = normal(rows, tokens, heads, width), normal(rows, capacity, kv_heads, width)
    v = normal(rows, capacity, kv_heads, 5)
    position, last = np.array([0, 2], np.int32), np.array([tokens - 1, 0], np.int32)
    see = masks(position, last, tokens, capacity)
    for r in range(rows):  # stale positions hold what they like
        k[r, ~see[r].any(0)] = np.nan
        v[r, ~see[r].any(0)] = [np.inf, np.nan, -np.inf, 0, 1]

    def trace(b, q, k, v, position, last):
        mask = f.causal_mask(position, last, tokens, capacity)
        rows_seen = f.written_mask(position, last, capacity) if given_rows else None
        return f.attention(q, k, v, mask, 0.3, rows_seen, softcap)

    result = evaluate(trace, q=q, k=k, v=v, position=position, last=last)
    for r, t, h in np.ndindex(rows, tokens, heads):
        seen = see[r, t]
        scores = 0.3 * k[r, seen, h // 2].astype(np.float64) @ q[r, t, h]
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ v[r, seen, h // 2].astype(np.float64)
        assert np.allclose(result[r, t, h], expected, atol=1e-5)


def test_attention_that_sees_nothing_is_finite(normal):
    q, k, v = normal(1, 1, 2, 4), normal(1, 3, 1, 4), np.full((1, 3, 1, 4), np.nan, np.float32)
    nothing = np.zeros((1, 1, 3), np.int32)
    result = evaluate(lambda b, q, k, v, m: f.attention(q, k, v, m != 0, 1.0), q=q, k=k, v=v, m=nothing)
    assert np.array_equal(result, np.zeros((1, 1, 2, 4)))


def test_attention_rounds_what_enters_a_contraction(normal):
    q, k, v = normal(1, 1, 2, 4), normal(1, 3, 1, 4), normal(1, 3, 1, 4)

    def trace(b, q, k, v):
        mask = p.iota(b, (1, 1, 3), 2, I32) < 3
        fine = f.attention(q, p.cast(k, BF16), p.cast(v, BF16), mask, 1.0, activations=BF16)
        rounded = p.cast(p.cast(q, BF16), F32)
        return fine, f.attention(rounded, p.cast(k, BF16), p.cast(v, BF16), mask, 1.0)

    narrow, wide = evaluate(trace, q=q, k=k, v=v)
    assert np.allclose(narrow, wide, rtol=2**-7, atol=2**-7) and not np.array_equal(narrow, wide)


def test_attention_with_uneven_heads_is_refused(normal):
    with pytest.raises(GraphError, match="3 query heads do not share 2"):
        evaluate(
            lambda b, q, k: f.attention(q, k, k, p.iota(b, (1, 1, 3), 2, I32) < 3, 1.0),
            q=normal(1, 1, 3, 4),
            k=normal(1, 3, 2, 4),
        )


def test_last_token_and_non_finite(normal):
    x, last = normal(3, 4, 5), np.array([0, 3, 2], np.int32)
    assert np.array_equal(evaluate(lambda b, x, last: f.last_token(x, last), x=x, last=last), x[range(3), last])
    logits = normal(6, 8)
    logits[1, 3] = np.nan
    logits[2, 0] = np.inf
    logits[3, 7] = -np.inf
    logits[4, 2] = np.array(0xFFC00001, np.uint32).view(np.float32)
    logits[5, 2] = np.finfo(np.float32).max
    assert evaluate(lambda b, x: f.non_finite(x), x=logits).tolist() == [0, 1, 1, 0, 1, 0]
