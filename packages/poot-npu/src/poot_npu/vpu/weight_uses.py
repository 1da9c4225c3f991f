"""How a graph uses its weights, recognized by structure: contractions with them as they are stored, rows of them by
index, and anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino
from openvino import opset15 as op

from poot_executor.compile.classify import weight_of
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.weights import WeightKey
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node
from poot_npu.vpu.packed import contracted, gathered
from poot_npu.vpu.rewrite import Rewrite
from poot_npu.vpu.weights import Planes


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A dense weight: its bytes, as stored."""

    memory: Any


Weights = Mapping[WeightKey, Planes | Dense]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Bytes of a weight that a model reads as a parameter: rows by index need no copy of the whole."""

    array: Any
    type: openvino.Type
    shape: tuple[int, ...]


@dataclass(slots=True, eq=False)
class WeightNodes:
    """Weights of one model under construction: `keep` are arrays that constants share, `tables` the parameters."""

    fast: bool
    keep: list[Any] = field(default_factory=list)
    tables: list[tuple[Node, Table]] = field(default_factory=list)

    def table(self, array: Any, type: openvino.Type, shape: tuple[int, ...]) -> Node:
        """A parameter over an array's memory, the same for the same memory."""
        for node, known in self.tables:
            if known.array is array and known.shape == shape:
                return node
        node = op.parameter(openvino.Shape(list(shape)), type)
        self.tables.append((node, Table(array, type, shape)))
        return node


def weight_rewrites(graph: Graph, weights: Weights, made: WeightNodes) -> dict[Value, Rewrite]:
    """Every use of a packed weight. Raises Unsupported for one that is none of these, by name."""
    keys = {value: key for key, value in graph.weights().items()}
    packed = {value: found for value, key in keys.items() if isinstance(found := weights[key], Planes)}
    rewrites: dict[Value, Rewrite] = {}
    for equation in graph.equations:
        if equation.op == "matmul":
            weight = weight_of(graph, equation)
            if weight in packed:
                rewrites[equation.output] = _contraction(equation, packed[weight], made)
        elif equation.op == "packed_dequant":
            rewrites[equation.output] = _decoded(graph, equation, packed, made)
    return rewrites


def _contraction(equation: Equation, planes: Planes, made: WeightNodes) -> Rewrite:
    x = equation.inputs[0]
    return Rewrite((x,), lambda low: contracted(low.nodes[x], planes, made.fast, made.keep))


def _decoded(graph: Graph, equation: Equation, packed: Mapping[Value, Planes], made: WeightNodes) -> Rewrite:
    """Decoded rows: all of them, or those that a gather names."""
    source = equation.inputs[0]
    if source in packed:
        planes, shape = packed[source], equation.output.shape
        every = np.arange(planes.rows, dtype=np.int32).reshape(shape[:-1])
        return Rewrite((), lambda low: gathered(_tables(planes, made), op.constant(every), planes, shape))
    found = graph.equation(source)
    if found is not None and found.op == "gather" and found.inputs[0] in packed:
        planes, index, shape = packed[found.inputs[0]], found.inputs[1], equation.output.shape

        def build(low: Lowering) -> Node:
            rows = found.inputs[0].shape[0]
            low.check(found, index, 0, rows - 1)
            node = low.nodes[index]
            if not low.within(index, 0, rows - 1):
                node = op.minimum(op.maximum(node, op.constant(np.int32(0))), op.constant(np.int32(rows - 1)))
            return gathered(_tables(planes, made), node, planes, shape)

        if len(found.inputs[0].shape) == 2:
            return Rewrite((index,), build)
    raise Unsupported(
        f"packed_dequant -> {equation.output.type}", "vpu decodes whole weights and rows of them by index"
    )


def _tables(planes: Planes, made: WeightNodes) -> list[Node]:
    rows, blocks = planes.rows, planes.columns // planes.format.columns
    width = planes.quants.shape[1]
    byte = openvino.Type.i8 if planes.bits == 8 and planes.signed else openvino.Type.u8
    tables = [
        made.table(planes.quants, byte, (rows, blocks * width)),
        made.table(planes.scale, openvino.Type.f16, (rows, blocks)),
    ]
    if planes.minimum is not None:
        tables.append(made.table(planes.minimum, openvino.Type.f16, (rows, blocks)))
    return tables


DENSE_TYPES = {DType.F32: openvino.Type.f32, DType.F16: openvino.Type.f16, DType.BF16: openvino.Type.bf16}
