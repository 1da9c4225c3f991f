"""How long expressions are: operations that one element takes when everything under it is computed at its index.

Operands of an elementwise operation are computed at the same index, so that what several of them share counts once. A
movement asks at another index, and what is under it counts each time.
"""

from __future__ import annotations

from collections.abc import Set

from poot_executor.compile.classify import ANCHORS, ELEMENTWISE, REDUCTIONS, is_short
from poot_executor.graph.graph import Graph, Value

OPERATIONS_MOST = 512
"""Operations of an expression beyond which a value under it is stored."""
DEPTH_MOST = 64
"""Operations on top of each other, likewise."""


def long_expressions(
    graph: Graph, stored: Set[Value], operations: int = OPERATIONS_MOST, depth: int = DEPTH_MOST
) -> frozenset[Value]:
    """Values to store besides those that are, so that no expression is longer, or deeper, than these and one more
    operation."""
    cut: set[Value] = set()
    _walk(graph, stored, cut, operations, depth)
    return frozenset(cut - stored)


def longest_expression(graph: Graph, stored: Set[Value]) -> int:
    """Operations of the longest expression of a program that stores these values."""
    return _walk(graph, stored, None, 0, 0)


def _walk(graph: Graph, stored: Set[Value], cut: set[Value] | None, operations: int, depth: int) -> int:
    costs: dict[Value, int] = {}
    weights: dict[Value, int] = {}
    depths: dict[Value, int] = {}
    same: dict[Value, frozenset[Value]] = {}
    longest = 0
    for equation in graph.equations:
        value = equation.output
        if equation.op in ANCHORS or (equation.op in REDUCTIONS and not is_short(equation)):
            continue
        operands = dict.fromkeys(equation.inputs)
        if equation.op in ELEMENTWISE:
            weights[value] = 1
            at_index = frozenset([value]).union(*(same.get(v, ()) for v in operands))
        else:
            each = equation.inputs[0].shape[equation.params["axis"]] if equation.op in REDUCTIONS else 1
            weights[value] = each * (1 + sum(costs.get(v, 0) for v in equation.inputs))
            at_index = frozenset([value])
        cost = sum(weights[v] for v in at_index)
        deep = 1 + max((depths.get(v, 0) for v in operands), default=0)
        longest = max(longest, cost)
        if cut is not None and (cost > operations or deep > depth):
            cut.add(value)
        elif value not in stored:
            costs[value], depths[value], same[value] = cost, deep, at_index
    return longest
