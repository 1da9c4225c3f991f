"""The verifier refuses graphs that are broken in one place; the text says everything of a graph."""

from dataclasses import replace

import numpy as np
import pytest

from poot_executor.dtype import BF16, F32, I32
from poot_executor.errors import GraphError
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Equation, Input, StatePair, TensorType, Value
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey, Storage
from poot_executor.graph.verify import verify
from poot_executor.weights import WeightKey


def step():
    b = Builder("step")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((2, 3), F32))
    w = b.weight(WeightKey(3, "up"), TensorType((3, 4), BF16))
    pool = b.state(StateKey(3, "k"), TensorType((8, 4), F32))
    index = b.computed([5, -1], I32)
    y = p.matmul(x, w) * 0.5
    b.next_state(StateKey(3, "k"), p.scatter_update(pool, index, y))
    b.output("y", p.pad(y, (0, 1), (0, 0), -1.5))
    b.check(p.reduce_max(index, 0))
    return b.build()


TEXT = """graph step:
  %0: f32[2, 3] = slot input.x
  %1: bf16[3, 4] = const 3.up
  %2: f32[8, 4] = state 3.k
  %3: i32[2] = computed #3b3676f490e4
  %5: f32[] = computed splat 0.5
  %4: f32[2, 4] = matmul(%0, %1, dtype=f32)
  %6: f32[1, 1] = reshape(%5, shape=[1, 1])
  %7: f32[2, 4] = broadcast(%6, shape=[2, 4])
  %8: f32[2, 4] = mul(%4, %7)
  %9: f32[8, 4] = scatter_update(%2, %3, %8)
  %10: f32[2, 5] = pad(%8, high=[0, 0], low=[0, 1], value=-1.5)
  %11: i32[] = reduce_max(%3, axis=0)
  state 3.k: %2 -> %9
  check %11
  output y: %10
"""


def test_text():
    assert str(step()) == TEXT == str(step())


def test_constants_with_other_bytes_have_other_text():
    def text(values):
        b = Builder()
        b.computed(values, F32)
        return str(b.build())

    assert text([1, 2]) != text([2, 1]) and "splat 3.0" in text([3, 3])
    assert text([0.0, 0.0]) != text([-0.0, -0.0]) != text([0.0, -0.0])


def frozen(values):
    array = np.array(values, np.int32)
    array.flags.writeable = False
    return array


def equation(graph, place, **changes):
    equations = list(graph.equations)
    equations[place] = replace(equations[place], **changes)
    return replace(graph, equations=tuple(equations))


def inputs(graph, place, **changes):
    items = list(graph.inputs)
    items[place] = replace(items[place], **changes)
    return replace(graph, inputs=tuple(items))


FOREIGN = Value(99, TensorType((2, 4), F32))
BROKEN = {
    "out of order": (lambda g: replace(g, equations=g.equations[::-1]), "not defined before"),
    "a foreign operand": (lambda g: equation(g, 3, inputs=(FOREIGN, FOREIGN)), "%99 of type"),
    "an operand of another type": (
        lambda g: equation(g, 3, inputs=(Value(4, TensorType((4, 2), F32)),) * 2),
        "not defined before",
    ),
    "defined twice": (lambda g: replace(g, equations=(*g.equations, g.equations[-1])), "defined twice"),
    "a wrong result": (
        lambda g: equation(g, 5, output=Value(10, TensorType((2, 6), F32))),
        r"result's type is f32\[2, 5\]",
    ),
    "wrong params": (lambda g: equation(g, 0, params={}), "takes params"),
    "an unknown operation": (lambda g: equation(g, 0, op="gemm"), "no primitive 'gemm'"),
    "types that do not fit": (lambda g: equation(g, 3, inputs=(g.inputs[0].value,) * 2), "result's type"),
    "one key twice": (lambda g: inputs(g, 2, storage=Storage.SLOT, key=g.inputs[0].key), "two inputs"),
    "a slot with a weight's key": (lambda g: inputs(g, 0, key=WeightKey(0, "w")), "it has a SlotKey"),
    "a const without a key": (lambda g: inputs(g, 1, key=None), "it has a WeightKey"),
    "an input on the device": (lambda g: inputs(g, 1, storage=Storage.DEVICE), "no input has storage"),
    "a constant without data": (lambda g: inputs(g, 3, data=None), "it has data"),
    "data of another shape": (lambda g: inputs(g, 3, data=frozen([1, 2, 3])), "its data is int32"),
    "data of another dtype": (lambda g: inputs(g, 3, data=frozen([1, 2]).view(np.uint32)), "its data is uint32"),
    "data that can change": (lambda g: inputs(g, 3, data=np.zeros(2, np.int32)), "immutable"),
    "a state without a pair": (lambda g: replace(g, state=()), "3.k has no pair"),
    "a state with two pairs": (lambda g: replace(g, state=g.state * 2), "two pairs"),
    "a state of another type": (
        lambda g: replace(g, state=(StatePair(g.state[0].key, g.inputs[2].value, g.inputs[0].value),)),
        "before the step and",
    ),
    "a pair of a slot": (
        lambda g: replace(g, state=(*g.state, StatePair(StateKey(0, "v"), g.inputs[0].value, g.inputs[0].value))),
        "0.v has two pairs, or",
    ),
    "a foreign output": (lambda g: replace(g, outputs={"y": FOREIGN}), "output y"),
    "a check that is no scalar": (lambda g: replace(g, checks=(g.inputs[3].value,)), "not i32"),
    "an empty input": (
        lambda g: replace(g, inputs=(*g.inputs, Input(Value(50, TensorType((0,), I32)), Storage.SLOT))),
        "below 1",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs_are_refused(name):
    change, reason = BROKEN[name]
    graph = step()
    assert verify(graph) is graph
    with pytest.raises(GraphError, match=reason):
        verify(change(graph))


def test_params_cannot_be_changed_afterwards():
    params = {"axis": 0}
    made = Equation("sum", (Value(0, TensorType((2,), F32)),), params, Value(1, TensorType((), F32)))
    params["axis"] = 5
    assert made.params["axis"] == 0
    with pytest.raises(TypeError):
        made.params["axis"] = 1
