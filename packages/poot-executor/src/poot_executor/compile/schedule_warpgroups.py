"""Schedules of contractions by products of warpgroups: which shapes they take, and how the work is laid out.

A group computes a tile of weight rows by activation rows. Chunks of both are copied into shared memory, several stages
ahead of the product that is running, so that neither registers nor threads wait for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poot_executor.compile.lower.epilogue import totals_bytes
from poot_executor.compile.region import Segment
from poot_executor.compile.schedule import fits_block
from poot_executor.compile.schedule_fragments import STEP_ROWS, half_of
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.warpgroups import COLUMNS, DEPTH, FEATURE, LINE, ROWS, SHARED_BYTES, SUBGROUP, THREADS
from poot_executor.layout import WeightLayout

BEHIND = 1
"""A product runs on behind the barrier after it, so that the next one is there when it ends."""
TILES = ((2, 256), (2, 128), (1, 128), (2, 64), (1, 64), (1, 32))
"""Warpgroups and activation rows of a tile, the one that reads least for what it computes first."""
SUMS_MOST = 128
"""Registers of a thread for sums."""
STAGES_LEAST, STAGES_MOST = 3, 6
STAGE_BYTES_LARGE = 40 << 10
"""A stage beyond which a group has a multiprocessor to itself."""
ALONE_BYTES, SHARING_BYTES = 192 << 10, 96 << 10
"""Bytes of all stages of a group that is alone on a multiprocessor, and of one that is not."""
PAD = 4
"""Words between the products of neighbouring activation rows: lanes that have four of them then meet no bank twice."""
PIECE_BYTES = 17 << 10
"""Shared memory for the products that are finished at a time."""
FILLED = 2
"""A tile is taken where its groups are at least a `FILLED`th of those that fill the device; else the smallest is."""

Weights = Sequence[tuple[WeightLayout, Segment]]
"""Segment by segment, the layout of its weights."""


@dataclass(frozen=True, slots=True)
class WarpgroupSchedule:
    """Each of a group's `warpgroups` has 64 rows of each of up to `anchors` weights, all have the same `tokens`
    activation rows; `stages` chunks of both are in shared memory."""

    warpgroups: int
    tokens: int
    anchors: int
    stages: int
    half: DType

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.warpgroups * THREADS

    @property
    def rows(self) -> int:
        """Rows of each weight that a group has."""
        return self.warpgroups * ROWS

    @property
    def stage_words(self) -> int:
        """Words of a stage: a line for each weight row and each activation row."""
        return (self.anchors * self.rows + self.tokens) * LINE

    @property
    def ahead(self) -> int:
        """Chunks on their way while one is multiplied."""
        return self.stages - 1 - BEHIND

    @property
    def piece(self) -> int:
        """Activation rows whose products are finished at a time: a number that divides them."""
        most = PIECE_BYTES // (4 * self.anchors * (self.rows + PAD))
        return max(n for n in range(COLUMNS, self.tokens + 1, COLUMNS) if self.tokens % n == 0 and n <= max(most, 8))

    @property
    def piece_words(self) -> int:
        """Words of shared memory for them."""
        return self.anchors * self.piece * (self.rows + PAD)

    def shared_bytes(self, segments: Sequence[Segment]) -> int:
        """Shared memory of a group."""
        words = self.stages * self.stage_words + self.piece_words
        return 4 * words + sum(totals_bytes(s, self.piece, self.rows) for s in segments)

    def describe(self) -> dict[str, Any]:
        """The tunables by name, for `explain`."""
        return {**asdict(self), "half": str(self.half)}


def warpgroup_schedule(weights: Weights, count: int, activations: DType, caps: Caps) -> WarpgroupSchedule | None:
    """The heuristic pick for `count` activation rows; None where warpgroups do not fit."""
    if FEATURE not in caps.features or caps.subgroup_width != SUBGROUP or count <= STEP_ROWS:
        return None
    picked = caps.picked("tokens")
    if picked == 0 or (caps.pick and picked is None):
        return None  # What was picked otherwise are tunables of other kernels.
    halves = {half_of(layout, activations) for layout, _ in weights}
    dense = all(layout.tile_rows == 1 and not layout.format.is_packed for layout, _ in weights)
    half = halves.pop() if len(halves) == 1 else None
    if half is None or not dense or any(layout.columns % DEPTH for layout, _ in weights):
        return None
    anchors = max(len(s.anchors) for _, s in weights)
    fitting = [
        schedule
        for warpgroups, tokens in TILES
        if anchors * tokens // 2 <= SUMS_MOST and tokens < 2 * count and picked in (None, tokens)
        for schedule in _staged(warpgroups, tokens, anchors, half, [s for _, s in weights])
    ]
    full = (s for s in fitting if _groups(s, weights, count) * FILLED >= caps.parallel_groups)
    return next(full, fitting[-1] if fitting else None)


def _staged(
    warpgroups: int, tokens: int, anchors: int, half: DType, segments: Sequence[Segment]
) -> list[WarpgroupSchedule]:
    """The tile with as many stages as there is room for, where there is and epilogues find their blocks."""
    stage = WarpgroupSchedule(warpgroups, tokens, anchors, 1, half).stage_words * 4
    room = ALONE_BYTES if stage > STAGE_BYTES_LARGE else SHARING_BYTES
    schedule = WarpgroupSchedule(warpgroups, tokens, anchors, min(STAGES_MOST, room // stage), half)
    fits = schedule.stages >= STAGES_LEAST and schedule.shared_bytes(segments) <= SHARED_BYTES
    return [schedule] if fits and all(fits_block(schedule.rows, s.block, s.stride) for s in segments) else []


def _groups(schedule: WarpgroupSchedule, weights: Weights, count: int) -> int:
    return sum(-(-layout.rows // schedule.rows) for layout, _ in weights) * -(-count // schedule.tokens)
