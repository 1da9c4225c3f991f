"""Derived bounds hold for float32 in any order, and are not vacuous."""

import numpy as np
import pytest

from poot_eval import EvalOptions, eval
from poot_eval.bounds import KAPPA, bound_for, end_to_end_bound
from poot_eval.compare import assert_matches, assert_same
from poot_eval.error_rules import ERROR_RULES
from poot_executor.compile.target import EXACT_ERRORS, Caps
from poot_executor.dtype import BF16, F16, F32, I32, U32, round_bf16
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.ops import OPS
from poot_executor.weights import WeightKey

NUMPY = Caps(errors={**EXACT_ERRORS, "exp": 3.0, "log": 4.0, "sin": 2.0, "cos": 2.0, "tanh": 3.0})
"""numpy's own float32 functions, whose vector forms are up to that many ULP off."""


def slot(b, name, shape, dtype=F32):
    return b.slot(SlotKey(SlotKind.INPUT, name), TensorType(shape, dtype))


def feed(graph, rng):
    """Random inputs for every slot and weight of a graph."""
    given = {}
    for entry in graph.inputs:
        if entry.key is None:
            continue
        type = entry.value.type
        if type.dtype.is_float:
            given[entry.key] = rng.standard_normal(type.shape, np.float32).astype(type.dtype.numpy)
        else:
            given[entry.key] = rng.integers(0, 5, type.shape).astype(type.dtype.numpy)
    return given


def norm_and_projection(b):
    x, w = slot(b, "x", (5, 96)), slot(b, "w", (96,))
    normed = f.rms_norm(x, w, 1e-5)
    head = b.weight(WeightKey(0, "head"), TensorType((40, 96), F32))
    return f.linear(normed, head, FORMATS["f32"])


def softmax(b):
    return f.softmax(slot(b, "x", (6, 77)) * 3.0)


def gelu_mlp(b):
    x = slot(b, "x", (4, 64))
    up, gate = slot(b, "up", (64, 48)), slot(b, "gate", (64, 48))
    return f.swiglu(p.matmul(x, gate), p.matmul(x, up)) + f.gelu(p.matmul(x, up))


def narrow(b):
    x = p.cast(slot(b, "x", (8, 33)) * 1.1, BF16)
    y = p.cast(p.cast(x, F32) * 0.7 + 0.1, F16)
    return p.cast(y * y, F32)


def trigonometry(b):
    x = slot(b, "x", (200,))
    return p.sin(x * 3.0) / (p.exp(p.cos(x)) + p.tanh(x)) + p.sqrt(p.abs_(x)) * p.erf(x)


def branches(b):
    x = slot(b, "x", (3, 50))
    total = p.sum_(x * x, 1)
    wide = p.broadcast(p.reshape(total, (3, 1)), (3, 50))
    return p.select(x * x * 50.0 > wide, x / wide, p.floor(x * 10.0) * 0.1)


GRAPHS = [norm_and_projection, softmax, gelu_mlp, narrow, trigonometry, branches]


def traced(trace):
    b = Builder(trace.__name__)
    b.output("y", trace(b))
    return b.build()


@pytest.mark.parametrize("trace", GRAPHS, ids=lambda t: t.__name__)
def test_float32_in_another_order_is_within_the_bound(trace, rng):
    graph = traced(trace)
    for _ in range(20):
        given = feed(graph, rng)
        oracle = eval(graph, given, EvalOptions(environment=True))
        bounds = bound_for(graph, oracle.environment, NUMPY)
        for order in ("ascending", "blas"):
            device = eval(graph, given, EvalOptions(precision="f32", order=order))
            assert_matches(device.outputs["y"], oracle.outputs["y"], bounds.output("y"), order)
        assert bounds.undecided == 0


@pytest.mark.parametrize("trace", GRAPHS, ids=lambda t: t.__name__)
def test_a_slip_of_a_thousandth_is_caught(trace, rng):
    """In most elements, one at a time: not where a sum cancels to nothing beside its terms, and
    not where one step of f16 or bf16 is itself a thousandth."""
    graph = traced(trace)
    given = feed(graph, rng)
    oracle = eval(graph, given, EvalOptions(environment=True))
    bound, y = bound_for(graph, oracle.environment, NUMPY).output("y"), oracle.outputs["y"]
    slip = 1e-3 if trace is not narrow else 3e-2
    caught = np.abs(y) * slip > bound
    assert caught[y != 0].mean() > 0.85
    at = tuple(np.argwhere(caught)[0])
    wrong = y.copy()
    wrong[at] *= np.float32(1 + 1.5 * slip)
    with pytest.raises(AssertionError, match="1 of"):
        assert_matches(wrong, y, bound, "y")


@pytest.mark.parametrize("name", ["q4_1", "q5_1", "q4_0", "q8_0"])
def test_packed_weights_may_be_summed_as_scale_and_minimum(name, rng):
    """d·Σqx + m·Σx in float32, with |m| far above the weights, is inside; half a quant is not."""
    format, rows, columns = FORMATS[name], 6, 64
    raw = rng.integers(0, 256, (rows * columns // 32, format.nbytes), dtype=np.uint8)
    for field in format.fields:
        if field.nbytes == 2:
            size = 4.0 if field.name == "minimum" else 0.02
            half = (rng.standard_normal(len(raw)) * size).astype("<f2")
            raw[:, field.offset : field.offset + 2] = half.view(np.uint8).reshape(-1, 2)
    raw = raw.reshape(rows, -1)
    b, key = Builder("packed"), WeightKey(0, "w")
    x = slot(b, "x", (3, columns))
    b.output("y", f.linear(x, f.stored_weight(b, key, format, (rows, columns)), format))
    graph = b.build()
    given = {SlotKey(SlotKind.INPUT, "x"): rng.standard_normal((3, columns), np.float32), key: raw}
    oracle = eval(graph, given, EvalOptions(environment=True))
    bound = bound_for(graph, oracle.environment, Caps()).output("y")
    assert_matches(by_blocks(raw, format, given), oracle.outputs["y"], bound)
    spoiled = raw.copy()
    spoiled[:, format.fields[-1].offset] ^= 1
    with pytest.raises(AssertionError):
        assert_matches(by_blocks(spoiled, format, given), oracle.outputs["y"], bound)


def by_blocks(raw, format, given):
    """The contraction as a kernel does it, float32 at each step."""
    x = given[SlotKey(SlotKind.INPUT, "x")]
    blocks = raw.reshape(len(raw), -1, format.nbytes)
    fields = {f.name: f for f in format.fields}

    def half(name):
        if name not in fields:
            return np.zeros(blocks.shape[:2], np.float32)
        at = fields[name].offset
        return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)

    d, m = half("scale"), half("minimum")
    weights = format.decode(raw).reshape(*blocks.shape[:2], 32).astype(np.float64)
    quants = np.rint((weights - m[..., None]) / np.where(d == 0, 1, d)[..., None]).astype(np.float32)
    y = np.zeros((len(x), len(raw)), np.float32)
    for i in range(blocks.shape[1]):
        part = x[:, i * 32 : i * 32 + 32]
        dot = np.zeros_like(y)
        for k in range(32):
            dot += part[:, k, None] * quants[None, :, i, k]
        y = y + d[None, :, i] * dot + m[None, :, i] * part.sum(1, dtype=np.float32)[:, None]
    return y


def test_attention_may_be_summed_as_it_goes(rng):
    """A running maximum and sum over tiles of 32, float32 at each step, against the oracle."""
    b, k = Builder("attention"), 300
    scores, values = slot(b, "scores", (4, k)), slot(b, "values", (k, 8))
    b.output("y", p.matmul(f.softmax(scores), values))
    graph = b.build()
    s = np.sort(rng.standard_normal((4, k)).astype(np.float32) * 8, axis=1)  # each tile raises the maximum
    v = rng.standard_normal((k, 8)).astype(np.float32)
    oracle = eval(
        graph, dict(zip([i.key for i in graph.inputs if i.key], (s, v), strict=True)), EvalOptions(environment=True)
    )
    bound = bound_for(graph, oracle.environment, NUMPY).output("y")
    top, total, y = np.full((4, 1), -np.inf, np.float32), np.zeros((4, 1), np.float32), np.zeros((4, 8), np.float32)
    for first in range(0, k, 32):
        part = s[:, first : first + 32]
        new = np.maximum(top, part.max(1, keepdims=True))
        scale, power = np.exp(top - new), np.exp(part - new)
        total, y = total * scale + power.sum(1, keepdims=True), y * scale + power @ v[first : first + 32]
        top = new
    assert_matches(y / total, oracle.outputs["y"], bound)
    with pytest.raises(AssertionError):
        assert_matches(y / total * np.float32(1.001), oracle.outputs["y"], bound)


def test_what_two_roundings_decide_is_undecided():
    b = Builder("close")
    x = slot(b, "x", (2, 3))
    s = p.sum_(x, 1)
    b.output("flag", s > 1.0)
    b.output("y", p.select(s > 1.0, s, -s))
    b.output("which", p.argmax(p.exp(x), 1))
    graph = b.build()
    values = np.array([[0.5, 0.25, 0.25], [1.0, 2.0, 3.0]], np.float32)
    oracle = eval(graph, {SlotKey(SlotKind.INPUT, "x"): values}, EvalOptions(environment=True))
    bounds = bound_for(graph, oracle.environment, Caps())
    assert bounds.output("flag").tolist() == [1.0, 0.0]
    assert bounds.output("y")[0] > 1.9 and bounds.output("y")[1] < 1e-5
    assert bounds.output("which").tolist() == [0.0, 0.0]


def test_exact_operations_on_exact_operands_have_no_tolerance(rng):
    b = Builder("exact")
    x, y = slot(b, "x", (40,)), slot(b, "y", (40,))
    b.output("product", x * y)
    b.output("fused", x * y + 1.0)
    b.output("quotient", x / y)
    graph = b.build()
    oracle = eval(graph, feed(graph, rng), EvalOptions(environment=True))
    exact = bound_for(graph, oracle.environment, Caps())
    assert not exact.output("product").any() and not exact.output("quotient").any()
    loose = Caps(contracts=True, errors={**EXACT_ERRORS, "div": 2.5})
    bounds = bound_for(graph, oracle.environment, loose)
    x, y = (oracle.environment[i.value].astype(np.float64) for i in graph.inputs[:2])
    fused = np.abs(x * y + 1.0 - oracle.outputs["fused"])
    assert (fused <= bounds.output("fused")).all() and bounds.output("fused").all()
    assert np.allclose(bounds.output("quotient"), 3 * np.spacing(np.abs(oracle.outputs["quotient"])))


def test_a_target_that_contracts_may_leave_out_a_sum_s_rounding(rng):
    """(x + y) − y computed as x, directly and where the sum is moved in between."""
    b = Builder("cancelled")
    x, y = slot(b, "x", (40,)), slot(b, "y", (40,))
    b.output("straight", (x + y) - y)
    column = TensorType((1, 40), F32).shape
    b.output("moved", p.reshape(x + y, column) - p.reshape(y, column))
    graph = b.build()
    oracle = eval(graph, feed(graph, rng), EvalOptions(environment=True))
    bounds = bound_for(graph, oracle.environment, Caps(contracts=True))
    exact = oracle.environment[graph.inputs[0].value]
    assert (exact != oracle.outputs["straight"]).any(), "the sum was rounded"
    for name in ("straight", "moved"):
        assert_matches(exact.reshape(oracle.outputs[name].shape), oracle.outputs[name], bounds.output(name))
        strict = bound_for(graph, oracle.environment, Caps()).output(name)
        assert not strict.any()


def test_a_target_that_contracts_may_reorder_factors(rng):
    """x·a·b computed as x·(a·b) or (x·b)·a, with a sign or movement in between too; one product alone stays exact."""
    b = Builder("factors")
    x, a, c = 1.7 * slot(b, "x", (4000,)), 0.75, 1.1
    b.output("straight", x * a * c)
    b.output("moved", p.reshape(-(x * a), (1, 4000)) * c)
    b.output("alone", slot(b, "y", (40,)) * c)
    graph = b.build()
    oracle = eval(graph, feed(graph, rng), EvalOptions(environment=True))
    bounds = bound_for(graph, oracle.environment, Caps(contracts=True))
    given = oracle.environment[graph.inputs[0].value]
    first, second, third = np.float32(1.7), np.float32(a), np.float32(c)
    forms = (given * (first * second * third), given * first * (second * third), given * third * second * first)
    for form in forms:
        assert form.dtype == np.float32
        for name, signed in (("straight", form), ("moved", -form[None])):
            expected = oracle.outputs[name]
            assert (signed != expected).any(), "the order of factors does not show"
            assert_matches(signed, expected, bounds.output(name))
    assert not bounds.output("alone").any()
    assert not bound_for(graph, oracle.environment, Caps()).output("straight").any()


def test_flushed_denormals_widen_by_what_is_flushed():
    b = Builder("denormal")
    x = slot(b, "x", (3,))
    b.output("y", x * 0.5)
    graph = b.build()
    values = np.array([1e-39, 2e-38, 1.0], np.float32)
    oracle = eval(graph, {SlotKey(SlotKind.INPUT, "x"): values}, EvalOptions(environment=True))
    flushed = np.array([0.0, 0.0, 0.5], np.float32)
    bound = bound_for(graph, oracle.environment, Caps(flushes_denormals=True)).output("y")
    assert_matches(flushed, oracle.outputs["y"], bound)
    strict = bound_for(graph, oracle.environment, Caps()).output("y")
    with pytest.raises(AssertionError):
        assert_matches(flushed, oracle.outputs["y"], strict)
    assert bound[2] == 0


def test_reports_name_the_first_and_the_worst():
    oracle = np.arange(6, dtype=np.float32).reshape(2, 3)
    device = oracle.copy()
    device[0, 1] += 0.25
    device[1, 2] -= 2
    with pytest.raises(AssertionError) as caught:
        assert_matches(device, oracle, 0.1, "logits")
    text = str(caught.value)
    assert "logits: 2 of 6 elements are wrong" in text
    assert "first at [0, 1]: device 1.25, oracle 1" in text and "worst at [1, 2]" in text


def test_what_is_not_finite_fails_at_any_bound():
    oracle, inf = np.array([1.0, np.inf, np.nan], np.float32), np.float32(np.inf)
    assert_matches(np.array([1, inf, np.nan], np.float32), oracle, 0.0)
    for bad in ([np.nan, inf, np.nan], [inf, inf, np.nan], [1, -inf, np.nan], [1, 3e38, np.nan], [1, inf, 0]):
        with pytest.raises(AssertionError):
            assert_matches(np.array(bad, np.float32), oracle, np.inf)
    with pytest.raises(AssertionError, match=r"\(2,\)"):
        assert_matches(np.zeros(2), np.zeros(3), np.inf)


def test_bits_tell_zeros_apart():
    a = np.array([0.0, np.nan], np.float32)
    assert_same(a, a.copy(), F32)
    with pytest.raises(AssertionError):
        assert_same(-a, a, F32)
    with pytest.raises(AssertionError, match="1 of 2"):
        assert_same(np.array([1, 2], np.int32), np.array([1, 3], np.int32), I32)


def test_every_primitive_has_a_rule():
    assert set(OPS) == {*ERROR_RULES, "sample_token"}


def test_draws_are_decided_unless_they_are_close(rng):
    b, rows, vocabulary = Builder("sample"), 64, 300
    logits = slot(b, "logits", (rows, vocabulary))
    others = (
        slot(b, "seed", (rows, 2), U32), slot(b, "position", (rows,), I32),
        slot(b, "settings", (rows, 4)), slot(b, "top_k", (rows,), I32),
    )  # fmt: skip
    b.output("token", p.sample_token(logits, *others))
    graph = b.build()
    keys = [i.key for i in graph.inputs]
    settings = np.stack([np.full(rows, 1 / 0.8), rng.choice([0.0, 0.05], rows), rng.choice([0.9, 1.0], rows),
                         np.ones(rows)], 1).astype(np.float32)  # fmt: skip
    values = (
        rng.standard_normal((rows, vocabulary), np.float32) * 2, rng.integers(0, 2**32, (rows, 2), np.uint32),
        rng.integers(0, 1000, rows).astype(np.int32), settings, rng.choice([0, 40], rows).astype(np.int32),
    )  # fmt: skip
    given = dict(zip(keys, values, strict=True))
    oracle = eval(graph, given, EvalOptions(environment=True))
    bounds = bound_for(graph, oracle.environment, NUMPY)
    device = eval(graph, given, EvalOptions(precision="f32"))
    decided = np.isfinite(bounds.output("token"))
    assert decided.mean() > 0.9
    assert np.array_equal(device.outputs["token"][decided], oracle.outputs["token"][decided])
    # Two tokens that lead by nothing are not decided; which one wins is the device's affair.
    values[0][:, :] = -50
    values[0][:, 10:12] = 3.0
    values[3][:, 3] = 1e-7
    oracle = eval(graph, given, EvalOptions(environment=True))
    assert not np.isfinite(bound_for(graph, oracle.environment, NUMPY).output("token")).any()


def deep(b):
    """Four layers of norm, attention over themselves and a gated projection."""
    h = slot(b, "x", (12, 64))
    for layer in range(4):

        def w(name, *shape, layer=layer):
            return b.weight(WeightKey(layer, name), TensorType(shape, F32)) * (shape[0] ** -0.5)

        normed = f.rms_norm(h, slot(b, f"norm{layer}", (64,)), 1e-5)
        q, k, v = (p.matmul(normed, w(name, 64, 64)) for name in "qkv")
        scores = f.softmax(p.matmul(q, p.transpose(k, (1, 0))) * 0.125)
        h = h + p.matmul(p.matmul(scores, v), w("o", 64, 64))
        normed = f.rms_norm(h, slot(b, f"norm{layer}", (64,)), 1e-5)
        h = h + p.matmul(f.swiglu(p.matmul(normed, w("g", 64, 128)), p.matmul(normed, w("u", 64, 128))),
                         w("d", 128, 64))  # fmt: skip
    return h


def test_kappa_covers_other_orders_twice_over_and_is_not_vacuous(rng):
    graph = traced(deep)
    for _ in range(5):
        given = feed(graph, rng)
        oracle = eval(graph, given).outputs["y"]
        single = eval(graph, given, EvalOptions(precision="f32")).outputs["y"]
        bound = end_to_end_bound(single, oracle)
        other = eval(graph, given, EvalOptions(precision="f32", order="blas")).outputs["y"]
        assert_matches(other, oracle, bound / 2)
        distance = np.abs(single - oracle).max()
        assert np.abs(other - oracle).max() <= KAPPA / 2 * distance
        # A weight that is off by a thousandth, one element of a whole matrix aside.
        spoiled = {k: v.copy() for k, v in given.items()}
        spoiled[WeightKey(1, "v")] *= np.float32(1.001)
        with pytest.raises(AssertionError):
            assert_matches(eval(graph, spoiled).outputs["y"], oracle, bound)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_a_softmax_may_be_rounded_before_its_sum_is_known(rng, dtype):
    """Weights rounded and then divided are within the bound of ones divided and then rounded, and the bound is no more
    than four such roundings."""
    b = Builder("rounded")
    scores, values = slot(b, "scores", (40, 50)), slot(b, "values", (50, 8))
    b.output("y", p.cast(p.cast(f.softmax(scores * 4.0), dtype), F32) @ values)
    graph = b.build()
    given = feed(graph, rng)
    oracle = eval(graph, given, EvalOptions(environment=True))
    bound = bound_for(graph, oracle.environment, Caps()).output("y")
    x, v = (given[SlotKey(SlotKind.INPUT, name)].astype(np.float64) for name in ("scores", "values"))
    powers = np.exp(x * 4.0 - (x * 4.0).max(axis=1, keepdims=True))
    early = round_bf16(powers.astype(np.float32)) if dtype is BF16 else powers.astype(np.float16)
    result = early.astype(np.float64).reshape(powers.shape) @ v / powers.sum(axis=1, keepdims=True)
    assert_matches(result.astype(np.float32), oracle.outputs["y"], bound)
    unit, least = (2.0**-8, 2.0**-40) if dtype is BF16 else (2.0**-11, 2.0**-25)
    most = 4.2 * (unit * (powers / powers.sum(axis=1, keepdims=True)) + least) @ np.abs(v)
    assert (bound <= most + 1e-4).all()


def test_padding_a_number_moves_nothing(rng):
    b = Builder("pad")
    b.output("y", p.pad(p.exp(slot(b, "x", ())), (), (), 0.0))
    graph = b.build()
    oracle = eval(graph, feed(graph, rng), EvalOptions(environment=True))
    assert 0 < bound_for(graph, oracle.environment, Caps()).output("y") < 1e-4
