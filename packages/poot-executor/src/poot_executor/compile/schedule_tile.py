"""Schedules of contractions of many activation rows: which shapes a group takes as a tile of weight rows by tokens.

With a row of weights read for every few tokens, a device that computes much for each byte waits for memory. A group of
threads that shares a tile in shared memory reads a weight once for all its tokens, and decodes it once. Where the
target multiplies fragments of the halves that activations are, or of bf16, three of which are an f32, subgroups do;
otherwise threads sum in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poot_executor.compile.lower.epilogue import totals_bytes
from poot_executor.compile.region import Segment
from poot_executor.compile.schedule import fits_block
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.fragments import FEATURE, FragmentShape
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
FRAGMENT_TILES = ((64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (128, 64), (128, 32))
"""Weight rows and tokens where subgroups multiply fragments. Thirds have no room for the first."""
THIRDS = 3
"""bf16 numbers whose sum is an f32, exactly."""
LEAST = 32
"""Tokens of the smallest tiles. A larger one is more than half full, and so is any whose sums are in registers: a
thread that sums for tokens that are not there takes as long as where it reads weights once more."""
ACROSS = 2
"""Subgroups of a group across rows, and across tokens."""
RUN = 32
"""Columns of a block of quants, which have one scale."""
CHUNKS, FRAGMENT_CHUNKS = (32, 16, 8), (64, 32)
"""Columns of a chunk: what is staged at a time."""
WAITING_WORDS = 16
"""Words of activations that wait in a thread's registers for the next chunk, where that is longer than a run."""
PIECE_WORDS = 2048
"""Words of shared memory for products of fragments that are finished at a time."""
ROUNDOFF = 0.5
"""ULP of a sum that adding a term may cost."""
FILLED = 2
"""A tile is taken where its groups are at least a `FILLED`th of those that fill the device."""

Weights = Sequence[tuple[WeightLayout, Segment]]
"""Segment by segment, the layout of its weights."""


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """`threads` of a group take `rows` weight rows (of all weights side by side together) by `tokens`, `chunk` columns
    at a time. `lanes` threads, or with a `shape` subgroups, lie across rows, the others across tokens. An activation is
    the sum of `parts` halves.
    """

    threads: int
    rows: int
    tokens: int
    chunk: int
    lanes: int
    shape: FragmentShape | None = None
    parts: int = 1

    def rows_of(self, anchors: int) -> int:
        """Rows of each of so many weights side by side."""
        return self.rows // anchors

    @property
    def pitch(self) -> int:
        """Words between lines of staged halves."""
        return self.chunk // 2 + PAD

    @property
    def lines(self) -> int:
        """Lines of staged halves."""
        return self.rows + self.parts * self.tokens

    @property
    def runs(self) -> int:
        """Blocks of quants in a chunk."""
        return self.chunk // RUN

    @property
    def piece(self) -> int:
        """Tokens whose products of fragments are finished at a time: fragments of columns of every subgroup."""
        assert self.shape is not None
        least = ACROSS * self.shape.columns
        return least * max(1, min(self.tokens // least, PIECE_WORDS // (self.rows * least)))

    def words(self, anchors: int) -> int:
        """Words of shared memory for what is staged and, after it, the products."""
        rows = self.rows_of(anchors)
        if self.shape is None:
            lines = anchors * (rows + PAD) + self.tokens + PAD
            return max(self.chunk * lines, self.rows * self.tokens)
        return self.lines * self.pitch + self.float_words

    @property
    def float_words(self) -> int:
        """Beside staged halves, words for scales, minima and sums of activations, and after them the products."""
        return max(self.runs * (2 * self.rows + self.tokens), self.rows * self.piece)

    def describe(self) -> dict[str, Any]:
        """The tunables by name, for `explain`."""
        return {**asdict(self), "shape": None if self.shape is None else str(self.shape)}


def tile_schedule(weights: Weights, count: int, activations: DType, caps: Caps) -> TileSchedule | None:
    """The heuristic pick for `count` activation rows; None where tiles do not pay or fit."""
    if caps.many_rows is None or count < caps.many_rows or caps.pick:
        return None  # What was picked are tunables of the kernels of few rows.
    for schedule in (*_fragment_tiles(weights, activations, caps), *_float_tiles(weights, caps)):
        if all(_fits(schedule, s, caps) for _, s in weights) and _fills(schedule, weights, count, caps):
            return schedule
    return None


def _float_tiles(weights: Weights, caps: Caps) -> Iterator[TileSchedule]:
    packed = any(layout.format.is_packed for layout, _ in weights)
    chunk = _chunk(CHUNKS[:1] if packed else CHUNKS, weights)
    if chunk is not None and caps.max_group_size >= THREADS:
        for rows, tokens, lanes in FLOAT_TILES:
            yield TileSchedule(THREADS, rows, tokens, chunk, lanes)


def _fragment_tiles(weights: Weights, activations: DType, caps: Caps) -> Iterator[TileSchedule]:
    if FEATURE not in caps.features or "subgroup" not in caps.features or caps.subgroup_width is None:
        return
    threads, thirds = ACROSS * ACROSS * caps.subgroup_width, activations is DType.F32
    half = DType.BF16 if thirds else activations
    if threads > caps.max_group_size or half not in (DType.F16, DType.BF16):
        return
    if any(layout.format.dtype not in (None, half) for layout, _ in weights):
        return
    for shape in sorted(usable_shapes(half, caps), key=lambda s: -s.rows * s.columns * s.depth):
        for rows, tokens in FRAGMENT_TILES[thirds:]:
            for chunk in FRAGMENT_CHUNKS[thirds:]:
                short = chunk == RUN or tokens * chunk // 2 <= WAITING_WORDS * threads
                if short and all(layout.columns % chunk == 0 for layout, _ in weights):
                    yield TileSchedule(threads, rows, tokens, chunk, ACROSS, shape, THIRDS if thirds else 1)


def usable_shapes(element: DType, caps: Caps) -> list[FragmentShape]:
    """The target's products of such halves, unless a term is further off than where terms are added one after another:
    the bound of a contraction allows each of them a roundoff of the sum."""
    if caps.errors.get("fragment_mma", ROUNDOFF) > ROUNDOFF:
        return []
    return [
        shape
        for shape in caps.fragments
        if shape.element is element and shape.sums is DType.F32 and RUN % shape.depth == 0
    ]


def _chunk(chunks: Sequence[int], weights: Weights) -> int | None:
    """Columns of a chunk: the depth in whole chunks."""
    return next((c for c in chunks if all(layout.columns % c == 0 for layout, _ in weights)), None)


def _fits(schedule: TileSchedule, segment: Segment, caps: Caps) -> bool:
    """Has a group whole vectors (or fragments) of rows and tokens, whole blocks for its epilogue, and shared memory for
    all of it?"""
    anchors = len(segment.anchors)
    rows, shape = schedule.rows_of(anchors), schedule.shape
    finished = schedule.tokens if shape is None else schedule.piece
    nbytes = 4 * schedule.words(anchors) + totals_bytes(segment, finished, rows)
    each = VECTOR if shape is None else shape.rows
    whole = rows % (schedule.lanes * each) == 0 and fits_block(rows, segment.block, segment.stride)
    if shape is not None:
        whole = whole and schedule.tokens % (ACROSS * shape.columns) == 0
        whole = whole and schedule.tokens * schedule.chunk // 8 % schedule.threads == 0
    return whole and nbytes <= caps.max_shared_bytes


def _fills(schedule: TileSchedule, weights: Weights, count: int, caps: Caps) -> bool:
    """Are there tokens enough for the tile, and groups enough to keep a device busy?"""
    if schedule.tokens >= 2 * count and (schedule.tokens > LEAST or schedule.shape is None):
        return False
    across = sum(-(-layout.rows // schedule.rows_of(len(s.anchors))) for layout, s in weights)
    return across * -(-count // schedule.tokens) * FILLED >= caps.parallel_groups
