"""What groups of a contraction read for a norm that each computes for itself: beyond some bytes it is better apart."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.lower.blocks import row_units
from poot_executor.compile.region import Segment
from poot_executor.compile.schedule import contraction_schedule
from poot_executor.compile.schedule_fragments import fragment_schedule
from poot_executor.compile.target import Caps
from poot_executor.graph.graph import Value
from poot_executor.layout import WeightLayout

NORM_READS = 100_000_000
"""Bytes that all groups together read at most for a norm that each computes for itself. With a norm of its own an H200
was 75 µs faster for a head whose groups read 525 MB for it (a 1B model on ptx), 21 µs where they read 263 MB (on
vulkan) and 11 µs where they read 131 MB (8B in q4_0 on ptx). The layers of an 8B model in q4_0, whose groups read 59 MB
at most, were 11 µs slower for each norm apart, which one group computes (benchmarks/RESULTS.md)."""


def norm_reads(weights: Sequence[tuple[WeightLayout, Segment]], left: Value, source: Value, caps: Caps) -> int:
    """Bytes of `source`, which becomes the input `left` of these segments when it is normed, that all groups together
    read: twice, for its reductions and for its values. Each segment comes with the layout of its first weight."""
    return _groups(weights, left, caps) * 2 * source.type.nbytes


def _groups(weights: Sequence[tuple[WeightLayout, Segment]], left: Value, caps: Caps) -> int:
    """How many groups take the rows of the weights."""
    layouts = [layout for layout, _ in weights]
    anchors = max(len(segment.anchors) for _, segment in weights)
    rows = sum(layout.rows for layout in layouts)
    fragments = fragment_schedule(layouts, left.shape[0], left.dtype, caps, anchors=anchors, rows=rows)
    if fragments is not None:
        return sum(-(-layout.rows // fragments.rows) for layout in layouts)
    found = 0
    for layout, segment in weights:
        schedule = contraction_schedule(
            layout.rows,
            row_units(layout, caps),
            1,
            caps,
            anchors=len(segment.anchors),
            block=segment.block,
            stride=segment.stride,
            turns=bool(segment.reductions),
        )
        found += 0 if schedule is None else -(-layout.rows // schedule.columns)
    return found
