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
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.weights import WeightKey
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node, longs
from poot_npu.vpu.packed import contracted, gathered
from poot_npu.vpu.prepared import Prepared
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
    prepared: Prepared
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
    alike: dict[tuple[Value, str, int], list[tuple[Equation, Planes]]] = {}
    for equation in graph.equations:
        if equation.op == "matmul":
            weight = weight_of(graph, equation)
            if weight in packed:
                planes = packed[weight]
                alike.setdefault((equation.inputs[0], planes.format.name, planes.columns), []).append(
                    (equation, planes)
                )
        elif equation.op == "packed_dequant":
            rewrites[equation.output] = _decoded(graph, equation, packed, made)
    for (x, _, _), members in alike.items():
        rewrites.update(_contractions(x, members, made))
    return rewrites


def _contractions(x: Value, members: list[tuple[Equation, Planes]], made: WeightNodes) -> dict[Value, Rewrite]:
    """Contractions of one input with weights of one format are one, cut into their columns."""
    parts = [planes for _, planes in members]
    ends = np.cumsum([planes.rows for planes in parts])

    def whole(low: Lowering) -> list[Node]:
        weight = made.prepared.contraction(parts, made.fast)
        made.keep.append(weight)
        product = contracted(low.nodes[x], weight)
        if len(parts) == 1:
            return [product]
        lengths = longs([planes.rows for planes in parts])
        return list(op.variadic_split(product, longs(1), lengths).outputs())

    key = ("contractions", x, *ends.tolist(), parts[0].format.name)
    return {
        equation.output: Rewrite((x,), lambda low, n=n: low.shared(key, lambda: whole(low))[n])
        for n, (equation, _) in enumerate(members)
    }


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
    rows, blocks = planes.rows, planes.blocks
    width = planes.quants.shape[1]
    byte = openvino.Type.i8 if planes.bits == 8 and planes.signed else openvino.Type.u8
    scale = made.prepared.wide_scale(planes)
    tables = [
        made.table(planes.quants, byte, (rows, blocks * width)),
        made.table(scale, openvino.Type.f32, (rows, blocks)),
    ]
    if planes.minimum is not None:
        minimum = made.prepared.wide_minimum(planes)
        tables.append(made.table(minimum, openvino.Type.f32, (rows, blocks)))
    return tables
