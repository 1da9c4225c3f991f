"""Writes into part of a value: scatter_update by row index, dynamic_update_slice from a start. In place when the
planner says so.

A thread an updated word. Where updates do not fill words of narrow elements it is a thread a word of the data, which
looks for its updates, so that no two threads share a word.
"""

from __future__ import annotations

from math import prod

from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import Index, linear, unravel
from poot_executor.compile.lower.draft import PER_WORD, Draft, Frame, grid, pack_word, words_of
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle

SCATTER_CHECK = 2
"""The code of the check that a scatter's index, or an update's start, lies in its data."""


def lower_scatter(scene: Scene, region: Region, caps: Caps) -> Draft:
    """Store the updates, computed at their index, over the root's buffer, which already holds the old value."""
    anchor = region.anchor
    assert anchor is not None
    updates = anchor.inputs[2] if anchor.op == "scatter_update" else anchor.inputs[1]
    where = anchor.inputs[1] if anchor.op == "scatter_update" else anchor.inputs[2]
    inner = Scene(scene.graph, scene.stored - {region.root}, scene.layouts)
    frame = Frame(inner, caps, region.kind, caps.group_threads)
    frame.read(where, updates)
    out = frame.write(region.root)
    b = frame.b
    whole = whole_words(anchor)
    words = updates.type.count // PER_WORD.get(region.root.dtype, 1) if whole else words_of(region.root)
    groups = grid(-(-words // caps.group_threads), caps)
    word = frame.flat_group(groups) * caps.group_threads + b.thread_id()
    with b.if_(word < words):
        if whole:
            scatter_word(frame, anchor, out, word)
        else:
            _gather_word(frame, anchor, out, word)
    nbytes = 2 * (updates.type.nbytes if whole else region.root.type.nbytes)
    return frame.draft(groups, nbytes, threads=caps.group_threads)


def whole_words(anchor: Equation) -> bool:
    """Do the updates replace whole 32-bit words of the data, and are they whole words themselves?"""
    per_word = PER_WORD.get(anchor.output.dtype, 1)
    scatters = anchor.op == "scatter_update"
    updates = anchor.inputs[2] if scatters else anchor.inputs[1]
    last = len(updates.shape) - 1
    moves = last == 0 if scatters else anchor.params["axis"] == last
    return per_word == 1 or not (moves or updates.shape[last] % per_word or anchor.output.shape[last] % per_word)


def scatter_word(frame: Frame, anchor: Equation, out: BufferRef, word: Handle) -> None:
    """Compute one word of the updates, by its row-major number, and store it where the index says."""
    b = frame.b
    scatters = anchor.op == "scatter_update"
    where, updates = (anchor.inputs[1], anchor.inputs[2]) if scatters else (anchor.inputs[2], anchor.inputs[1])
    per_word = PER_WORD.get(updates.dtype, 1)
    index = unravel(b, word, (*updates.shape[:-1], updates.shape[-1] // per_word))
    place = b.cast(frame.element(where, index[:1] if scatters else ()), DType.I32)
    inside, target = _target(frame, anchor, place, index, per_word)
    with b.if_(inside):
        parts = [frame.element(updates, (*index[:-1], index[-1] * per_word + i)) for i in range(per_word)]
        if per_word == 1:
            out[target] = parts[0]
        else:
            out.store_word(target, pack_word(b, updates.dtype, parts))


def _gather_word(frame: Frame, anchor: Equation, out: BufferRef, word: Handle) -> None:
    """Put together one word of the data: each element its update, where there is one, or what it was."""
    b = frame.b
    data = anchor.output
    per_word = PER_WORD[data.dtype]
    parts = []
    for i in range(per_word):
        # Elements that the last word has beyond the data repeat its last one.
        place = b.min(word * per_word + i, data.type.count - 1)
        held = out[place]
        value = b.var(held, held.dtype, name="element")
        _update(frame, anchor, unravel(b, place, data.shape), value)
        parts.append(value.get())
    out.store_word(word, pack_word(b, data.dtype, parts))


def _update(frame: Frame, anchor: Equation, index: Index, value: Var) -> None:
    """Set `value` to the update of the data's element at `index`, if one has it."""
    b = frame.b
    if anchor.op == "scatter_update":
        _, where, updates = anchor.inputs
        with b.range(0, updates.shape[0], name="update") as row:
            place = frame.element(where, (row,))
            b.check(place < anchor.output.shape[0], SCATTER_CHECK)
            with b.if_(place == index[0]):
                value.set(frame.element(updates, (row, *index[1:])))
        return
    _, updates, where = anchor.inputs
    axis = anchor.params["axis"]
    start = _start(frame, anchor, frame.element(where, ()))
    inside = (index[axis] >= start) & (index[axis] < start + updates.shape[axis])
    for a, extent in enumerate(updates.shape):
        if a != axis and extent < anchor.output.shape[a]:
            inside = inside & (index[a] < extent)
    with b.if_(inside):
        value.set(frame.element(updates, (*index[:axis], index[axis] - start, *index[axis + 1 :])))


def _start(frame: Frame, anchor: Equation, place: Handle) -> Handle:
    """The start of an update, checked and within the data."""
    b, axis = frame.b, anchor.params["axis"]
    room = anchor.output.shape[axis] - anchor.inputs[1].shape[axis]
    b.check((place >= 0) & (place <= room), SCATTER_CHECK)
    return b.max(b.min(place, room), 0)


def _target(
    frame: Frame, anchor: Equation, place: Handle, index: tuple[Handle, ...], per_word: int
) -> tuple[Handle, Handle]:
    """Whether to store, and the word to store to; checks that the place lies in the data."""
    b = frame.b
    data = anchor.output.shape
    narrow = (*data[:-1], data[-1] // per_word)
    if anchor.op == "scatter_update":
        b.check(place < data[0], SCATTER_CHECK)
        stride = prod(narrow[1:])
        inside = (place >= 0) & (place < data[0])
        return inside, b.max(b.min(place, data[0] - 1), 0) * stride + linear(b, index[1:], narrow[1:])
    axis = anchor.params["axis"]
    start = _start(frame, anchor, place)
    at = tuple(i + start if a == axis else i for a, i in enumerate(index))
    return place == start, linear(b, at, narrow)
