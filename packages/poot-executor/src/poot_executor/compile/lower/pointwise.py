"""Pointwise regions: a thread an element (or a word of narrow elements), every operand computed at its index."""

from __future__ import annotations

from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.draft import Draft, Frame, flat_element, grid, store_elements, words_of
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps


def lower_pointwise(scene: Scene, region: Region, caps: Caps) -> Draft:
    """root[i] = expression(i) for every element i. Gathers are expressions too."""
    value = region.root
    frame = Frame(scene, caps, region.kind, caps.group_threads)
    # The root is stored, but here it is what the expression computes.
    inner = Scene(scene.graph, scene.stored - {value}, scene.layouts)
    frame.scene = frame.emission.scene = inner
    frame.read(value)
    out = frame.write(value)
    words = words_of(value)
    groups = grid(-(-words // caps.group_threads), caps)
    b = frame.b
    word = frame.flat_group(groups) * caps.group_threads + b.thread_id()
    with b.if_(word < words):
        store_elements(frame, value, out, word, flat_element(frame, value), value.type.count)
    return frame.draft(groups, frame.nbytes(), threads=caps.group_threads)
