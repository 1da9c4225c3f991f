"""From a program to OpenVINO models: what each reads, computes and leaves, by the memory that it is bound to later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
from openvino import opset15 as op

from poot_executor.compile.classify import weight_of
from poot_executor.compile.program import Program
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.graph.keys import StateKey
from poot_executor.weights import WeightKey
from poot_npu.vpu.attend import WindowNodes, attention_rewrite
from poot_npu.vpu.attention import Attention, find_attentions
from poot_npu.vpu.counted import fold_counted
from poot_npu.vpu.fusions import fused
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import WORD_TYPES, Node, constant, integer, loaded, stored
from poot_npu.vpu.packed import shared
from poot_npu.vpu.plan import Plan, Stage, make_plan
from poot_npu.vpu.prepared import Prepared
from poot_npu.vpu.rewrite import Rewrite, Rewrites, falling_powers, float_flags
from poot_npu.vpu.table import ROWS
from poot_npu.vpu.weight_uses import WeightNodes, Weights, weight_rewrites
from poot_npu.vpu.weights import Stored
from poot_npu.vpu.window import WindowUse


@dataclass(frozen=True, slots=True, eq=False)
class Interface:
    """What a model takes and gives. Parameters in order are `reads`, `tables`, `windows` and, where there are windows,
    their columns; results are `writes` and, where there are `faults` (names of operations), one i32 vector of them."""

    reads: tuple[Value, ...]
    tables: tuple[WeightKey, ...]
    windows: tuple[WindowUse, ...]
    writes: tuple[Value, ...]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StageModel:
    """A model of one stage, as it is built. `keep` are arrays that its constants share."""

    model: openvino.Model
    interface: Interface
    keep: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """What is known of a program before any model is built: the plan, and what is computed in another way."""

    graph: Graph
    plan: Plan
    attentions: tuple[Attention, ...]
    rewrites: Rewrites
    weights: Weights
    made: WeightNodes
    swept: WindowNodes

    def build(self) -> tuple[StageModel | None, ...]:
        """The models, each of one stage; None for a stage that has nothing to compute and hands nothing on.

        Raises Unsupported naming the operation.
        """
        built = tuple(self._stage_model(number, stage) for number, stage in enumerate(self.plan.stages))
        # What was collected on the way holds the weights: each model has its own of it.
        self.made.clear()
        self.swept.clear()
        return built

    def _stage_model(self, number: int, stage: Stage) -> StageModel | None:
        graph, made, swept = self.graph, self.made, self.swept
        made.clear()
        low = Lowering(graph)
        parameters: dict[Value, Node] = {}
        mine = set(stage.values)
        writes = [v for v in self.plan.crossing if v in mine]
        for value in stage.values:
            equation = graph.equation(value)
            assert equation is not None
            rewrite = self.rewrites.get(value)
            for operand in equation.inputs if rewrite is None else rewrite.inputs:
                if operand not in low.nodes:
                    low.nodes[operand] = _source(graph, operand, self.weights, parameters, made)
            low.nodes[value] = ROWS[equation.op](low, equation) if rewrite is None else rewrite.build(low)
        results = [op.result(_handed_on(low.nodes[value], value)) for value in writes]
        if low.faults:
            results.append(op.result(op.concat([node for _, node in low.faults], 0)))
        if not results:
            return None
        inputs = [*parameters.values(), *made.tables.values()]
        windows: tuple[WindowUse, ...] = ()
        if number == 0 and swept.windows:
            inputs += [*swept.windows.values(), swept.columns]
            windows = tuple(swept.uses.values())
        model = openvino.Model(results, inputs, f"{graph.name}_{number}")
        fold_counted(model)
        names = tuple(name for name, _ in low.faults)
        face = Interface(tuple(parameters), tuple(made.tables), windows, tuple(writes), names)
        return StageModel(model, face, tuple(made.keep))


def lower_program(program: Program, weights: Weights, apart: bool, dynamic: bool, prepared: Prepared) -> Lowered:
    """Recognize and plan. Raises Unsupported naming the operation."""
    graph = program.graph
    made, swept = WeightNodes(apart, prepared), WindowNodes(dynamic)
    rewrites = {**falling_powers(graph), **fused(graph), **float_flags(graph), **weight_rewrites(graph, weights, made)}
    found = [a for a in find_attentions(graph) if a.output not in rewrites]
    plan, attentions = _settled(graph, rewrites, found, swept)
    return Lowered(graph, plan, tuple(attentions), rewrites, weights, made, swept)


def contracted_rows(program: Program) -> int:
    """The most rows that a program multiplies by a weight at once."""
    graph = program.graph
    products = (e for e in graph.equations if e.op == "matmul" and weight_of(graph, e) is not None)
    return max((equation.inputs[0].shape[0] for equation in products), default=1)


def _settled(
    graph: Graph, rewrites: dict[Value, Rewrite], attentions: list[Attention], swept: WindowNodes
) -> tuple[Plan, list[Attention]]:
    """The plan with these attentions, but for those whose states something else reads too, or that are in a later
    stage than the first: `rewrites` gets the others."""
    while True:
        tried = {a.output: attention_rewrite(graph, a, swept) for a in attentions}
        windows = {source.key for a in attentions for source in (a.keys, a.values)}
        plan = make_plan(graph, {**rewrites, **tried}, windows)
        read = windows & _read_states(graph, plan, {**rewrites, **tried})
        kept = [a for a in attentions if plan.stage_of.get(a.output, 0) == 0 and not read & {a.keys.key, a.values.key}]
        if len(kept) == len(attentions):
            rewrites.update(tried)
            return plan, attentions
        attentions = kept


def _read_states(graph: Graph, plan: Plan, rewrites: Rewrites) -> set[StateKey]:
    """The states that are read as a whole, or are results."""
    read = set(graph.outputs.values())
    for equation in graph.equations:
        if equation.output in plan.stage_of:
            rewrite = rewrites.get(equation.output)
            read.update(equation.inputs if rewrite is None else rewrite.inputs)
    results = set(graph.outputs.values())
    return {pair.key for pair in graph.state if pair.before in read or pair.after in results}


def _handed_on(node: Node, value: Value) -> Node:
    """A result as memory holds it. A parameter that is a result as it stands is moved, or nothing would be written."""
    if value.dtype in (DType.I32, DType.U32):
        node = op.bitwise_or(node, integer(0))
    return stored(node, value.dtype)


def _source(graph: Graph, value: Value, weights: Weights, parameters: dict[Value, Node], made: WeightNodes) -> Node:
    """The node of a value that this model does not compute: a constant, a weight, or what memory holds."""
    found = graph.definition(value)
    if isinstance(found, Input):
        if found.data is not None:
            return constant(found.data, value.dtype)
        if isinstance(found.key, WeightKey):
            return _dense(found, weights[found.key], made)
    node = op.parameter(openvino.Shape(list(value.shape)), WORD_TYPES[value.dtype])
    parameters[value] = node
    return loaded(node, value.dtype)


def _dense(entry: Input, weight: Stored, made: WeightNodes) -> Node:
    type = entry.value.type
    if weight.format.is_packed:
        raise Unsupported(f"weight {entry.key}", "vpu uses packed weights in contractions and as rows by index alone")
    sizes = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    array = weight.data.reshape(-1).view(sizes[type.dtype.size])
    made.keep.append(array)
    return loaded(op.constant(shared(array, type.shape, WORD_TYPES[type.dtype])), type.dtype)
