"""Schedules as data: how many threads, rows, lanes and tokens a contraction takes, from its shape and the target's
`Caps`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from poot_executor.compile.target import Caps

ROWS_MOST = 4
"""Weight rows a thread."""


def tile_most(caps: Caps) -> int:
    """Activation rows a thread: their sums fit its registers beside a block of weights. Where a thread has rows of its
    own, more rows a
    thread pay more: on lavapipe 4 by 4 does what 8 by 8 nearly does, from a kernel that compiles in a third of the
    time."""
    return caps.picked("tile") or (4 if caps.tile_rows > 1 else 8)


GROUPS_LEAST = 4
"""Groups that should remain when a thread takes twice the rows."""
FULL_TURNS = 4
"""Times that the groups of a matrix fill the device, from which on a lane takes `ROWS_MOST` rows of it: an H200 then
waits less for each. A head of 0.5B bf16 takes 0.72 of the time, gate and up of 1B through Vulkan 0.75, and a step of 8B
0.97."""


@dataclass(frozen=True, slots=True)
class ContractionSchedule:
    """`threads` a group; `lanes` of them share a weight row's depth (1: a thread has rows of its own); `rows` weight
    rows a thread at a time, `turns` times, where a group has to have more rows than its threads take at once; `tile`
    activation rows a thread."""

    threads: int
    lanes: int
    rows: int
    tile: int
    turns: int = 1

    @property
    def columns(self) -> int:
        """Products of one token that a group has."""
        return self.threads // self.lanes * self.rows * self.turns

    def shared_bytes(self, anchors: int, block: int, caps: Caps) -> int:
        """Shared memory for the products of `anchors` weights, where threads finish them together, and for the group's
        reductions."""
        subgroups = max(1, self.lanes // (caps.subgroup_width or 1))
        held = self.tile * self.columns * anchors * subgroups if block > 0 or self.lanes > 1 else 0
        return 4 * (held + 2 * self.threads)

    def describe(self) -> dict[str, Any]:
        """The tunables by name, for `explain`."""
        return asdict(self)


def shares_rows(caps: Caps) -> bool:
    """Do the lanes of a subgroup share a weight row? With rows interleaved in tiles each thread has rows of its own:
    neighbouring threads then read neighbouring words anyway."""
    return caps.tile_rows == 1 and caps.subgroup_width is not None and "subgroup" in caps.features


def lane_count(units: int, caps: Caps) -> int:
    """How many threads share a row of `units` pieces: the lanes of one subgroup, of several for a long row."""
    if not shares_rows(caps) or caps.subgroup_width is None:
        return 1
    picked = caps.picked("lanes")
    if picked is not None:
        return picked
    lanes = caps.subgroup_width
    while lanes * 2 <= caps.group_threads and units > lanes * 4:
        lanes *= 2
    return lanes


def fits_block(columns: int, block: int, stride: int) -> bool:
    """Can a group of `columns` products finish epilogues that look at `block` columns, at equal places modulo
    `stride`?"""
    if block < 2 or columns % block == 0:
        return True
    pieces = block // stride
    return columns % pieces == 0 and stride % (columns // pieces) == 0


def contraction_schedule(
    rows: int,
    units: int,
    tile: int,
    caps: Caps,
    *,
    anchors: int = 1,
    block: int = 0,
    stride: int = 1,
    turns: bool = False,
) -> ContractionSchedule | None:
    """The heuristic pick for `rows` weight rows of `units` blocks, `anchors` weights side by side, `tile` activation
    rows a thread.

    More tokens a thread reuse a decoded weight; more rows a thread reuse an activation, as long as the groups that
    remain still fill the device. None where no group has what an epilogue over `block` columns looks at; with `turns`
    it may take them one after the other.
    """
    lanes = lane_count(units, caps)
    slots = caps.group_threads // lanes
    fitting = [r for r in range(1, ROWS_MOST + 1) if fits_block(slots * r, block, stride)]
    if not fitting:
        most = next((r for r in (2, 1) if turns and block % (slots * r) == 0), 0)
        return ContractionSchedule(caps.group_threads, lanes, most, tile, block // (slots * most)) if most else None
    picked = caps.picked("rows")
    if picked is not None and picked in fitting:
        return ContractionSchedule(caps.group_threads, lanes, picked, tile)
    most = max(1, (ROWS_MOST if tile <= 4 else 2) // anchors)
    wide = 2 if lanes > 1 else 1  # Two rows a lane keep enough bytes in flight.
    pick = next((r for r in fitting if r >= wide), fitting[-1])
    least = GROUPS_LEAST if tile < tile_most(caps) else 1  # With a full tile of tokens there are tiles enough.
    while pick * 2 <= most and pick * 2 in fitting and rows >= slots * pick * 2 * least and lanes == 1:
        pick *= 2
    full = rows >= slots * ROWS_MOST * FULL_TURNS * caps.parallel_groups
    if full and lanes > 1 and tile == 1 and ROWS_MOST in fitting:
        pick = ROWS_MOST
    return ContractionSchedule(caps.group_threads, lanes, pick, tile)


FOUR = 4
"""Neighbours of a row of K or V that are read at once."""
QUERIES_MOST = 8
"""Rows that an attention group takes: their weights and sums fit registers and shared memory."""
SPLITS_MOST = 32
IDLE_SHARE = 4
"""With fewer than this share of its groups at work a device is nearly idle."""


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """`threads` a group, `queries` rows a group; `parts` of the threads sum values over positions of their own;
    `splits` groups share the positions of a row; `unroll` loads of keys and values are on their way at once; `early`
    says that those of the first tile are asked for before the queries are there, where the kernel can; `lanes`
    neighbouring threads share a position."""

    threads: int
    queries: int
    parts: int
    splits: int
    unroll: int
    early: bool
    lanes: int = 1

    @property
    def positions(self) -> int:
        """Positions of a tile."""
        return self.threads // self.lanes

    def gathered_bytes(self, columns: int, width: int) -> int:
        """Shared memory where every subgroup of `width` lanes sums for itself: what they gathered, beside queries and
        the group's reductions."""
        subgroups = self.threads // width
        return 4 * self.queries * (subgroups * (columns + 2) + columns) + 12 * self.threads

    def shared_bytes(self, depth: int, columns: int) -> int:
        """Shared memory for queries of `depth`, weights, joined sums of `columns` and the group's reductions: one of
        floats, two of integers."""
        joined = columns * self.parts if self.parts > 1 else 0
        return 4 * (self.queries * (depth + self.threads + joined) + 3 * self.threads)

    def describe(self) -> dict[str, Any]:
        """The tunables by name, for `explain`."""
        return asdict(self)


def attention_schedule(
    rows: int, batches: int, span: int, depth: int, columns: int, caps: Caps
) -> AttentionSchedule | None:  # fmt: skip
    """The heuristic pick: as many rows a group as its shared memory holds, as many splits as fill the device, each of
    at least the target's `split_tiles` tiles of positions; fewer rows a group where it would be nearly idle, since a
    group takes its rows one after the other. None where shared memory does not hold one row."""
    threads, tiles = caps.group_threads, -(-span // caps.group_threads)
    most = min(rows, caps.picked("queries") or QUERIES_MOST)

    def split(queries: int) -> tuple[int, int]:
        groups = -(-rows // queries) * batches
        shares = 1 if tiles <= caps.whole_tiles else tiles // caps.split_tiles
        splits = max(1, min(caps.parallel_groups // groups, shares, SPLITS_MOST, caps.max_groups[2]))
        return groups, min(caps.picked("splits") or splits, tiles)

    if caps.picked("queries") is None:
        busy = caps.parallel_groups // IDLE_SHARE
        most = next((q for q in range(most, 0, -1) if split(q)[0] * split(q)[1] >= busy), 1)
    shapes = [(q, max(1, threads // columns)) for q in range(most, 0, -1)] + [(1, 1)]
    for queries, parts in shapes:
        groups, splits = split(queries)
        unroll = caps.picked("unroll") or (16 if shares_rows(caps) else 4)
        # Groups that run at once have registers enough; a great many hide each other's waits.
        early = caps.early_words > 0 and shares_rows(caps) and groups * splits <= caps.parallel_groups
        schedule = AttentionSchedule(threads, queries, parts, splits, unroll, early)
        if schedule.shared_bytes(depth, columns) <= caps.max_shared_bytes:
            return _with_lanes(schedule, depth, columns, caps)
    return None


def _with_lanes(schedule: AttentionSchedule, depth: int, columns: int, caps: Caps) -> AttentionSchedule:
    """The schedule with as many times the threads as lanes are to share a position, where subgroups can. Rows that
    share a group share what it reads, and wait for it less: they gain nothing."""
    lanes, width = caps.position_lanes, caps.subgroup_width
    wide = replace(schedule, threads=schedule.threads * lanes, lanes=lanes)
    if lanes == 1 or schedule.queries > 1 or width is None or wide.threads > caps.max_group_size:
        return schedule
    if depth % (FOUR * lanes):
        return schedule
    whole = by_subgroups(wide, columns, caps) and width // min(columns // FOUR, width) <= width // lanes
    return wide if whole else schedule


def by_subgroups(schedule: AttentionSchedule, columns: int, caps: Caps) -> bool:
    """Do the lanes of a subgroup have whole rows of V between them, and does memory hold what each gathers?"""
    width = caps.subgroup_width
    if not shares_rows(caps) or width is None or schedule.threads % width or columns % FOUR:
        return False
    lanes = columns // FOUR
    whole = lanes % width == 0 or (lanes < width and width % lanes == 0)
    return whole and schedule.gathered_bytes(columns, width) <= caps.max_shared_bytes


NEUTRAL = frozenset({"rows", "tile", "queries"})
"""Tunables that leave the order alone in which a row is summed."""


def batch_invariant(caps: Caps) -> Caps:
    """Caps under which no row is summed in an order that depends on other rows: groups do not share the positions of an
    attention, many rows are contracted as few are (matrix fragments take some numbers of rows alone), and a row
    reduction takes as many threads alone as it takes before a contraction."""
    return replace(
        caps,
        parallel_groups=1,
        max_group_size=caps.group_threads,
        many_rows=None,
        features=caps.features - {"mma"},
        pick=tuple((name, value) for name, value in caps.pick if name in NEUTRAL),
    )
