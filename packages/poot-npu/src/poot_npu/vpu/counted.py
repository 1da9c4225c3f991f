"""What depends on constants alone is a constant before OpenVINO sees it.

OpenVINO folds what it can compute, which bitwise operations are not among. The CPU plug-in computes such a node once,
with the first step, and does not know it for a constant: where the node is the first operand of one that may be
computed in place, that one's result is written over it, and every later step reads the bits of the step before. A
folded constant takes the memory that the node's result would, whatever its size; what merely repeats is folded as it is
before that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset15 as op
from openvino import passes

from poot_executor.dtype import DType
from poot_executor.graph.graph import TensorType
from poot_executor.graph.ops import OPS
from poot_npu.vpu.nodes import Node, longs

BITWISE = {"BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor", "BitwiseNot": "not"}
"""OpenVINO's operations that it does not fold, as the op table names them: all of them on i32 here."""


def fold_counted(model: openvino.Model) -> None:
    """Put constants in place of the bitwise operations of a model that depend on constants alone."""
    counted: set[str] = set()
    for node in model.get_ordered_ops():
        sources = [port.get_source_output() for port in node.inputs()]
        kind = node.get_type_name()
        if kind == "Constant" or (sources and all(source.get_node().get_name() in counted for source in sources)):
            counted.add(node.get_name())
            if kind in BITWISE:
                made = _folded(BITWISE[kind], sources, tuple(node.output(0).get_shape()))
                counted.add(made.get_node().get_name())
                node.output(0).replace(made)


def _folded(name: str, sources: list[Node], shape: tuple[int, ...]) -> Node:
    arrays = [_before_repeating(source) for source in sources]
    least = np.broadcast_shapes(*(array.shape for array in arrays))
    data = OPS[name].evaluate(arrays, {}, TensorType(least, DType.I32))
    made = op.constant(np.array(data, np.int32))
    return (made if least == shape else op.broadcast(made, longs(shape))).output(0)


def _before_repeating(source: Node) -> NDArray[Any]:
    """The elements of a node that depends on constants alone, of 1 along axes that a broadcast fills."""
    node = source.get_node()
    rank = len(source.get_shape())
    if node.get_type_name() == "Broadcast" and node.get_input_size() == 2:
        array = _data(node.input_value(0))
        return array.reshape((1,) * (rank - array.ndim) + array.shape)
    return _data(source)


def _data(source: Node) -> NDArray[Any]:
    if source.get_node().get_type_name() != "Constant":
        alone = openvino.Model([op.result(source)], [], "counted")
        manager = passes.Manager()
        manager.register_pass(passes.ConstantFolding())
        manager.run_passes(alone)
        source = alone.get_results()[0].input_value(0)
    node = source.get_node()
    assert node.get_type_name() == "Constant", f"OpenVINO does not fold {node.get_type_name()}"
    return np.array(node.get_data())
