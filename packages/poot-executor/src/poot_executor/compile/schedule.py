"""Schedules as data: how many threads, rows and tokens a template takes, from the shape and the target's `Caps`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from poot_executor.compile.target import Caps
from poot_executor.layout import WeightLayout


@dataclass(frozen=True, slots=True)
class ContractionSchedule:
    """`threads` a group, `rows` weight rows a thread, `tile` activation rows a thread."""

    threads: int
    rows: int
    tile: int

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def rows_for_block(block: int, caps: Caps) -> int | None:
    """The fewest weight rows a thread with which a group has whole blocks of columns; None where none of the schedule's do."""
    return next((r for r in range(1, ROWS_MOST + 1) if caps.group_threads * r % max(block, 1) == 0), None)


def projection_schedule(rows: int, anchors: int, block: int, count: int, caps: Caps) -> ContractionSchedule:
    """The heuristic pick for one segment of `rows` weight rows, `anchors` weights side by side, whole blocks of `block` columns a group."""
    tile = min(count, TILE_MOST)
    most = max(1, (ROWS_MOST if tile <= 2 else 2) // anchors)
    per_thread = rows_for_block(block, caps) or 1
    while per_thread * 2 <= most and rows >= caps.group_threads * per_thread * 2 * GROUPS_LEAST:
        per_thread *= 2
    return ContractionSchedule(caps.group_threads, per_thread, tile)


ROWS_MOST = 4
GROUPS_LEAST = 4
"""Groups that should remain when a thread takes twice the rows."""
TILE_MOST = 8
"""Activation rows whose sums fit a thread's registers beside a block of weights."""


def contraction_schedule(layout: WeightLayout, count: int, caps: Caps) -> ContractionSchedule:
    """The heuristic pick for a weight and `count` activation rows.

    More tokens a thread reuse a decoded weight; more rows a thread reuse an activation, as long as the groups that remain
    still fill the device.
    """
    threads = min(caps.group_threads, max(layout.tile_rows, 8))
    tile = min(count, TILE_MOST)
    rows = 1 if tile > 2 else 4
    while rows > 1 and layout.rows < threads * rows * 8:
        rows //= 2
    return ContractionSchedule(threads, rows, tile)
