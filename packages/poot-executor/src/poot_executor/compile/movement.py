"""Movements inside expressions: an element of a movement is an element of its operand, at an index that it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from poot_executor.compile.elementwise import HELD, narrowed
from poot_executor.compile.indexing import Index, reshaped
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.graph.rules import literal
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.layout import WeightLayout

GATHER_CHECK = 1
"""The code of the check that a gather's index lies in its data."""


class Elements(Protocol):
    """Who computes the elements of operands: the expressions of one kernel."""

    b: KernelBuilder

    @property
    def graph(self) -> Graph:
        """The graph that values belong to."""
        ...

    @property
    def layouts(self) -> Mapping[Value, WeightLayout]:
        """How weights lie."""
        ...

    def element(self, value: Value, index: Index) -> Handle:
        """One element."""
        ...

    def weight(self, value: Value, index: Index) -> Handle:
        """One element of a weight, decoded."""
        ...


def _reshape(e: Elements, move: Equation, index: Index) -> Handle:
    source = move.inputs[0]
    # Axes of extent 1 come and go without division.
    kept = [i for i, extent in zip(index, move.output.shape, strict=True) if extent != 1]
    if [x for x in move.output.shape if x != 1] == [x for x in source.shape if x != 1]:
        rest = iter(kept)
        return e.element(source, tuple(next(rest) if x != 1 else e.b.const(0, DType.I32) for x in source.shape))
    return e.element(source, reshaped(e.b, index, move.output.shape, source.shape))


def _transpose(e: Elements, move: Equation, index: Index) -> Handle:
    source = list(index)
    for place, axis in zip(index, move.params["permutation"], strict=True):
        source[axis] = place
    return e.element(move.inputs[0], tuple(source))


def _broadcast(e: Elements, move: Equation, index: Index) -> Handle:
    zero = e.b.const(0, DType.I32)
    return e.element(
        move.inputs[0], tuple(zero if extent == 1 else i for i, extent in zip(index, move.inputs[0].shape, strict=True))
    )


def _slice(e: Elements, move: Equation, index: Index) -> Handle:
    return e.element(
        move.inputs[0],
        tuple(
            i * step + start for i, start, step in zip(index, move.params["start"], move.params["step"], strict=True)
        ),
    )


def _concat(e: Elements, move: Equation, index: Index) -> Handle:
    axis, at = move.params["axis"], 0
    b = e.b
    place = index[axis]
    result = b.var(
        0 if HELD[move.output.dtype].is_int else (False if move.output.dtype is DType.BOOL else 0.0),
        HELD[move.output.dtype],
        name="part",
    )
    for source in move.inputs:
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


def _pad(e: Elements, move: Equation, index: Index) -> Handle:
    b, source = e.b, move.inputs[0]
    inside = b.const(True, DType.BOOL)
    places = []
    for i, low, high, extent in zip(index, move.params["low"], move.params["high"], source.shape, strict=True):
        if low:
            inside = inside & (i >= low)
        if high:
            inside = inside & (i < low + extent)
        places.append(i - low if low else i)
    held = HELD[move.output.dtype]
    number = literal(move.params["value"], move.output.dtype).item()
    if inside.constant is not None:
        return e.element(source, tuple(places)) if inside.constant else b.const(number, held)
    result = b.var(number, held, name="padded")
    with b.if_(inside):
        result.set(e.element(source, tuple(places)))
    return result.get()


def _iota(e: Elements, move: Equation, index: Index) -> Handle:
    return e.b.cast(index[move.params["axis"]], HELD[move.output.dtype])


def _gather(e: Elements, move: Equation, index: Index) -> Handle:
    data, which = move.inputs
    split = len(which.shape)
    return e.element(data, (gathered_row(e, which, index[:split], data.shape[0]), *index[split:]))


def gathered_row(e: Elements, which: Value, index: Index, count: int) -> Handle:
    """The row that an index names, checked to be below `count` and clamped."""
    place = e.b.cast(e.element(which, index), DType.I32)
    e.b.check((place >= 0) & (place < count), GATHER_CHECK)
    return e.b.max(e.b.min(place, count - 1), 0)


def _reduced(e: Elements, reduction: Equation, index: Index) -> Handle:
    """A reduction of a few elements, in order; see `classify.is_short`."""
    source, axis = reduction.inputs[0], reduction.params["axis"]

    def element(place: int) -> Handle:
        return e.element(source, (*index[:axis], e.b.const(place, DType.I32), *index[axis:]))

    total = element(0)
    if reduction.op == "reduce_max" and source.dtype.is_float:
        # NaN is not greater than anything, so it counts as the lowest.
        lowest = e.b.const(float("-inf"), DType.F32)
        total = e.b.select(total > lowest, total, lowest)
    for place in range(1, source.shape[axis]):
        other = element(place)
        total = total + other if reduction.op == "sum" else e.b.select(other > total, other, total)
    return narrowed(e.b, total, reduction.output.dtype)


def _packed_dequant(e: Elements, move: Equation, index: Index) -> Handle:
    source = move.inputs[0]
    index = _through_rows(e, source, index)
    base = _root(e.graph, source)
    layout = e.layouts.get(base)
    if layout is None or layout.format.name != move.params["format"]:
        raise Unsupported(f"packed_dequant of {source}", "its rows do not come whole from a weight")
    return e.weight(base, index)


def _root(graph: Graph, value: Value) -> Value:
    """The stored rows that packed rows come from: a gather, slice or reshape of whole rows is looked through."""
    equation = graph.equation(value)
    return value if equation is None else _root(graph, equation.inputs[0])


def _through_rows(e: Elements, value: Value, index: Index) -> Index:
    """Carry an element index of decoded rows through movements of the packed rows, which leave the last axis whole."""
    equation = e.graph.equation(value)
    if equation is None:
        return index
    rows, column = index[:-1], index[-1]
    source = equation.inputs[0]
    whole = source.shape[-1] == value.shape[-1]
    if equation.op == "gather" and whole and len(source.shape) == 2:
        return _through_rows(e, source, (gathered_row(e, equation.inputs[1], rows, source.shape[0]), column))
    if equation.op == "reshape" and whole:
        return _through_rows(e, source, (*reshaped(e.b, rows, value.shape[:-1], source.shape[:-1]), column))
    if equation.op == "slice" and whole:
        moved = tuple(
            i * s + a for i, a, s in zip(rows, equation.params["start"], equation.params["step"], strict=False)
        )
        return _through_rows(e, source, (*moved, column))
    raise Unsupported(f"packed_dequant over {equation.op}", "packed rows are gathered, sliced and reshaped whole")


MOVEMENTS: Mapping[str, Callable[[Elements, Equation, Index], Handle]] = {
    "reshape": _reshape, "transpose": _transpose, "broadcast": _broadcast, "slice": _slice, "concat": _concat,
    "pad": _pad, "iota": _iota, "gather": _gather, "packed_dequant": _packed_dequant,
    "sum": _reduced, "reduce_max": _reduced,
}  # fmt: skip
"""What an element of each movement is: an element of an operand, at another index."""
