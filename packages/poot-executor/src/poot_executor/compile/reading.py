"""What expressions read: the stored values under a region, and whether one value lies under another."""

from __future__ import annotations

from collections.abc import Sequence, Set

from poot_executor.compile.region import Region
from poot_executor.graph.graph import Graph, Value


def leaves_of(graph: Graph, region: Region, stored: Set[Value]) -> set[Value]:
    """The stored values that a region reads."""
    equation = graph.equation(region.root)
    return leaves_under(graph, equation.inputs if equation is not None else (), stored)


def leaves_under(graph: Graph, values: Sequence[Value], stored: Set[Value]) -> set[Value]:
    """The stored values that expressions read; of one that is stored, itself."""
    found: set[Value] = set()
    stack = list(values)
    seen: set[Value] = set()
    while stack:
        value = stack.pop()
        if value in stored:
            found.add(value)
        elif value not in seen:
            seen.add(value)
            below = graph.equation(value)
            stack.extend(below.inputs if below is not None else ())
    return found


def reads(graph: Graph, value: Value, target: Value, stop: Set[Value] = frozenset()) -> bool:
    """Does an expression read a value? What is below the values in `stop` is not looked at."""
    stack, seen = [value], set(stop)
    while stack:
        at = stack.pop()
        if at == target:
            return True
        if at not in seen:
            seen.add(at)
            equation = graph.equation(at)
            stack.extend(equation.inputs if equation is not None else ())
    return False
