"""What depends on constants alone keeps its bits from step to step: OpenVINO folds no bitwise operations, and the CPU
plug-in writes results over what it computed of constants in the first step."""

import numpy as np
import openvino
import pytest
from openvino import opset15 as op

from poot_eval.conformance.inputs import Recorder, integers
from poot_eval.conformance.session import open_session
from poot_eval.graph import eval
from poot_executor.dtype import I32, U32
from poot_executor.graph import primitives as p
from poot_npu.vpu.counted import fold_counted

STEPS = 4
SHAPE = (4, 3, 32)


def _counted(g, shape=SHAPE):
    return p.iota(g.builder, shape, 2, U32)


def _bits(g, x):
    """As a mask of ids is asked for its bits."""
    place = _counted(g, (1, 1, 32))
    bit = p.broadcast(g.builder.splat(1, place.type) << place, SHAPE)
    return p.cast((p.broadcast(p.slice_(x, (0, 0, 0), (4, 3, 1)), SHAPE) & bit) != 0, I32)


FORMS = {
    "bits of words": _bits,
    "repeated, and": lambda g, x: (p.broadcast(~_counted(g, (1, 1, 32)), SHAPE) & x) ^ 5,
    "repeated, difference": lambda g, x: (p.broadcast(_counted(g, (4, 1, 32)) ^ 0x55AA, SHAPE) - x) * 5,
    "moved": lambda g, x: p.transpose(_counted(g, (32, 3, 4)) | 0x100, (2, 1, 0)) - x,
    "cut": lambda g, x: p.slice_(~_counted(g, (4, 5, 32)), (0, 2, 0), (4, 5, 32)) - x,
    "joined": lambda g, x: p.concat([~_counted(g, (4, 1, 32)), _counted(g, (4, 2, 32)) ^ 9], 1) - x,
    "reshaped": lambda g, x: p.reshape(~_counted(g, (3, 4, 32)), SHAPE) - x,
    "not repeated": lambda g, x: (_counted(g) << 3 ^ 77) - x,
    "a choice": lambda g, x: p.select(x > 0x7FFFFFFF, _counted(g) ^ 9, x) + x,
    "a shift's count": lambda g, x: (_counted(g) & 7) - (x >> (_counted(g) & 7)),
}  # fmt: skip
"""Of u32 words that are the result of something else, or nothing is computed in place."""


@pytest.mark.parametrize("name", FORMS)
def test_later_steps_read_what_the_first_did(any_mode, rng, name):
    g = Recorder("counted", rng)
    x = g.slot(integers(rng, SHAPE, U32), U32)
    g.output(FORMS[name](g, p.transpose(p.reshape(x, (32, 4, 3)), (1, 2, 0))))
    g.output(_counted(g) ^ 3)
    graph, given = g.builder.build(), dict(g.given())
    (key,) = given
    with open_session(any_mode, graph, given) as session:
        recording = session.lower()
        for step in range(STEPS):
            given = {key: integers(rng, SHAPE, U32)}
            session.set_inputs(given)
            session.poison()
            got, expected = session.run(recording).outputs, eval(graph, given).outputs
            for output, values in expected.items():
                np.testing.assert_array_equal(got[output], values, f"{output} of step {step}")


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_nothing_bitwise_is_left_of_constants(shape, rng):
    """Whatever lies between: what OpenVINO folds by itself, repeats or moves."""
    held, other = (integers(rng, shape, I32) for _ in range(2))
    x = op.parameter(openvino.Shape([4, *shape]), openvino.Type.i32)
    both = op.bitwise_or(op.bitwise_and(op.constant(held), op.constant(other)), op.constant(np.int32(64)))
    chosen = op.select(op.less(both, op.constant(np.int32(0))), op.bitwise_not(both), both)
    spread = op.broadcast(chosen, op.constant(np.array([4, *shape], np.int64)))
    model = openvino.Model([op.result(op.bitwise_xor(op.bitwise_not(spread), x))], [x], "counted")
    fold_counted(model)
    left = [node.get_type_name() for node in model.get_ordered_ops() if node.get_type_name().startswith("Bitwise")]
    assert left == ["BitwiseXor"]
    expected = (held & other) | 64
    expected = ~np.where(expected < 0, ~expected, expected)
    given = integers(rng, (4, *shape), I32)
    (got,) = openvino.Core().compile_model(model, "CPU")([given]).values()
    np.testing.assert_array_equal(got, expected ^ given)
