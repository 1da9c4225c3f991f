"""Writes into part of a value: scatter_update by row index, dynamic_update_slice from a start. In place when the
planner says so."""

from __future__ import annotations

from math import prod

from poot_executor.compile.expression import Scene, linear, unravel
from poot_executor.compile.lower.draft import PER_WORD, Draft, Frame, grid, pack_word
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.handle import Handle

SCATTER_CHECK = 2
"""The code of the check that a scatter's index, or an update's start, lies in its data."""


def lower_scatter(scene: Scene, region: Region, caps: Caps) -> Draft:
    """Store the updates, computed at their index, over the root's buffer, which already holds the old value."""
    anchor = region.anchor
    assert anchor is not None
    updates = anchor.inputs[2] if anchor.op == "scatter_update" else anchor.inputs[1]
    where = anchor.inputs[1] if anchor.op == "scatter_update" else anchor.inputs[2]
    per_word = PER_WORD.get(region.root.dtype, 1)
    if updates.shape[-1] % per_word or (
        anchor.op != "scatter_update" and anchor.params["axis"] == len(updates.shape) - 1 and per_word > 1
    ):
        raise Unsupported(f"{anchor.op} of {region.root.type}", "updates of narrow elements must be whole words")
    inner = Scene(scene.graph, scene.stored - {region.root}, scene.layouts)
    frame = Frame(inner, caps, region.kind, caps.group_threads)
    frame.read(where, updates)
    out = frame.write(region.root)
    b = frame.b
    words = updates.type.count // per_word
    groups = grid(-(-words // caps.group_threads), caps)
    word = frame.flat_group(groups) * caps.group_threads + b.thread_id()
    with b.if_(word < words):
        scatter_word(frame, anchor, out, word)
    return frame.draft(groups, 2 * updates.type.nbytes, threads=caps.group_threads)


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
    room = data[axis] - anchor.inputs[1].shape[axis]
    b.check((place >= 0) & (place <= room), SCATTER_CHECK)
    start = b.max(b.min(place, room), 0)
    at = tuple(i + start if a == axis else i for a, i in enumerate(index))
    return (place >= 0) & (place <= room), linear(b, at, narrow)
