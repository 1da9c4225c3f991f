"""Halves of an expression as words, two each: eight neighbours at a time, copied as they are stored where that is so.

What lies in memory as halves need not become f32 on its way to where halves are multiplied: through movements, choices
that eight neighbours share, and widening casts, they are words of a buffer. Anything else is computed and rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import copysign

from poot_executor.compile.indexing import Index, linear
from poot_executor.compile.lower.draft import Frame
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.handle import Handle

HALVES = (DType.BF16, DType.F16)
EIGHT, WORDS = 8, 4
"""Neighbours that are read at once, and the words that they take."""
MOVED = frozenset({"reshape", "transpose", "broadcast", "gather"})
"""Movements whose elements are those of their first operand."""


def exact_half(graph: Graph, value: Value) -> DType | None:
    """The halves in which every element of an expression is exactly: those of its dtype, or those that it was widened
    from. None where nothing says so."""
    if value.dtype in HALVES:
        return value.dtype
    equation = graph.equation(value)
    if equation is None or value.dtype is not DType.F32:
        return None
    if equation.op == "cast" or equation.op in MOVED:
        return exact_half(graph, equation.inputs[0])
    if equation.op == "select":
        one, other = (exact_half(graph, v) for v in equation.inputs[1:])
        return one if one is other else None
    return None


def half_words(frame: Frame, value: Value, index: Index, axis: int, half: DType) -> list[Handle]:
    """Eight elements from `index` on, neighbours along `axis`, rounded to `half`: four words, the first element lowest.

    The index along the axis is a multiple of eight, as is the extent.
    """
    found = stored_halves(frame, value, index, axis, half)
    if found is not None:
        loaded = found.buffer.load_words(found.word, WORDS)
        words = [loaded[i] for i in range(WORDS)]
        if found.condition is None:
            return words
        holds = found.condition()
        return [frame.b.select(holds, word, 0) for word in words]
    elements: list[Handle] = []
    for start in range(0, EIGHT, 4):
        vector = frame.emission.vector(value, (*index[:axis], index[axis] + start, *index[axis + 1 :]), axis)
        elements += [vector] * 4 if vector.width == 1 else [vector[i] for i in range(4)]
    return [pack_pair(low, high, half) for low, high in zip(elements[::2], elements[1::2], strict=True)]


def pack_pair(low: Handle, high: Handle, half: DType) -> Handle:
    """Two f32 rounded to halves in a word."""
    b = low.builder
    return b.pack_bf16(low, high) if half is DType.BF16 else b.pack_half2(low, high)


@dataclass(frozen=True, slots=True)
class StoredHalves:
    """Where eight halves lie: four words of a buffer from `word` on, which count where `condition` holds (None:
    always) and are zero elsewhere."""

    buffer: BufferRef
    word: Handle
    condition: Callable[[], Handle] | None


def stored_halves(frame: Frame, value: Value, index: Index, axis: int, half: DType) -> StoredHalves | None:
    """Where `half_words` lie side by side; None where they are computed, or lie in several places."""
    scene = frame.scene
    if value in frame.emission.supplied or scene.splat(value) is not None:
        return None
    if value in scene.stored:
        inner = all(extent == 1 for extent in value.shape[axis + 1 :])
        if value.dtype is not half or value in scene.layouts or not inner or value.shape[axis] % EIGHT:
            return None
        return StoredHalves(frame.buffers[value][0], linear(frame.b, index, value.shape) // 2, None)
    equation = scene.graph.equation(value)
    assert equation is not None
    if equation.op == "cast":
        widened = value.dtype is DType.F32 and equation.inputs[0].dtype is half
        return stored_halves(frame, equation.inputs[0], index, axis, half) if widened else None
    if equation.op == "select":
        return _selected(frame, equation, index, axis, half)
    if equation.op == "broadcast" and equation.inputs[0].shape[axis] == 1:
        return None
    if equation.op == "reshape" and equation.inputs[0].shape[-1:] != value.shape[-1:] and axis == len(value.shape) - 1:
        return None  # Eight neighbours may lie in two rows.
    found = frame.emission.moved(equation, index, axis) if equation.op in MOVED else None
    return None if found is None else stored_halves(frame, *found, half)


def _selected(frame: Frame, select: Equation, index: Index, axis: int, half: DType) -> StoredHalves | None:
    """A choice between what is stored and zero that is the same for all eight."""
    condition = frame.scene.graph.equation(select.inputs[0])
    if condition is None or condition.op != "broadcast" or condition.inputs[0].shape[axis] != 1:
        return None
    if not _is_zero(frame, select.inputs[2]):
        return None
    found = stored_halves(frame, select.inputs[1], index, axis, half)
    if found is None or found.condition is not None:
        return None
    return replace(found, condition=lambda: frame.element(select.inputs[0], index))


def _is_zero(frame: Frame, value: Value) -> bool:
    """Is an expression 0 everywhere, with its sign plus?"""
    number = frame.scene.splat(value)
    if number is not None:
        return number == 0 and copysign(1.0, number) > 0
    equation = frame.scene.graph.equation(value)
    return equation is not None and equation.op in MOVED | {"cast"} and _is_zero(frame, equation.inputs[0])
