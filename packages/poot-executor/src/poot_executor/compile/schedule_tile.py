"""Schedules of contractions of many activation rows: which shapes a group takes as a tile of weight rows by tokens.

With a row of weights read for every few tokens, a device that computes much for each byte waits for memory. A group of
threads that shares a tile in shared memory reads a weight once for all its tokens, and decodes it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poot_executor.compile.lower.epilogue import totals_bytes
from poot_executor.compile.region import Segment
from poot_executor.compile.schedule import fits_block
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.layout import WeightLayout

VECTOR = 4
"""Rows, and tokens, of a thread that are neighbours: a vector of shared memory."""
PAD = 4
"""Words between neighbouring lines of shared memory beside their elements, so that threads meet few banks twice."""
THREADS = 64
"""A group that sums in registers."""
FLOAT_TILES = ((64, 64, 8), (64, 32, 8), (32, 32, 8), (128, 32, 16))
"""Weight rows, tokens and lanes across rows, the best first: 8 by 8, 8 by 4 and 4 by 4 sums a thread. The last one is
for epilogues that look at 128 columns."""
FRAGMENT_TILES = ((64, 128), (64, 64), (32, 32))
"""Weight rows and tokens where subgroups multiply matrix fragments."""
SUBGROUPS = 4
"""Subgroups of a group that multiplies fragments: two across rows by two across tokens."""
RUN = 32
"""Columns of a block of quants, which have one scale."""
CHUNKS = (32, 16, 8)
"""Columns of a chunk: what is staged at a time."""
FILLED = 2
"""A tile is taken where its groups are at least a `FILLED`th of those that fill the device."""


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """`threads` of a group take `rows` weight rows (of all weights side by side together) by `tokens`, `chunk` columns
    at a time. `lanes` threads lie across rows, the others across tokens; with a `shape`, subgroups multiply fragments.
    """

    threads: int
    rows: int
    tokens: int
    chunk: int
    lanes: int
    shape: FragmentShape | None = None

    def rows_of(self, anchors: int) -> int:
        """Rows of each of so many weights side by side."""
        return self.rows // anchors

    def describe(self) -> dict[str, Any]:
        """The tunables by name, for `explain`."""
        return {**asdict(self), "shape": None if self.shape is None else str(self.shape)}


def tile_schedule(
    weights: Sequence[tuple[WeightLayout, Segment]], count: int, activations: DType, caps: Caps
) -> TileSchedule | None:
    """The heuristic pick for `count` activation rows and the segments of a projection, each with the layout of its
    weights; None where tiles do not pay or fit."""
    if caps.many_rows is None or count < caps.many_rows or caps.pick:
        return None  # What was picked are tunables of the kernels of few rows.
    chunk = _chunk([layout for layout, _ in weights])
    if chunk is None or caps.max_group_size < THREADS:
        return None
    for rows, tokens, lanes in FLOAT_TILES:
        schedule = TileSchedule(THREADS, rows, tokens, chunk, lanes)
        if all(_fits(schedule, s, caps) for _, s in weights) and _fills(schedule, weights, count, caps):
            return schedule
    return None


def _chunk(layouts: Sequence[WeightLayout]) -> int | None:
    """Columns of a chunk: whole blocks of every weight, and the depth in whole chunks."""
    packed = any(layout.format.is_packed for layout in layouts)
    chunks = CHUNKS[:1] if packed else CHUNKS
    return next((c for c in chunks if all(layout.columns % c == 0 for layout in layouts)), None)


def _fits(schedule: TileSchedule, segment: Segment, caps: Caps) -> bool:
    """Has a group whole vectors of rows a thread, whole blocks for its epilogue, and shared memory for all of it?"""
    anchors = len(segment.anchors)
    rows = schedule.rows_of(anchors)
    nbytes = 4 * float_words(schedule, anchors) + totals_bytes(segment, schedule.tokens, rows)
    whole = rows % (schedule.lanes * VECTOR) == 0 and fits_block(rows, segment.block, segment.stride)
    return whole and nbytes <= caps.max_shared_bytes


def _fills(schedule: TileSchedule, weights: Sequence[tuple[WeightLayout, Segment]], count: int, caps: Caps) -> bool:
    """Are there groups enough to keep a device busy?"""
    across = sum(-(-layout.rows // schedule.rows_of(len(s.anchors))) for layout, s in weights)
    return across * -(-count // schedule.tokens) * FILLED >= caps.parallel_groups


def float_words(schedule: TileSchedule, anchors: int) -> int:
    """Words of shared memory of a tile whose sums are in registers: what is staged, and later the products."""
    lines = anchors * (schedule.rows_of(anchors) + PAD) + schedule.tokens + PAD
    return max(schedule.chunk * lines, schedule.rows * schedule.tokens)
