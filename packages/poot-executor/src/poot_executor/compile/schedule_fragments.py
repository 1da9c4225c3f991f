"""Schedules of contractions by register fragments: which shapes they take, and how the work is laid out.

A fragment multiplies 16 weight rows by 8 columns. A column is an activation row, or a third of one: an f32 activation
is the exact sum of three bf16, and quants and bf16 weights are bf16 themselves, so that three products of halves give
every bit of the f32 product. For one or two rows the thirds lie in columns of their own, of which there are enough; for
more they are summed one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.layout import LANES, WeightLayout

ROWS, COLUMNS, DEPTH = 16, 8, 32
"""Weight rows of a fragment, its columns, and the depth that four lanes take of a row at once: two fragments."""
SUBGROUP = 32
PARTS = 3
"""bf16 numbers whose sum is an f32."""
WARPS_MOST = 8
WARPS_FEW_GROUPS = 16
"""Subgroups of a group of one activation row where few groups have all of it staged: a multiprocessor then has two
groups, of which half as many subgroups ask for too little at a time. An H200 decodes 8B in q4_0 in 1,967 µs, not 2,140,
and 1B in 553, not 667; with two rows and more it is slower so (benchmarks/RESULTS.md)."""
STAGED_BYTES = 26 << 10
"""Shared memory for activations of a step: what several groups of a multiprocessor have room for."""
STAGED_FEW_BYTES = 32 << 10
"""The same of all that a few groups stage."""
STAGED_MANY_BYTES = 32 << 10
"""The same for many rows, whose registers leave room for few groups anyway."""
CHUNK = 64
"""Columns of a chunk of many rows, where a unit is no longer."""
UNITS_LEAST, SLICES_LEAST = 16, 4
"""Units of a row, and subgroups that share them, below which one activation row leaves too few bytes on their way."""
STEP_ROWS = 16
"""Up to so many activation rows are a step of decoding: its weights are read once, and groups share their depth."""


@dataclass(frozen=True, slots=True)
class FragmentSchedule:
    """`slices` subgroups of a group's `warps` share the depth of the same weight rows; each has `tiles` fragments of
    rows and `columns` of columns. `chunk` columns of `tokens` activation rows are staged at a time. `thirds` says that
    an f32 activation is three halves, `spread` that these lie in columns of their own. A lane has the weights of
    `ahead` units of a chunk on their way while the activations before them are staged or multiplied. `resident` says
    that all groups should be on the device at once.
    """

    warps: int
    slices: int
    tiles: int
    columns: int
    tokens: int
    chunk: int
    thirds: bool
    spread: bool
    half: DType
    ahead: int
    resident: bool = False

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.warps * SUBGROUP

    @property
    def rows(self) -> int:
        """Weight rows of a group."""
        return self.warps // self.slices * self.tiles * ROWS

    @property
    def passes(self) -> int:
        """Halves of an activation that are summed one after the other."""
        return PARTS if self.thirds and not self.spread else 1

    @property
    def used(self) -> int:
        """Columns with an activation row, or a third of one."""
        return self.tokens * (PARTS if self.spread else 1)

    @property
    def pitch(self) -> int:
        """Words between the staged activations of neighbouring columns: off by half of the banks, so that a load of
        a subgroup meets each bank once."""
        return self.chunk // 2 + 16

    @property
    def staged(self) -> int:
        """Words of staged activations."""
        return self.used * self.passes * self.pitch

    def describe(self) -> dict[str, Any]:
        """The tunables by name, for `explain`."""
        return {**asdict(self), "half": str(self.half)}


def unit_columns(layout: WeightLayout) -> int:
    """Columns of a row that a lane's load of four words belongs to; 0 where fragments do not take the format."""
    if layout.tile_rows != 1:
        return 0
    if layout.format.is_packed:
        run = layout.plane("quants").run
        return DEPTH * LANES // run if run else 0
    whole = layout.format.name in ("bf16", "f16") and layout.columns % DEPTH == 0
    return DEPTH if whole else 0


def half_of(layout: WeightLayout, activations: DType) -> DType | None:
    """The halves that weights and activations of a contraction are exactly in; None where they are in none.

    Quants are small integers: halves of either kind hold them.
    """
    name = layout.format.name
    if layout.format.is_packed:
        return DType.F16 if activations is DType.F16 else DType.BF16
    if name == "bf16":
        return None if activations is DType.F16 else DType.BF16
    return DType.F16 if activations is DType.F16 and name == "f16" else None


def fragment_schedule(
    layouts: Sequence[WeightLayout], count: int, activations: DType, caps: Caps, *, anchors: int, rows: int
) -> FragmentSchedule | None:
    """The heuristic pick for `count` activation rows; None where fragments do not pay or fit.

    `layouts` are all that a group may read: they share what is staged. They have `rows` weight rows in all, of which
    `anchors` are finished together.
    """
    if "mma" not in caps.features or "packed_half" not in caps.features or caps.subgroup_width != SUBGROUP:
        return None
    units = {unit_columns(layout) for layout in layouts}
    kinds = {half_of(layout, activations) for layout in layouts}
    if len(kinds) != 1 or None in kinds or 0 in units:
        return None
    (half,) = kinds
    assert half is not None
    packed = any(layout.format.is_packed for layout in layouts)
    if not packed and count <= 1:
        return None  # Bound by memory already, without what staging costs.
    depth, unit = layouts[0].columns, max(units)
    thirds = activations is DType.F32
    if count <= STEP_ROWS:
        few = count == 1 and rows <= caps.parallel_groups * ROWS
        step = _step(depth, unit, count, half, thirds=thirds, anchors=anchors, few=few)
        little = step is not None and (depth // unit < UNITS_LEAST or step.slices < SLICES_LEAST)
        return None if count == 1 and caps.parallel_groups > 1 and little else step
    return _many(depth, unit, count, half, thirds=thirds, anchors=anchors)


def _step(
    depth: int, unit: int, count: int, half: DType, *, thirds: bool, anchors: int, few: bool
) -> FragmentSchedule | None:
    """Few rows: the subgroups of a group share the depth of its rows, so that enough bytes are on their way."""
    spread = thirds and count * PARTS <= COLUMNS
    used = count * PARTS if spread else count
    held = used * (PARTS if thirds and not spread else 1)
    columns = -(-used // COLUMNS)
    units = depth // unit
    # Two weights of four bits keep a group busy enough with half as many subgroups, and more groups fit beside it.
    most, staged = WARPS_MOST // 2 if anchors > 1 and unit == DEPTH * LANES else WARPS_MOST, STAGED_BYTES
    if few and _chunk(depth, depth, held, STAGED_FEW_BYTES):
        most, staged = WARPS_FEW_GROUPS, STAGED_FEW_BYTES
    slices = max((s for s in range(1, most + 1) if units % s == 0), default=1)
    warps = slices * max(1, WARPS_MOST // 2 // slices)
    chunk = _chunk(depth, unit * slices, held, staged)
    if chunk is None:
        return None
    # Registers that wait cost groups: only where each chunk would otherwise wait for its weights does it pay.
    ahead = 1 if chunk < depth else 0
    return FragmentSchedule(warps, slices, 1, columns, count, chunk, thirds, spread, half, ahead, resident=True)


def _many(depth: int, unit: int, count: int, half: DType, *, thirds: bool, anchors: int) -> FragmentSchedule | None:
    """Many rows: each subgroup has rows of its own and all of the group's activation rows. Chunks are short, so that
    all weights of the next fit registers."""
    columns = 4 if thirds or anchors > 1 else 8
    tokens = columns * COLUMNS
    held = tokens * (PARTS if thirds else 1)
    chunk = _chunk(depth, unit, held, min(STAGED_MANY_BYTES, held * (2 * max(unit, CHUNK) + 64)))
    if chunk is None:
        return None
    warps = 4 if unit == DEPTH else 8
    return FragmentSchedule(
        warps, 1, 2 if anchors == 1 else 1, columns, tokens, chunk, thirds, False, half, chunk // unit
    )


def _chunk(depth: int, least: int, held: int, most: int) -> int | None:
    """The most columns that divide the depth, are whole units of every slice and, `held` times, fit `most` bytes."""
    divisors = (c for c in range(least, depth + 1, least) if depth % c == 0 and c % 64 == 0)
    return max((c for c in divisors if held * (2 * c + 64) <= most), default=None)
