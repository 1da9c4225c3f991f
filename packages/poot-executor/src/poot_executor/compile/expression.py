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
from poot_executor.compile.weight_access import weight_element
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.graph.keys import Storage
from poot_executor.graph.rules import literal
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.layout import WeightLayout

Index = tuple[Handle, ...]
GATHER_CHECK = 1
"""The code of the check that a gather's index lies in its data."""


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
            if any(HELD[v.dtype] is DType.BOOL for v in equation.inputs):
                return None
            return emit_elementwise(
                self.b, equation, self._level([self.vector(v, index, axis) for v in equation.inputs])
            )
        source = equation.inputs[0] if equation.inputs else value
        zero = self.b.const(0, DType.I32)
        match equation.op:
            case "broadcast":
                return self.vector(
                    source, tuple(zero if e == 1 else i for i, e in zip(index, source.shape, strict=True)), axis
                )
            case "transpose":
                permutation = equation.params["permutation"]
                moved: list[Handle] = [zero] * len(index)
                for place, old in zip(index, permutation, strict=True):
                    moved[old] = place
                return self.vector(source, tuple(moved), permutation[axis])
            case "reshape" if _same_tail(value.shape, source.shape, axis):
                behind = len(value.shape) - axis
                at = len(source.shape) - behind
                lead = _reshaped(self.b, index[:axis], value.shape[:axis], source.shape[:at])
                return self.vector(source, (*lead, *index[axis:]), at)
            case "reshape" if axis == len(value.shape) - 1 and source.shape and source.shape[-1] % 4 == 0:
                # Rows of both are whole vectors, in one row-major order.
                place = _reshaped(self.b, index, value.shape, source.shape)
                return self.vector(source, place, len(source.shape) - 1)
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
        move = _MOVEMENTS.get(equation.op)
        if move is None:
            raise Unsupported(f"{equation.op} inside an expression", "it needs a kernel of its own")
        return move(self, equation.inputs, equation.params, equation.output, index)

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


def linear(b: KernelBuilder, index: Index, shape: tuple[int, ...]) -> Handle:
    """The row-major element index of a multi-index, i32."""
    total = b.const(0, DType.I32)
    stride = 1
    for place, extent in zip(reversed(index), reversed(shape), strict=True):
        if extent != 1:
            total = place * stride + total
        stride *= extent
    return total


def unravel(b: KernelBuilder, position: Handle, shape: tuple[int, ...]) -> Index:
    """The multi-index of a row-major element index; the inverse of `linear`."""
    index: list[Handle] = []
    for axis in range(len(shape) - 1, -1, -1):
        extent = shape[axis]
        if extent == 1:
            index.append(b.const(0, DType.I32))
        elif all(e == 1 for e in shape[:axis]):
            index.append(position)
        else:
            index.append(position % extent)
            position = position // extent
    return tuple(reversed(index))


def _same_tail(shape: tuple[int, ...], source: tuple[int, ...], axis: int) -> bool:
    """Do two shapes of one reshape agree from an axis of the first on?"""
    behind = len(shape) - axis
    return behind <= len(source) and shape[axis:] == source[len(source) - behind :]


def _reshape(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    source = inputs[0]
    # Axes of extent 1 come and go without division.
    kept = [i for i, extent in zip(index, output.shape, strict=True) if extent != 1]
    if [x for x in output.shape if x != 1] == [x for x in source.shape if x != 1]:
        rest = iter(kept)
        return e.element(source, tuple(next(rest) if x != 1 else e.b.const(0, DType.I32) for x in source.shape))
    return e.element(source, _reshaped(e.b, index, output.shape, source.shape))


def _reshaped(b: KernelBuilder, index: Index, old: tuple[int, ...], new: tuple[int, ...]) -> Index:
    """An index carried through a reshape, axis group by axis group, so that untouched axes cost nothing."""
    result: list[Handle] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i2, j2 = i + 1, j + 1
        left = old[i] if i < len(old) else 1
        right = new[j] if j < len(new) else 1
        while left != right:
            if left < right:
                left *= old[i2]
                i2 += 1
            else:
                right *= new[j2]
                j2 += 1
        i2, j2 = min(i2, len(old)), min(j2, len(new))
        result.extend(unravel(b, linear(b, index[i:i2], old[i:i2]), new[j:j2]))
        i, j = i2, j2
    return tuple(result)


def _transpose(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    source: list[Handle | None] = [None] * len(index)
    for place, axis in zip(index, params["permutation"], strict=True):
        source[axis] = place
    return e.element(inputs[0], tuple(source))  # type: ignore[arg-type]


def _broadcast(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    zero = e.b.const(0, DType.I32)
    return e.element(
        inputs[0], tuple(zero if extent == 1 else i for i, extent in zip(index, inputs[0].shape, strict=True))
    )


def _slice(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    return e.element(
        inputs[0],
        tuple(i * step + start for i, start, step in zip(index, params["start"], params["step"], strict=True)),
    )


def _concat(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    axis, at = params["axis"], 0
    b = e.b
    place = index[axis]
    result = b.var(
        0 if HELD[output.dtype].is_int else (False if output.dtype is DType.BOOL else 0.0),
        HELD[output.dtype],
        name="part",
    )
    for source in inputs:
        extent = source.shape[axis]
        here = (place >= at) & (place < at + extent)
        inner = (*index[:axis], place - at, *index[axis + 1 :])
        at += extent
        if here.constant is True:
            return e.element(source, inner)
        if here.constant is None:
            with b.if_(here):
                result.set(e.element(source, inner))
    return result.get()


def _pad(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    b, source = e.b, inputs[0]
    inside = b.const(True, DType.BOOL)
    places = []
    for i, low, high, extent in zip(index, params["low"], params["high"], source.shape, strict=True):
        if low:
            inside = inside & (i >= low)
        if high:
            inside = inside & (i < low + extent)
        places.append(i - low if low else i)
    held = HELD[output.dtype]
    number = literal(params["value"], output.dtype).item()
    if inside.constant is not None:
        return e.element(source, tuple(places)) if inside.constant else b.const(number, held)
    result = b.var(number, held, name="padded")
    with b.if_(inside):
        result.set(e.element(source, tuple(places)))
    return result.get()


def _iota(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    return e.b.cast(index[params["axis"]], HELD[output.dtype])


def _gather(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    data, which = inputs
    split = len(which.shape)
    place = e.b.cast(e.element(which, index[:split]), DType.I32)
    count = data.shape[0]
    e.b.check((place >= 0) & (place < count), GATHER_CHECK)
    place = e.b.max(e.b.min(place, count - 1), 0)
    return e.element(data, (place, *index[split:]))


def _packed_dequant(e: Emission, inputs, params, output: Value, index: Index) -> Handle:  # noqa: ANN001
    source = inputs[0]
    index = _through_rows(e, source, index)
    base = _root(e.scene.graph, source)
    layout = e.scene.layouts.get(base)
    if layout is None or layout.format.name != params["format"]:
        raise Unsupported(f"packed_dequant of {source}", "its rows do not come whole from a weight")
    return e.weight(base, index)


def _root(graph: Graph, value: Value) -> Value:
    """The stored rows that packed rows come from: a gather, slice or reshape of whole rows is looked through."""
    equation = graph.equation(value)
    return value if equation is None else _root(graph, equation.inputs[0])


def _through_rows(e: Emission, value: Value, index: Index) -> Index:
    """Carry an element index of decoded rows through movements of the packed rows, which leave the last axis whole."""
    equation = e.scene.graph.equation(value)
    if equation is None:
        return index
    rows, column = index[:-1], index[-1]
    source = equation.inputs[0]
    whole = source.shape[-1] == value.shape[-1]
    if equation.op == "gather" and whole and len(source.shape) == 2:
        which = equation.inputs[1]
        place = e.b.cast(e.element(which, rows), DType.I32)
        e.b.check((place >= 0) & (place < source.shape[0]), GATHER_CHECK)
        place = e.b.max(e.b.min(place, source.shape[0] - 1), 0)
        return _through_rows(e, source, (place, column))
    if equation.op == "reshape" and whole:
        return _through_rows(e, source, (*_reshaped(e.b, rows, value.shape[:-1], source.shape[:-1]), column))
    if equation.op == "slice" and whole:
        moved = tuple(
            i * s + a for i, a, s in zip(rows, equation.params["start"], equation.params["step"], strict=False)
        )
        return _through_rows(e, source, (*moved, column))
    raise Unsupported(f"packed_dequant over {equation.op}", "packed rows are gathered, sliced and reshaped whole")


_MOVEMENTS = {
    "reshape": _reshape, "transpose": _transpose, "broadcast": _broadcast, "slice": _slice, "concat": _concat,
    "pad": _pad, "iota": _iota, "gather": _gather, "packed_dequant": _packed_dequant,
}  # fmt: skip
