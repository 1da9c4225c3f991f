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
