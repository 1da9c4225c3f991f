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
from poot_npu.vpu.nodes import Node, integer, longs
from poot_npu.vpu.packed import contracted, gathered
from poot_npu.vpu.prepared import Prepared
from poot_npu.vpu.rewrite import Rewrite
from poot_npu.vpu.weights import Stored

Weights = Mapping[WeightKey, Stored]


@dataclass(slots=True, eq=False)
class WeightNodes:
    """Weights of one model under construction. `apart`: minima are contractions of their own. `keep` are arrays that
    constants share, `tables` the parameters u8[rows, bytes a row] over weights as they are stored."""

    apart: bool
    prepared: Prepared
    keep: list[Any] = field(default_factory=list)
    tables: dict[WeightKey, Node] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin another model."""
        self.keep.clear()
        self.tables.clear()

    def table(self, key: WeightKey, weight: Stored) -> Node:
        """The parameter over a weight."""
        if key not in self.tables:
            shape = [weight.rows, weight.blocks * weight.format.nbytes]
            self.tables[key] = op.parameter(openvino.Shape(shape), openvino.Type.u8)
        return self.tables[key]


def weight_rewrites(graph: Graph, weights: Weights, made: WeightNodes) -> dict[Value, Rewrite]:
    """Every use of a packed weight. Raises Unsupported for one that is none of these, by name."""
    keys = {value: key for key, value in graph.weights().items()}
    packed = {value: key for value, key in keys.items() if weights[key].format.is_packed}
    rewrites: dict[Value, Rewrite] = {}
    alike: dict[tuple[Value, str, int], list[tuple[Equation, Stored]]] = {}
    for equation in graph.equations:
        if equation.op == "matmul":
            value = weight_of(graph, equation)
            if value in packed:
                weight = weights[packed[value]]
                key = (equation.inputs[0], weight.format.name, weight.columns)
                alike.setdefault(key, []).append((equation, weight))
        elif equation.op == "packed_dequant":
            rewrites[equation.output] = _decoded(graph, equation, packed, weights, made)
    for (x, _, _), members in alike.items():
        rewrites.update(_contractions(x, members, made))
    return rewrites


def _contractions(x: Value, members: list[tuple[Equation, Stored]], made: WeightNodes) -> dict[Value, Rewrite]:
    """Contractions of one input with weights of one format are one, cut into their columns."""
    parts = [weight for _, weight in members]

    def whole(low: Lowering) -> list[Node]:
        weight = made.prepared.contraction(parts, made.apart)
        made.keep.append(weight)
        product = contracted(low.nodes[x], weight)
        if len(parts) == 1:
            return [product]
        return list(op.variadic_split(product, longs(1), longs([part.rows for part in parts])).outputs())

    key = ("contractions", members[0][0].output)
    return {
        equation.output: Rewrite((x,), lambda low, n=n: low.shared(key, lambda: whole(low))[n])
        for n, (equation, _) in enumerate(members)
    }


def _decoded(
    graph: Graph, equation: Equation, packed: Mapping[Value, WeightKey], weights: Weights, made: WeightNodes
) -> Rewrite:
    """Decoded rows: all of them, or those that a gather names."""
    source, shape = equation.inputs[0], equation.output.shape
    if source in packed:
        weight = weights[packed[source]]
        every = np.arange(weight.rows, dtype=np.int32).reshape(shape[:-1])

        def whole(low: Lowering) -> Node:
            return gathered(made.table(packed[source], weight), op.constant(every), weight, shape)

        return Rewrite((), whole)
    found = graph.equation(source)
    if found is None or found.op != "gather" or found.inputs[0] not in packed or len(found.inputs[0].shape) != 2:
        what = f"packed_dequant -> {equation.output.type}"
        raise Unsupported(what, "vpu decodes whole weights, and rows of them by index")
    key, index = packed[found.inputs[0]], found.inputs[1]
    weight = weights[key]

    def rows(low: Lowering) -> Node:
        low.check(found, index, 0, weight.rows - 1)
        node = low.nodes[index]
        if not low.within(index, 0, weight.rows - 1):
            node = op.minimum(op.maximum(node, integer(0)), integer(weight.rows - 1))
        return gathered(made.table(key, weight), node, weight, shape)

    return Rewrite((index,), rows)
