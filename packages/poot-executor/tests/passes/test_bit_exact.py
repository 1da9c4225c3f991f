"""The law of graph passes: the oracle's result before and after is the same, bit for bit."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poot_eval import EvalOptions, eval
from poot_executor.compile.passes import PASSES, run_passes
from poot_executor.dtype import BF16, BOOL, F16, F32, I32, U32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.graph.numerics import narrow
from poot_executor.graph.ops import OPS
from poot_executor.graph.verify import verify
from poot_executor.weights import WeightKey

SHAPES = [(), (1,), (3,), (1, 3), (2, 3), (2, 1, 3)]
NUMBERS = [0.0, -0.0, 0.0, -0.0, 1.0, -1.0, 0.5, float("inf")]
FLOATS = (F32, F16, BF16)
DENSE = FORMATS["f32"]
same_type = ["add", "sub", "mul", "div", "max", "min", "lt", "ge", "eq", "gt", "ne", "le", "and", "or", "xor"]
unary = ["neg", "abs", "exp", "sqrt", "tanh", "floor", "round", "not", "recip"]


@st.composite
def graphs(draw):
    """A small graph of random equations over a few slots, a state and constants, and its inputs."""
    b = Builder("random")
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    inputs, values = {}, []
    for place in range(draw(st.integers(1, 3))):
        type = TensorType(draw(st.sampled_from(SHAPES)), draw(st.sampled_from([F32, F32, F16, BF16, I32, U32, BOOL])))
        key = SlotKey(SlotKind.INPUT, str(place))
        inputs[key] = contents(rng, type)
        values.append(b.slot(key, type))
    key = StateKey(0, "pool")
    inputs[key] = contents(rng, TensorType((2, 3), F32))
    values.append(b.state(key, TensorType((2, 3), F32)))
    for _ in range(draw(st.integers(4, 20))):
        made = equation(draw, b, rng, values)
        if made is not None:
            values.append(made)
    same = [v for v in values if v.type == TensorType((2, 3), F32)]
    b.next_state(key, draw(st.sampled_from(same)))
    for place, x in enumerate(values[-8:]):
        b.output(str(place), x)
    return b.build(), inputs


def contents(rng, type):
    if type.dtype.is_float:
        x = np.where(rng.random(type.shape) < 0.4, rng.choice(NUMBERS, type.shape), rng.standard_normal(type.shape))
        return narrow(np.asarray(x, np.float32), type.dtype)
    if type.dtype is BOOL:
        return np.asarray(rng.random(type.shape) < 0.5)
    return np.asarray(rng.integers(0, 5, type.shape), type.dtype.numpy)


def equation(draw, b, rng, values):
    """One more value made of those there are, or None where the drawn operation does not fit."""
    x = draw(st.sampled_from([*values, *values[-2:] * 4]))  # chains are what passes change
    same = [v for v in values if v.type == x.type]
    make = draw(st.sampled_from([one_operand, converted, two_operands, with_scalar, moved, reduced, selected, source]))
    return make(draw, b, rng, x, same)


def one_operand(draw, b, rng, x, same):
    return allowed(b, draw(st.sampled_from(unary)), x)


def converted(draw, b, rng, x, same):
    for dtype in draw(st.lists(st.sampled_from([F32, BF16, F16, I32, BOOL]), min_size=1, max_size=3)):
        x = p.cast(x, dtype)
    return x


def two_operands(draw, b, rng, x, same):
    return allowed(b, draw(st.sampled_from(same_type)), x, draw(st.sampled_from(same)))


def with_scalar(draw, b, rng, x, same):
    numbers = {"f": st.sampled_from(NUMBERS), "b": st.booleans()}
    number = draw(numbers.get(x.dtype.numpy.kind, st.sampled_from([0, 1, 3])))
    pair = [x, b.splat(number, x.type)]
    return allowed(b, draw(st.sampled_from(same_type)), *(pair if draw(st.booleans()) else pair[::-1]))


def reduced(draw, b, rng, x, same):
    if not x.shape:
        return None
    axis = draw(st.integers(0, len(x.shape) - 1))
    return allowed(b, draw(st.sampled_from(["sum", "reduce_max", "argmax"])), x, axis=axis)


def selected(draw, b, rng, x, same):
    condition = b.splat(draw(st.booleans()), TensorType(x.shape, BOOL))
    if x.dtype is not BOOL and draw(st.booleans()):
        condition = x < draw(st.sampled_from(same))
    if draw(st.booleans()):
        condition = ~condition
    return p.select(condition, x, draw(st.sampled_from(same)))


def source(draw, b, rng, x, same):
    shape = draw(st.sampled_from(SHAPES))
    if shape and draw(st.booleans()):
        return p.iota(b, shape, draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from([F32, I32])))
    type = TensorType(shape, draw(st.sampled_from([F32, BF16, I32])))
    return b.computed(contents(rng, type), type.dtype)


def allowed(b, op, *operands, **params):
    """The equation, where the dtype is one that the operation takes. Integer division may fault: left out."""
    dtype = operands[0].dtype
    rule = OPS[op].dtypes
    fits = {"float": dtype in FLOATS, "number": dtype is not BOOL, "int": dtype in (I32, U32)}
    ok = fits[rule.replace(",", " ").split()[0]] or ("bool" in rule.split("->")[0] and dtype is BOOL)
    if not ok or (op == "div" and dtype not in FLOATS):
        return None
    return b.apply(op, *operands, **params)


def moved(draw, b, rng, x, same):
    rank = len(x.shape)
    kind = draw(st.sampled_from(["reshape", "transpose", "broadcast", "slice", "pad", "concat"]))
    if kind == "reshape":
        shapes = [x.shape, x.shape[::-1], (x.type.count,)]
        shapes += [s for s in SHAPES if np.prod(s) == x.type.count]
        return p.reshape(x, draw(st.sampled_from(shapes)))
    if kind == "transpose":
        return p.transpose(x, draw(st.permutations(range(rank))))
    if kind == "broadcast":
        return p.broadcast(x, tuple(draw(st.integers(1, 3)) if d == 1 else d for d in x.shape))
    if kind == "slice":
        start = [draw(st.integers(0, d - 1)) for d in x.shape]
        return p.slice_(x, start, x.shape, [draw(st.integers(1, 2)) for _ in start])
    if kind == "concat" and rank:
        return p.concat([x, x][: draw(st.integers(1, 2))], draw(st.integers(0, rank - 1)))
    return p.pad(x, [0] * rank, [draw(st.integers(0, 1)) for _ in x.shape], False if x.dtype is BOOL else 1)


def assert_same(before, after):
    for one, other in ((before.outputs, after.outputs), (before.state, after.state)):
        assert list(one) == list(other)
        for name, x in one.items():
            y = other[name]
            assert x.shape == y.shape and x.dtype == y.dtype
            number = np.ones(x.shape, bool)
            if x.dtype.kind == "f":
                assert np.array_equal(np.isnan(x), np.isnan(y)), name
                number = ~np.isnan(x)
            assert x[number].tobytes() == y[number].tobytes(), name
    assert before.checks == after.checks


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_passes_keep_every_bit(case):
    graph, inputs = case
    for options in (EvalOptions(), EvalOptions(precision="f32")):
        before = eval(graph, inputs, options)
        stepwise = graph
        for run in PASSES:
            stepwise = verify(run(stepwise))
            kept = {k: v for k, v in inputs.items() if any(i.key == k for i in stepwise.inputs)}
            if options == EvalOptions():
                assert_same(before, eval(stepwise, kept, options))
    after, _ = run_passes(graph, verify=True)
    kept = {k: v for k, v in inputs.items() if any(i.key == k for i in after.inputs)}
    assert_same(eval(graph, inputs), eval(after, kept))
    again, names = run_passes(after)
    assert again is after and names == (), "the list runs until nothing changes"


def decoder(tokens):
    """A decoder layer with its head, as a family traces it."""
    b = Builder("layer")
    rows, capacity, heads, kv_heads, width, n = 2, 8, 4, 2, 8, 32
    i32 = {k: b.slot(SlotKey(k), TensorType((rows,), I32)) for k in (SlotKind.POS, SlotKind.LAST)}
    position, last = i32[SlotKind.POS], i32[SlotKind.LAST]
    token = b.slot(SlotKey(SlotKind.TOKEN), TensorType((rows, tokens), I32))
    place = b.slot(SlotKey(SlotKind.WRITE_MAP), TensorType((rows, tokens), I32))

    def weight(role, *shape):
        return b.weight(WeightKey(0, role), TensorType(shape, F32))

    def linear(x, role, out):
        return f.linear(x, weight(role, out, x.shape[-1]), DENSE)

    def pool(role, new):
        key = StateKey(0, role)
        old = b.state(key, TensorType((rows * capacity, kv_heads, width), F32))
        flat = p.reshape(new, (rows * tokens, kv_heads, width))
        now = p.scatter_update(old, p.reshape(place, (rows * tokens,)), flat)
        b.next_state(key, now)
        return p.reshape(now, (rows, capacity, kv_heads, width))

    x = f.embedding(weight("embedding", 11, n), DENSE, token)
    cos, sin = f.rotary_table(position, tokens, b.computed(1e4 ** -(np.arange(4) / 4), F32))
    y = f.rms_norm(x, weight("norm", n), 1e-5)
    q = f.rope(p.reshape(linear(y, "q", n), (rows, tokens, heads, width)), cos, sin)
    k = f.rope(p.reshape(linear(y, "k", n // 2), (rows, tokens, kv_heads, width)), cos, sin)
    v = p.reshape(linear(y, "v", n // 2), (rows, tokens, kv_heads, width))
    mask = f.causal_mask(position, last, tokens, capacity)
    out = f.attention(q, pool("k", k), pool("v", v), mask, width**-0.5, f.written_mask(position, last, capacity))
    x = x + linear(p.reshape(out, (rows, tokens, n)), "o", n)
    y = f.rms_norm(x, weight("norm2", n), 1e-5)
    x = x + linear(f.swiglu(linear(y, "gate", 48), linear(y, "up", 48)), "down", n)
    logits = f.linear(f.last_token(x, last), weight("embedding", 11, n), DENSE)
    b.output("token", p.argmax(logits, 1))
    b.output("non_finite", f.non_finite(logits))
    b.output("logits", logits)
    return b.build()


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_decoder_layer_keeps_every_bit_and_shrinks(tokens, rng, tmp_path):
    graph = decoder(tokens)
    inputs = {}
    for item in graph.inputs:
        if item.key is None:
            continue
        shape = item.value.shape
        inputs[item.key] = {
            SlotKey(SlotKind.POS): np.array([2, 4], np.int32),
            SlotKey(SlotKind.LAST): np.array([tokens - 1, 0], np.int32),
            SlotKey(SlotKind.TOKEN): rng.integers(0, 11, (2, tokens), np.int32),
            SlotKey(SlotKind.WRITE_MAP): np.array([[2, 3, 4], [12, -1, -1]], np.int32)[:, :tokens],
        }.get(item.key, rng.standard_normal(shape, np.float32) if item.value.dtype is F32 else None)
    after, names = run_passes(graph, verify=True, dump=tmp_path / "graphs")
    assert names == ("canonicalize", "fold_constants", "merge_equal", "remove_dead")
    before = eval(graph, inputs)
    assert_same(before, eval(after, inputs))
    assert np.isfinite(before.outputs["logits"]).all()
    assert len(after.equations) < 0.85 * len(graph.equations)
    texts = sorted((tmp_path / "graphs").iterdir())
    assert texts[0].name == "00_traced.txt" and texts[0].read_text(encoding="utf-8") == str(graph)
    assert texts[-1].read_text(encoding="utf-8") == str(after)
    again, changed = run_passes(after)
    assert again is after and changed == ()
