"""A value as a function of its index: how a kernel computes what is not stored.

An expression is pulled: asked for an element, it asks for its operands' elements, through movements (which change the
index) down to leaves, which lie in buffers. What the template of a region supplies (an accumulator, a row's reduction)
ends the descent too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from poot_executor.compile.classify import ELEMENTWISE
from poot_executor.compile.elementwise import HELD, emit_elementwise
from poot_executor.compile.indexing import Index, linear, reshaped, same_tail
from poot_executor.compile.movement import MOVEMENTS, gathered_row
from poot_executor.compile.weight_access import weight_element
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_executor.graph.keys import Storage
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.layout import WeightLayout


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What expressions of one program share: the graph, the stored values and the weights' layouts."""

    graph: Graph
    stored: Set[Value]
    layouts: Mapping[Value, WeightLayout]

    def leaves(self, value: Value, supplied: Set[Value]) -> list[Value]:
        """The stored values under an expression, in order of first use. Small splat constants are baked and are no
        leaves."""
        found: dict[Value, None] = {}
        seen: set[Value] = set()

        def visit(v: Value) -> None:
            if v in supplied or v in seen:
                return
            seen.add(v)
            if v in self.stored:
                if self.splat(v) is None:
                    found[v] = None
                return
            equation = self.graph.equation(v)
            assert equation is not None
            for operand in equation.inputs:
                visit(operand)

        visit(value)
        return list(found)

    def splat(self, value: Value) -> float | int | bool | None:
        """The one number of a COMPUTED input all of whose elements are equal, else None."""
        defined = self.graph.definition(value)
        if not isinstance(defined, Input) or defined.storage is not Storage.COMPUTED:
            return None
        assert defined.data is not None
        flat = np.ascontiguousarray(defined.data).ravel()
        if flat.size == 0 or not (flat.view(np.uint8).reshape(flat.size, -1) == flat[:1].view(np.uint8)).all():
            return None
        number = flat[0].item()
        return number if not isinstance(number, float) or np.isfinite(number) else None


class Emission:
    """Expressions within one kernel. `buffers` are the leaves' buffers (several for a weight in parts)."""

    def __init__(
        self, b: KernelBuilder, scene: Scene, buffers: Mapping[Value, Sequence[BufferRef]],
        supplied: Mapping[Value, Callable[[Index], Handle]] | None = None,
    ) -> None:  # fmt: skip
        self.b = b
        self.scene = scene
        self.buffers = buffers
        self.supplied = dict(supplied or {})
        self._known: dict[tuple, tuple[Handle, Index, object]] = {}

    @property
    def graph(self) -> Graph:
        """The scene's graph."""
        return self.scene.graph

    @property
    def layouts(self) -> Mapping[Value, WeightLayout]:
        """The scene's weight layouts."""
        return self.scene.layouts

    def element(self, value: Value, index: Index) -> Handle:
        """One element, in the kernel dtype that holds its dtype (see `elementwise`). Asked for again, it is the same
        handle
        for as long as the scope that computed it is open."""
        return self._once(value, index, None, lambda: self._compute(value, index))

    def _once(self, value: Value, index: Index, axis: int | None, compute: Callable[[], Handle]) -> Handle:
        """What was computed before, an element or a vector along an axis, where that is still in scope."""
        key = (value, axis, *(i.constant if i.constant is not None else id(i.val) for i in index))
        known = self._known.get(key)
        if known is not None and self.b.is_open(known[2]):
            return known[0]
        handle = compute()
        self._known[key] = (handle, index, self.b.scope)
        return handle

    def forget(self) -> None:
        """Compute anew from here: a supplied value means something else now."""
        self._known.clear()

    def vector(self, value: Value, index: Index, axis: int) -> Handle:
        """Four elements from `index`, neighbours along `axis`, as a vector: the index there is a multiple of 4, as is
        the extent.

        Where the four lie side by side in a buffer of 32-bit elements they are one load; elementwise operations work on
        the vector. A value that does not change along the axis, or has one element there, is a scalar.
        """

        def compute() -> Handle:
            wide = self._wide(value, index, axis)
            if wide is not None:
                return wide
            lanes = [self.element(value, (*index[:axis], index[axis] + i, *index[axis + 1 :])) for i in range(4)]
            return self.b.vector(*lanes)

        return self._once(value, index, axis, compute)

    def _level(self, operands: list[Handle]) -> list[Handle]:
        """Operands of one width: scalars beside vectors are repeated."""
        if all(h.width == 1 for h in operands):
            return operands
        return [h if h.width > 1 else self.b.vector(h, h, h, h) for h in operands]

    def _wide(self, value: Value, index: Index, axis: int) -> Handle | None:
        """The vector without taking it apart; None where that is not so simple."""
        if value in self.supplied or self.scene.splat(value) is not None or value.shape[axis] == 1:
            return self.element(value, index)
        if value in self.scene.stored:
            flat = all(extent == 1 for extent in value.shape[axis + 1 :])
            layout = self.scene.layouts.get(value)
            if layout is not None:
                if len(value.shape) != 1 or layout.format.dtype is not DType.F32:
                    return None
                return self.b.bitcast(self.buffers[value][0].load_words(index[0], 4), DType.F32)
            if not flat or value.shape[axis] % 4 or value.dtype is DType.BOOL:
                return None
            return self.buffers[value][0].load(linear(self.b, index, value.shape), 4)
        equation = self.scene.graph.equation(value)
        assert equation is not None
        if equation.op in ELEMENTWISE and HELD[value.dtype] is not DType.BOOL:
            if equation.op == "select":
                return self._selected(equation, index, axis)
            if any(HELD[v.dtype] is DType.BOOL for v in equation.inputs):
                return None
            return emit_elementwise(
                self.b, equation, self._level([self.vector(v, index, axis) for v in equation.inputs])
            )
        return self._wide_move(equation, index, axis) if equation.inputs else None

    def _selected(self, select: Equation, index: Index, axis: int) -> Handle | None:
        """A choice that is the same for all four elements."""
        condition = self.graph.equation(select.inputs[0])
        if condition is None or condition.op != "broadcast" or condition.inputs[0].shape[axis] != 1:
            return None
        which = self.element(select.inputs[0], index)
        one, other = (self.vector(v, index, axis) for v in select.inputs[1:])
        if one.width == 1 and other.width == 1:
            return self.b.select(which, one, other)
        pairs = zip(*([h[i] for i in range(4)] if h.width > 1 else [h] * 4 for h in (one, other)), strict=True)
        return self.b.vector(*(self.b.select(which, a, b) for a, b in pairs))

    def _wide_move(self, equation: Equation, index: Index, axis: int) -> Handle | None:
        found = self.moved(equation, index, axis)
        return None if found is None else self.vector(*found)

    def moved(self, equation: Equation, index: Index, axis: int) -> tuple[Value, Index, int] | None:
        """Where neighbours along an axis of a movement's result are neighbours of its operand: the operand, their
        index and axis there. None for a movement that takes them apart, and for what is no movement."""
        value, source = equation.output, equation.inputs[0]
        zero = self.b.const(0, DType.I32)
        match equation.op:
            case "broadcast":
                return source, tuple(zero if e == 1 else i for i, e in zip(index, source.shape, strict=True)), axis
            case "transpose":
                permutation = equation.params["permutation"]
                place: list[Handle] = [zero] * len(index)
                for i, old in zip(index, permutation, strict=True):
                    place[old] = i
                return source, tuple(place), permutation[axis]
            case "gather" if axis >= len(equation.inputs[1].shape):
                split = len(equation.inputs[1].shape)
                row = gathered_row(self, equation.inputs[1], index[:split], source.shape[0])
                return source, (row, *index[split:]), axis - split + 1
            case "reshape" if same_tail(value.shape, source.shape, axis):
                behind = len(value.shape) - axis
                at = len(source.shape) - behind
                lead = reshaped(self.b, index[:axis], value.shape[:axis], source.shape[:at])
                return source, (*lead, *index[axis:]), at
            case "reshape" if axis == len(value.shape) - 1 and source.shape and source.shape[-1] % 4 == 0:
                # Rows of both are whole vectors, in one row-major order.
                return source, reshaped(self.b, index, value.shape, source.shape), len(source.shape) - 1
        return None

    def _compute(self, value: Value, index: Index) -> Handle:
        if value in self.supplied:
            return self.supplied[value](index)
        if value in self.scene.stored:
            return self._leaf(value, index)
        equation = self.scene.graph.equation(value)
        assert equation is not None, f"{value} is neither stored nor computed"
        if equation.op in ELEMENTWISE:
            return emit_elementwise(self.b, equation, [self.element(v, index) for v in equation.inputs])
        move = MOVEMENTS.get(equation.op)
        if move is None:
            raise Unsupported(f"{equation.op} inside an expression", "it needs a kernel of its own")
        return move(self, equation, index)

    def _leaf(self, value: Value, index: Index) -> Handle:
        number = self.scene.splat(value)
        if number is not None:
            held = HELD[value.dtype]
            return self.b.const(number, held)
        if value in self.scene.layouts:
            layout = self.scene.layouts[value]
            if layout.format.is_packed:
                raise Unsupported(
                    f"weight {value} of format {layout.format.name}", "its bytes are read only by packed_dequant"
                )
            return self.weight(value, index)
        (buffer,) = self.buffers[value]
        return buffer[linear(self.b, index, value.shape)]

    def weight(self, value: Value, index: Index) -> Handle:
        """One element of a weight, decoded, as f32."""
        layout = self.scene.layouts[value]
        zero = self.b.const(0, DType.I32)
        rows, column = (index[:-1], index[-1]) if index else ((), zero)
        row = linear(self.b, rows, value.shape[:-1]) if rows else zero
        return weight_element(self.b, self.buffers[value], layout, row, column)
