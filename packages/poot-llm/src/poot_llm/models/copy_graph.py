"""Copying the beginning of one row of contiguous KV to another, as a graph."""

from __future__ import annotations

from collections.abc import Mapping

from poot_executor.dtype import I32
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_llm.blocks.step import first_index

SOURCE = SlotKey(SlotKind.INPUT, "copy_from")
TARGET = SlotKey(SlotKind.INPUT, "copy_to")
COUNT = SlotKey(SlotKind.INPUT, "copy_count")
COPIED = "copied"


def trace_copy(states: Mapping[StateKey, TensorType], rows: int, capacity: int) -> Graph:
    """Of each state [rows · capacity, ...] the first positions of a row become those of another one.

    Slots, i32[1] each: the row that is read, another one that is written, and how many positions. Checks: 0 and 1, a
    row that there is none of; 2, a count outside [0, capacity]. The output `copied` i32[1] is the count.
    """
    builder = Builder(f"copy_{rows}x{capacity}")
    one = TensorType((1,), I32)
    source, target, count = (builder.slot(key, one) for key in (SOURCE, TARGET, COUNT))
    for row in (source, target):
        builder.check(first_index((row < 0) | (row >= rows)))
    builder.check(first_index((count < 0) | (count > capacity)))
    place = p.iota(builder, (capacity,), 0, I32)
    zero, last = builder.splat(0, one), builder.splat(rows - 1, one)
    source, target = (p.minimum(p.maximum(row, zero), last) for row in (source, target))
    read = place + p.broadcast(source * capacity, (capacity,))
    write = place + p.broadcast(target * capacity, (capacity,))
    write = p.select(place < p.broadcast(count, (capacity,)), write, builder.splat(-1, write.type))
    for key, kind in states.items():
        before = builder.state(key, kind)
        builder.next_state(key, p.scatter_update(before, write, p.gather(before, read)))
    builder.output(COPIED, count)
    return builder.build()
