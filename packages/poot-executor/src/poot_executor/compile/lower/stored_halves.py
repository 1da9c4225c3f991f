"""Activations stored as halves, in a dispatch of their own: what a contraction copies that finds them in another form.

An f32 is the sum of three bf16, which are stored apart, [part, row, column], two a word, the greatest first.
"""

from __future__ import annotations

from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.thirds import cut, without_top
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.handle import Handle

THIRDS = 3
EIGHT, FOUR = 8, 4
"""Activations of a thread, and of a vector of them."""


def parts_of(left: Value) -> int:
    """Halves whose sum an activation is."""
    return THIRDS if left.dtype is DType.F32 else 1


def scratch_halves(frame: Frame, left: Value) -> BufferRef:
    """The memory of all halves, in the words of their pairs."""
    count, depth = left.shape
    return frame.scratch(0, (parts_of(left) * count, depth // 2), DType.U32)


def store_halves(scene: Scene, left: Value, caps: Caps) -> Draft:
    """The dispatch that stores them: a thread eight neighbours of a row. The depth is a multiple of eight."""
    frame = Frame(scene, caps, "halves", caps.group_threads)
    b, (count, depth) = frame.b, left.shape
    frame.read(left)
    out = scratch_halves(frame, left)
    items, each = count * depth // EIGHT, depth // EIGHT
    flat = grid(-(-items // caps.group_threads), caps)
    item = frame.flat_group(flat) * caps.group_threads + b.thread_id()
    with b.if_(item < items):
        row, column = item // each, item % each * EIGHT
        vectors = [frame.emission.vector(left, (row, column + start), 1) for start in (0, FOUR)]
        values = [part for vector in vectors for part in _apart(vector)]
        for part in range(parts_of(left)):
            words = [_pair(frame, left.dtype, low, high) for low, high in zip(values[::2], values[1::2], strict=True)]
            out.store((row + part * count) * (depth // 2) + column // 2, b.vector(*words))
            if part + 1 < parts_of(left):
                values = [without_top(b, value) for value in values]
    return frame.draft(flat, left.type.nbytes + out_bytes(left), threads=caps.group_threads)


def out_bytes(left: Value) -> int:
    """Bytes of all halves."""
    return 2 * parts_of(left) * left.type.count


def _apart(vector: Handle) -> list[Handle]:
    """Four elements; a scalar is all of them."""
    return [vector] * FOUR if vector.width == 1 else [vector[i] for i in range(FOUR)]


def _pair(frame: Frame, dtype: DType, low: Handle, high: Handle) -> Handle:
    """A word of two values that are halves already, or of their upper halves."""
    return frame.b.pack_half2(low, high) if dtype is DType.F16 else cut(frame.b, low, high)
