"""Halves of an expression as words, two each: eight neighbours at a time, copied as they are stored where that is so.

What lies in memory as halves need not become f32 on its way to where halves are multiplied: through movements, choices
that eight neighbours share, and widening casts, they are words of a buffer. Anything else is computed and rounded.
"""

from __future__ import annotations

from math import copysign

from poot_executor.compile.indexing import Index, linear
from poot_executor.compile.lower.draft import Frame
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.kernel.handle import Handle

HALVES = (DType.BF16, DType.F16)
EIGHT, WORDS = 8, 4
"""Neighbours that are read at once, and the words that they take."""
MOVED = frozenset({"reshape", "transpose", "broadcast", "gather"})
"""Movements whose elements are those of their first operand."""


def half_of(graph: Graph, value: Value) -> DType | None:
    """The halves in which every element of an expression is exactly: those of its dtype, or those that it was widened
    from. None where nothing says so."""
    if value.dtype in HALVES:
        return value.dtype
    equation = graph.equation(value)
    if equation is None or value.dtype is not DType.F32:
        return None
    if equation.op == "cast" or equation.op in MOVED:
        return half_of(graph, equation.inputs[0])
    if equation.op == "select":
        one, other = (half_of(graph, v) for v in equation.inputs[1:])
        return one if one is other else None
    return None


def half_words(frame: Frame, value: Value, index: Index, axis: int, half: DType) -> list[Handle]:
    """Eight elements from `index` on, neighbours along `axis`, rounded to `half`: four words, the first element lowest.

    The index along the axis is a multiple of eight, as is the extent.
    """
    found = _stored(frame, value, index, axis, half)
    if found is not None:
        return found
    elements: list[Handle] = []
    for start in range(0, EIGHT, 4):
        vector = frame.emission.vector(value, (*index[:axis], index[axis] + start, *index[axis + 1 :]), axis)
        elements += [vector] * 4 if vector.width == 1 else [vector[i] for i in range(4)]
    return [pack_pair(low, high, half) for low, high in zip(elements[::2], elements[1::2], strict=True)]


def pack_pair(low: Handle, high: Handle, half: DType) -> Handle:
    """Two f32 rounded to halves in a word."""
    b = low.builder
    return b.pack_bf16(low, high) if half is DType.BF16 else b.pack_half2(low, high)


def _twice(x: Handle, half: DType) -> Handle:
    """A word with one element twice."""
    zero = x.constant == 0.0 and copysign(1.0, x.constant) > 0
    return x.builder.const(0, DType.U32) if zero else pack_pair(x, x, half)


def _stored(frame: Frame, value: Value, index: Index, axis: int, half: DType) -> list[Handle] | None:
    """The words as they lie in a buffer; None where they lie in none."""
    scene, b = frame.scene, frame.b
    if value in frame.emission.supplied:
        return None
    if value.dtype is half and value.shape[axis] == 1:
        return [_twice(frame.element(value, index), half)] * WORDS
    if scene.splat(value) is not None:
        return None
    if value in scene.stored:
        inner = all(extent == 1 for extent in value.shape[axis + 1 :])
        if value.dtype is not half or value in scene.layouts or not inner or value.shape[axis] % EIGHT:
            return None
        words = frame.buffers[value][0].load_words(linear(b, index, value.shape) // 2, WORDS)
        return [words[i] for i in range(WORDS)]
    equation = scene.graph.equation(value)
    assert equation is not None
    if equation.op == "cast":
        widened = value.dtype is DType.F32 and equation.inputs[0].dtype is half
        return _stored(frame, equation.inputs[0], index, axis, half) if widened else None
    if equation.op == "select":
        return _selected(frame, equation, index, axis, half)
    if equation.op == "reshape" and equation.inputs[0].shape[-1:] != value.shape[-1:] and axis == len(value.shape) - 1:
        return None  # Eight neighbours may lie in two rows.
    found = frame.emission.moved(equation, index, axis) if equation.op in MOVED else None
    return None if found is None else _stored(frame, *found, half)


def _selected(frame: Frame, select: Equation, index: Index, axis: int, half: DType) -> list[Handle] | None:
    """A choice that is the same for all eight."""
    condition = frame.scene.graph.equation(select.inputs[0])
    if condition is None or condition.op != "broadcast" or condition.inputs[0].shape[axis] != 1:
        return None
    one, other = (_stored(frame, v, index, axis, half) for v in select.inputs[1:])
    if one is None or other is None:
        return None
    which = frame.element(select.inputs[0], index)
    return [frame.b.select(which, x, y) for x, y in zip(one, other, strict=True)]
