"""The oracle on whole graphs, against formulas of their own."""

import math

import numpy as np
import pytest

from poot_eval import EvalOptions, eval
from poot_executor.dtype import BF16, F16, F32, I32, U8, round_bf16
from poot_executor.errors import BindError, GraphError
from poot_executor.formats import FORMATS
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import StoredTensor, WeightKey

X, INDEX = SlotKey(SlotKind.INPUT, "x"), SlotKey(SlotKind.INPUT, "index")
W, POOL = WeightKey(0, "w"), StateKey(0, "pool")


def projection(rows=3, k=40, n=5):
    """x @ w, and a pool whose rows are replaced."""
    b = Builder("projection")
    x = b.slot(X, TensorType((rows, k), F32))
    w = b.weight(W, TensorType((k, n), F32))
    index = b.slot(INDEX, TensorType((rows,), I32))
    pool = b.state(POOL, TensorType((9, n), F32))
    y = b.apply("matmul", x, w, dtype=F32)
    b.next_state(POOL, b.apply("scatter_update", pool, index, y))
    b.output("y", y)
    b.output("before", pool)
    b.check(b.apply("reduce_max", index, axis=0))
    return b.build()


def inputs(rng, rows=3, k=40, n=5):
    return {
        X: rng.standard_normal((rows, k), np.float32),
        W: rng.standard_normal((k, n), np.float32),
        INDEX: np.array([4, -1, 8], np.int32),
        POOL: rng.standard_normal((9, n), np.float32),
    }


def test_outputs_state_and_checks(rng):
    given = inputs(rng)
    result = eval(projection(), given)
    x, w = given[X].astype(np.float64), given[W].astype(np.float64)
    exact = [[math.fsum(x[i] * w[:, j]) for j in range(5)] for i in range(3)]
    assert np.array_equal(result.outputs["y"], np.asarray(exact, np.float32))
    expected = given[POOL].copy()
    expected[[4, 8]] = result.outputs["y"][[0, 2]]
    assert np.array_equal(result.state[POOL], expected)
    assert np.array_equal(result.outputs["before"], given[POOL])
    assert result.checks == (8,) and not result.environment


def test_the_environment_holds_every_value(rng):
    graph = projection()
    result = eval(graph, inputs(rng), EvalOptions(environment=True))
    values = {i.value for i in graph.inputs} | {e.output for e in graph.equations}
    assert set(result.environment) == values


def test_options_change_precision_and_order(rng):
    given = inputs(rng, k=4000)
    graph = projection(k=4000)
    exact = eval(graph, given).outputs["y"]
    single = eval(graph, given, EvalOptions(precision="f32")).outputs["y"]
    fast = eval(graph, given, EvalOptions(order="blas")).outputs["y"]
    total = np.zeros((3, 5), np.float32)
    for k in range(4000):
        total += given[X][:, k, None] * given[W][None, k, :]
    assert np.array_equal(single, total) and not np.array_equal(single, exact)
    assert (np.abs(fast - exact) <= np.spacing(np.abs(exact))).all()


def test_a_result_does_not_depend_on_the_rows_beside_it(rng):
    given = inputs(rng)
    whole = eval(projection(), given).outputs["y"]
    alone = dict(given)
    alone[X], alone[INDEX] = given[X][1:2], given[INDEX][1:2]
    assert np.array_equal(eval(projection(rows=1), alone).outputs["y"], whole[1:2])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_stored_tensors_are_read_as_the_type_says(rng, name):
    format = FORMATS[name]
    rows, columns = 3, 64
    raw = rng.integers(0, 256, rows * format.row_bytes(columns), dtype=np.uint8)
    if format.is_packed:  # finite scales
        blocks = raw.reshape(-1, format.nbytes)
        for field in format.fields:
            if field.name in ("scale", "minimum"):
                halves = rng.standard_normal(len(blocks)).astype("<f2")
                blocks[:, field.offset : field.offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    else:
        floats = rng.standard_normal(rows * columns).astype(np.float32)
        held = {"f32": floats.astype("<f4"), "f16": floats.astype("<f2")}
        bf16 = (round_bf16(floats).view(np.uint32) >> np.uint32(16)).astype("<u2")
        raw = held.get(name, bf16).view(np.uint8)
    b = Builder("stored")
    if format.is_packed:
        type = TensorType((rows, format.row_bytes(columns)), U8)
        b.output("w", b.apply("packed_dequant", b.weight(W, type), format=name))
    else:
        weight = b.weight(W, TensorType((rows, columns), format.dtype))
        b.output("w", b.apply("cast", weight, dtype=F32))
    stored = StoredTensor("w", format, (rows, columns), raw)
    got = eval(b.build(), {W: stored}).outputs["w"]
    assert np.array_equal(got, format.decode(raw.reshape(rows, -1)))


def test_inputs_that_do_not_fit_are_refused(rng):
    graph, given = projection(), inputs(rng)
    missing = {key: value for key, value in given.items() if key != X}
    with pytest.raises(BindError, match=r"input\.x of type f32\[3, 40\] is missing"):
        eval(graph, missing)
    with pytest.raises(BindError, match=r"no input 7\.w"):
        eval(graph, {**given, WeightKey(7, "w"): given[W]})
    for bad in (given[X][:2], given[X].astype(np.float64), given[X].reshape(3, 40, 1)):
        with pytest.raises(BindError, match=r"input\.x is f32\[3, 40\]"):
            eval(graph, {**given, X: bad})
    half = StoredTensor("w", FORMATS["f16"], (40, 5), np.zeros(800, np.uint8))
    with pytest.raises(BindError, match=r"tensor w is f16\[40, 5\]"):
        eval(graph, {**given, W: half})


def test_bf16_values_must_be_bf16(rng):
    b = Builder("narrow")
    b.output("y", b.apply("neg", b.slot(X, TensorType((4,), BF16))))
    values = rng.standard_normal(4).astype(np.float32) + np.float32(2**-20)
    with pytest.raises(BindError, match="not bf16"):
        eval(b.build(), {X: values})
    assert np.array_equal(eval(b.build(), {X: round_bf16(values)}).outputs["y"], -round_bf16(values))


def test_a_fault_is_an_error_and_not_a_value(rng):
    with pytest.raises(GraphError, match="index 9"):
        eval(projection(), {**inputs(rng), INDEX: np.array([9, 0, 1], np.int32)})


def test_softmax_equals_its_formula(rng):
    b = Builder("softmax")
    x = b.slot(X, TensorType((4, 33), F16))
    wide = b.apply("cast", x, dtype=F32)
    top = b.apply("reshape", b.apply("reduce_max", wide, axis=1), shape=(4, 1))
    power = b.apply("exp", b.apply("sub", wide, b.apply("broadcast", top, shape=(4, 33))))
    total = b.apply("reshape", b.apply("sum", power, axis=1), shape=(4, 1))
    b.output("p", b.apply("div", power, b.apply("broadcast", total, shape=(4, 33))))
    values = rng.standard_normal((4, 33)).astype(np.float16)
    got = eval(b.build(), {X: values}).outputs["p"]
    power = np.exp(values.astype(np.float64))
    assert np.allclose(got, power / power.sum(1, keepdims=True), rtol=4e-7, atol=0)
