"""Recording: what operators and functions record, and what they refuse."""

import numpy as np
import pytest

from poot_eval import eval
from poot_executor.dtype import BF16, BOOL, F32, I32, U8
from poot_executor.errors import GraphError
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import WeightKey

X, Y = SlotKey(SlotKind.INPUT, "x"), SlotKey(SlotKind.INPUT, "y")
POOL = StateKey(None, "pool")


def slots(builder):
    return builder.slot(X, TensorType((2, 3), F32)), builder.slot(Y, TensorType((3,), F32))


def test_operators_record_explicit_broadcasts():
    b = Builder("sum")
    x, y = slots(b)
    b.output("z", 2 * x - y)
    assert (
        str(b.build())
        == """graph sum:
  %0: f32[2, 3] = slot input.x
  %1: f32[3] = slot input.y
  %2: f32[] = computed splat 2.0
  %3: f32[1, 1] = reshape(%2, shape=[1, 1])
  %4: f32[2, 3] = broadcast(%3, shape=[2, 3])
  %5: f32[2, 3] = mul(%4, %0)
  %6: f32[1, 3] = reshape(%1, shape=[1, 3])
  %7: f32[2, 3] = broadcast(%6, shape=[2, 3])
  %8: f32[2, 3] = sub(%5, %7)
  output z: %8
"""
    )


def test_operators_compute_what_numpy_does(rng):
    b = Builder()
    x, y = slots(b)
    i = p.cast(p.floor(x * 10), I32)
    b.output("a", (1.5 - x) / (y * y + 1) + (-x) * y - 2)
    b.output("b", 1 / (x * x + 1))
    b.output("c", p.select((x < y) & ~(x <= -0.5) | (x != 0.25) ^ (y >= 0.1), i, -i))
    b.output("d", ((i & 6) | 1) << 2 >> 1)
    b.output("e", (x > 0) & (y == y) & True)
    b.output("f", p.reshape(y, (1, 3)) @ p.transpose(x, (1, 0)))
    vx, vy = rng.standard_normal((2, 3), np.float32), rng.standard_normal(3, np.float32)
    out = eval(b.build(), {X: vx, Y: vy}).outputs
    vi = np.floor(vx * np.float32(10)).astype(np.int32)
    assert np.allclose(out["a"], (1.5 - vx) / (vy * vy + 1) + (-vx) * vy - 2, atol=1e-5)
    assert np.allclose(out["b"], 1 / (vx * vx + 1))
    condition = (vx < vy) & ~(vx <= -0.5) | (vx != 0.25) ^ (vy >= 0.1)
    assert np.array_equal(out["c"], np.where(condition, vi, -vi))
    assert np.array_equal(out["d"], ((vi & 6) | 1) << 2 >> 1)
    assert np.array_equal(out["e"], vx > 0)
    assert np.allclose(out["f"], vy[None] @ vx.T, atol=1e-5)


def test_equal_scalars_are_one_constant():
    b = Builder()
    x, _ = slots(b)
    b.output("y", x * 2.0 + 2.0 + x * 0.0 - -0.0)
    assert [i.data.item() for i in b.build().inputs if i.data is not None] == [2.0, 0.0, -0.0]


def test_handles_have_no_data():
    b = Builder()
    x, y = slots(b)
    for use in (lambda: bool(x), lambda: 1 if x > 0 else 2, lambda: x == y and 1, lambda: list(x), lambda: float(x)):
        with pytest.raises((GraphError, TypeError)):
            use()
    with pytest.raises(GraphError, match="cannot branch"):
        bool(x)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda b, x, y: x + p.cast(y, I32), "one type"),
        (lambda b, x, y: x + p.reshape(y, (3, 1)), "do not broadcast"),
        (lambda b, x, y: p.cast(x, I32) + 0.5, "0.5 is not an integer"),
        (lambda b, x, y: p.cast(x, U8) + 1, "dtype"),
        (lambda b, x, y: x + True, "bool"),
        (lambda b, x, y: x + "1", "neither"),
        (lambda b, x, y: x + np.ones(3), "neither"),
        (lambda b, x, y: p.cast(x, I32) / 2, "truncates"),
        (lambda b, x, y: 2 / p.cast(x, I32), "truncates"),
        (lambda b, x, y: p.add(x, y), "one type"),
        (lambda b, x, y: p.concat([], 0), "1 or more"),
        (lambda b, x, y: p.add(x, 1), "not a traced value"),
        (lambda b, x, y: x + Builder("other").computed(1.0, F32), "belongs to graph other"),
        (lambda b, x, y: b.slot(X, TensorType((2,), F32)), "input.x is"),
        (lambda b, x, y: b.slot(SlotKey(SlotKind.POS), TensorType((0,), I32)), "below 1"),
        (lambda b, x, y: b.check(x), "a check is i32"),
        (lambda b, x, y: b.next_state(POOL, y), "cannot become"),
        (lambda b, x, y: b.next_state(StateKey(3, "k"), y), "reads no state 3.k"),
        (lambda b, x, y: (b.output("o", x), b.output("o", y)), "output 'o' already"),
        (lambda b, x, y: b.computed([0.5], I32), "float64 is not i32"),
        (lambda b, x, y: b.computed([300], U8), "does not fit u8"),
        (lambda b, x, y: b.computed([1], BOOL), "not bool"),
        (lambda b, x, y: b.apply("conv", x), "no primitive"),
    ],
)
def test_refusals_at_the_call(wrong, reason):
    b = Builder("traced")
    x, y = slots(b)
    b.state(POOL, TensorType((4,), F32))
    with pytest.raises(GraphError, match=reason):
        wrong(b, x, y)


def test_inputs_are_one_for_each_key():
    b = Builder()
    type = TensorType((4, 2), BF16)
    assert b.weight(WeightKey(1, "w"), type) is b.weight(WeightKey(1, "w"), type)
    assert b.state(POOL, type) is b.state(POOL, type)
    graph = b.build()
    assert graph.weights() == {WeightKey(1, "w"): graph.inputs[0].value}


def test_a_state_that_is_not_replaced_stays():
    b = Builder()
    pool = b.state(POOL, TensorType((4,), F32))
    last = b.state(StateKey(None, "last"), TensorType((4,), F32))
    b.next_state(StateKey(None, "last"), pool + 1)
    graph = b.build()
    assert graph.state[0].before == graph.state[0].after == pool.value
    assert graph.state[1].before == last.value and graph.equation(graph.state[1].after).op == "add"
    with pytest.raises(GraphError, match="replaced twice"):
        b.next_state(StateKey(None, "last"), last)


def test_constants_are_copied_and_rounded():
    b = Builder()
    mine = np.array([1.0, 257.0], np.float32)
    b.output("y", b.computed(mine, BF16))
    mine[:] = 0
    held = b.build().inputs[0].data
    assert held.tolist() == [1.0, 256.0] and not held.flags.writeable
