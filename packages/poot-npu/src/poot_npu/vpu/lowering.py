"""What the rows of the table get: the graph under way, and what is known about its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from openvino import opset15 as op

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value
from poot_npu.vpu.nodes import SMALL, Node, integer, longs, reshaped

_KEPT = frozenset("reshape transpose broadcast slice gather reduce_max select min max concat".split())
NO_FAULT = 1 << 23
"""What a check gives where every index is in range: more than any place, and exact in float32."""


@dataclass(slots=True, eq=False)
class Lowering:
    """One model under construction: the node of every value so far, and the checks of indices.

    `faults` are (name of the operation, node): an i32 scalar that is the place of the first index that is out of range,
    or `NO_FAULT`.
    """

    graph: Graph
    nodes: dict[Value, Node] = field(default_factory=dict)
    faults: list[tuple[str, Node]] = field(default_factory=list)
    _bounds: dict[Value, tuple[int, int] | None] = field(default_factory=dict)
    _shared: dict[object, Any] = field(default_factory=dict)

    def shared(self, key: object, make: Callable[[], Any]) -> Any:
        """What several values share, made once."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def operands(self, equation: Equation) -> list[Node]:
        """The nodes of an equation's operands."""
        return [self.nodes[value] for value in equation.inputs]

    def repeating(self, equation: Equation) -> list[Node]:
        """The nodes of an elementwise equation's operands before they are broadcast, where these still have the
        result's shape together: the plug-in repeats as it computes, and else writes what is repeated to memory."""
        before = [self._before_broadcast(value) for value in equation.inputs]
        shapes = [value.shape for value in before]
        if np.broadcast_shapes(*shapes) != equation.output.shape:
            return self.operands(equation)
        return [self.nodes[value] for value in before]

    def small(self, *values: Value) -> bool:
        """Whether integers are known to be exact in float32, every one of them."""
        return all(self._small(bounds) for bounds in map(self.bounds, values))

    def within(self, value: Value, low: int, high: int) -> bool:
        """Whether integers are known to lie in [low, high]."""
        bounds = self.bounds(value)
        return bounds is not None and low <= bounds[0] and bounds[1] <= high

    def bounds(self, value: Value) -> tuple[int, int] | None:
        """The least and the greatest that an integer value can be; None where that is not known."""
        if value not in self._bounds:
            self._bounds[value] = self._find_bounds(value)
        return self._bounds[value]

    def check(self, equation: Equation, index: Value, low: int, high: int) -> None:
        """Note a check that every index lies in [low, high], unless that is known."""
        if self.within(index, low, high):
            return
        node = reshaped(self.nodes[index], [index.type.count])
        wrong = op.less(node, integer(low)) if low > -(1 << 31) else None
        if high < (1 << 31) - 1:
            above = op.greater(node, integer(high))
            wrong = above if wrong is None else op.logical_or(wrong, above)
        if wrong is None:
            return
        places = op.constant(np.arange(index.type.count, dtype=np.int32))
        first = op.reduce_min(op.select(wrong, places, integer(NO_FAULT)), longs(0), True)
        self.faults.append((equation.op, first))

    def _before_broadcast(self, value: Value) -> Value:
        found = self.graph.equation(value)
        while found is not None and found.op == "broadcast" and found.inputs[0] in self.nodes:
            value = found.inputs[0]
            found = self.graph.equation(value)
        return value

    @staticmethod
    def _small(bounds: tuple[int, int] | None) -> bool:
        return bounds is not None and bounds[0] >= -SMALL and bounds[1] <= SMALL

    def _find_bounds(self, value: Value) -> tuple[int, int] | None:
        if value.dtype in (DType.I8, DType.U8):
            info = np.iinfo(value.dtype.numpy)
            return info.min, info.max
        found = self.graph.definition(value)
        if not isinstance(found, Equation):
            if found.data is None or value.dtype not in (DType.I32, DType.U32):
                return None
            return int(found.data.min()), int(found.data.max())
        return self._bounds_of(found)

    def _bounds_of(self, equation: Equation) -> tuple[int, int] | None:
        out = equation.output
        if equation.op == "iota":
            return 0, max(out.shape[equation.params["axis"]] - 1, 0)
        if equation.op in ("argmax", "arg_top_k"):
            return 0, max(equation.inputs[0].shape) - 1
        if equation.op == "cast" and equation.inputs[0].dtype is DType.BOOL:
            return 0, 1
        if equation.op not in _KEPT:
            return None
        values = equation.inputs[1:] if equation.op == "select" else equation.inputs
        values = values[:1] if equation.op == "gather" else values
        known = [self.bounds(v) for v in values]
        if equation.op in ("min", "max"):
            return _clipped(equation.op, known)
        sure = [bounds for bounds in known if bounds is not None]
        return (min(b[0] for b in sure), max(b[1] for b in sure)) if len(sure) == len(known) else None


def _clipped(name: str, known: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Bounds of min or max; an unknown side is as wide as i32."""
    wide = [(-(1 << 31), (1 << 31) - 1) if bounds is None else bounds for bounds in known]
    pick = min if name == "min" else max
    return pick(b[0] for b in wide), pick(b[1] for b in wide)


Build = Callable[[Lowering, Equation], Node]
"""A row of the table: the node of an equation's result, as it is carried."""
