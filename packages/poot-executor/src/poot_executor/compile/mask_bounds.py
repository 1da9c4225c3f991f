"""Bounds of a mask: what it says of each row's first and last visible position, where it compares positions.

A mask that is a conjunction of comparisons of the position with numbers of the row, as those of causal order, windows
and lengths are, sees a run of positions, whose ends need no look at every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.compile.classify import ELEMENTWISE
from poot_executor.dtype import DType
from poot_executor.graph.graph import Graph, Value

UPPER, LOWER = {"lt": 0, "le": 1}, {"ge": 0, "gt": 1}
"""A position that compares so with a number lies below it, or from it on, so much moved."""
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison of the position with the element of `number` at the comparison's own index: visible positions lie
    below (`upper`) or from that number, plus `more`, on."""

    comparison: Value
    number: Value
    upper: bool
    more: int


@dataclass(frozen=True, slots=True)
class MaskBounds:
    """Bounds that hold wherever a mask does; `whole` says that it holds wherever they do. `inner` are the mask and what
    lies between it and the numbers, none of which need be stored for the bounds."""

    bounds: tuple[Bound, ...]
    whole: bool
    inner: frozenset[Value] = frozenset()


def mask_bounds(graph: Graph, mask: Value) -> MaskBounds:
    """The comparisons of positions, along the last axis, of which a mask is the conjunction."""
    found: dict[Value, Bound] = {}
    twice: set[Value] = set()
    whole = True
    stack, inner = [mask], set()
    while stack:
        at = stack.pop()
        inner.add(at)
        equation = graph.equation(at)
        if equation is None:
            whole = False
        elif equation.op == "and" and at.dtype is DType.BOOL:
            stack += equation.inputs
        elif equation.op in ("broadcast", "reshape") and equation.inputs[0].shape[-1:] == at.shape[-1:]:
            stack.append(equation.inputs[0])
        elif (bound := _bound(graph, at)) is None:
            whole = False
        elif at in found:
            twice.add(at)  # Read at two places, it is two conditions.
        else:
            found[at] = bound
    kept = tuple(b for v, b in found.items() if v not in twice)
    return MaskBounds(kept, whole and not twice, frozenset(inner))


def _bound(graph: Graph, comparison: Value) -> Bound | None:
    equation = graph.equation(comparison)
    assert equation is not None
    if equation.op not in MIRRORED or equation.inputs[0].dtype is not DType.I32:
        return None
    left, right = equation.inputs
    op = equation.op
    if not _is_position(graph, left):
        left, right, op = right, left, MIRRORED[op]
    if not _is_position(graph, left) or not _same_everywhere(graph, right):
        return None
    return Bound(comparison, right, op in UPPER, UPPER[op] if op in UPPER else LOWER[op])


def _is_position(graph: Graph, value: Value) -> bool:
    """Is each element its place along the last axis?"""
    equation = graph.equation(value)
    if equation is None:
        return False
    if equation.op == "iota":
        return bool(value.shape) and equation.params["axis"] == len(value.shape) - 1
    kept = equation.op in ("broadcast", "reshape") and equation.inputs[0].shape[-1:] == value.shape[-1:]
    return kept and _is_position(graph, equation.inputs[0])


def _same_everywhere(graph: Graph, value: Value) -> bool:
    """Are the elements along the last axis surely equal?"""
    if not value.shape or value.shape[-1] == 1:
        return True
    equation = graph.equation(value)
    if equation is None:
        constant = graph.input(value)
        data = None if constant is None else constant.data
        return data is not None and bool((data == data[..., :1]).all())
    if not equation.inputs:
        return False
    if equation.op in ELEMENTWISE:
        return all(_same_everywhere(graph, v) for v in equation.inputs)
    source = equation.inputs[0]
    if equation.op == "broadcast":
        return _same_everywhere(graph, source)
    return equation.op == "reshape" and source.shape[-1:] == value.shape[-1:] and _same_everywhere(graph, source)
