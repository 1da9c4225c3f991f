"""Conditions over positions: what they depend on beside the position, and what they are at other positions than all."""

from __future__ import annotations

from collections.abc import Callable

from openvino import opset15 as op

from poot_executor.graph.graph import Equation, Graph, Value
from poot_npu.vpu.lowering import Lowering
from poot_npu.vpu.nodes import Node
from poot_npu.vpu.rewrite import through

_COLUMN_OPS = frozenset("le lt ge gt eq ne and or not broadcast reshape".split())


def conjunction(graph: Graph, value: Value) -> list[Equation]:
    """The conditions that a condition says hold together."""
    equation = graph.equation(value)
    if equation is None:
        return []
    if equation.op == "and":
        return [term for operand in equation.inputs for term in conjunction(graph, operand)]
    return [equation]


def of_columns(graph: Graph, value: Value, capacity: int, fixed: bool) -> list[Value] | None:
    """The values that a condition over positions takes beside an iota over its last axis; None where it is not of that
    form. `fixed`: what depends on positions keeps its dimensions throughout."""
    found = _columns(graph, value, capacity, fixed)
    return None if found is None else list(dict.fromkeys(found[1]))


def _columns(graph: Graph, value: Value, capacity: int, fixed: bool) -> tuple[bool, list[Value]] | None:
    """(Does it depend on the column, leaves); None where it cannot be followed."""
    if value.shape[-1:] != (capacity,) or capacity == 1:
        return False, [value]
    equation = graph.equation(value)
    if equation is None:
        return None
    if equation.op == "iota":
        return (True, []) if equation.params["axis"] == len(value.shape) - 1 else None
    if equation.op == "broadcast" and equation.inputs[0].shape[-1] == 1:
        return False, [equation.inputs[0]]
    if equation.op not in _COLUMN_OPS or (equation.op == "reshape" and not _keeps_places(equation)):
        return None
    if fixed and equation.op in ("reshape", "broadcast"):
        return None
    below = [_columns(graph, operand, capacity, fixed) for operand in equation.inputs]
    sure = [found for found in below if found is not None]
    if len(sure) < len(below):
        return None
    return any(depends for depends, _ in sure), [leaf for _, leaves in sure for leaf in leaves]


def _keeps_places(equation: Equation) -> bool:
    """Whether a reshape only adds or drops dimensions of 1."""
    before, after = ([n for n in shape if n != 1] for shape in (equation.inputs[0].shape, equation.output.shape))
    return before == after


Columns = Callable[[int], Node]
"""Positions at which a condition is asked for, as i32 of so many dimensions; the last has their number."""


def condition_at(low: Lowering, value: Value, capacity: int, columns: Columns) -> Node:
    """The node of a condition at other columns than all."""
    if value.shape[-1:] != (capacity,) or capacity == 1:
        return low.nodes[value]
    equation = low.graph.equation(value)
    assert equation is not None
    if equation.op == "iota":
        return columns(len(value.shape))
    if equation.op in ("broadcast", "reshape"):
        return condition_at(low, equation.inputs[0], capacity, columns)
    operands = [condition_at(low, operand, capacity, columns) for operand in equation.inputs]
    return _CONDITIONS[equation.op](*operands)


_CONDITIONS: dict[str, Callable[..., Node]] = {
    "le": op.less_equal, "lt": op.less, "ge": op.greater_equal, "gt": op.greater, "eq": op.equal, "ne": op.not_equal,
    "and": op.logical_and, "or": op.logical_or, "not": op.logical_not,
}  # fmt: skip


def upper_bounds(graph: Graph, value: Value) -> list[Value]:
    """Values x of which the condition says that a column is at most x: i32, one for each condition of a conjunction."""
    equation = graph.equation(value)
    if equation is None:
        return []
    if equation.op == "and":
        return [x for operand in equation.inputs for x in upper_bounds(graph, operand)]
    if equation.op in ("broadcast", "reshape"):
        return upper_bounds(graph, equation.inputs[0])
    sides = {"le": (0, 1), "ge": (1, 0)}.get(equation.op)
    if sides is None:
        return []
    column = through(graph, equation.inputs[sides[0]], "broadcast", "reshape")
    bound = graph.equation(equation.inputs[sides[1]])
    if column is None or column.op != "iota" or bound is None or bound.op != "broadcast":
        return []
    return [bound.inputs[0]] if bound.inputs[0].shape[-1] == 1 else []
