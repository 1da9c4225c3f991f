"""Schedules of attention by register fragments: which attentions they take, and how the work is laid out.

A subgroup has 16 rows of a KV head, or a multiple; the group's subgroups share tiles of K and V in shared memory. Each
product is of halves, summed in f32, so that only tensors which the graph itself has as halves are multiplied so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from poot_executor.compile.schedule import SPLITS_MOST
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.warpgroups import FEATURE as COPIES

ROWS, COLUMNS, DEPTH = 16, 8, 16
"""Rows, columns and depth of a product of fragments."""
SUBGROUP = 32
ROWS_LEAST = 16
"""Rows below which subgroups would multiply mostly nothing."""
PAIR = 2 * DEPTH
"""Columns of K that four lanes take of a position at once, a vector of words each."""
WARPS = (1, 2, 4, 8)
TILES = (1, 2)
POSITIONS = (16, 32, 64, 128)
"""What tunables may be."""
WARPS_MOST, POSITIONS_MOST = 4, 64
"""What they are at most unless measured otherwise."""
REGISTER_WORDS = 128
"""Words of a lane for queries, scores and sums, beside which there is room for what is on its way from memory, so that
two groups share a multiprocessor. On an H200 32 layers of a prompt of 2,048 tokens, heads of 128 columns, took 6.5 ms
so; with queries apart 6.7, with tiles of 32 positions 6.6, with both, which leaves room for three groups, 6.9."""
REGISTER_WORDS_MOST = 144
"""The same where no fewer do."""
DEPTH_HELD = 128
"""Columns of queries that a lane holds in registers."""
BANKS = 32


@dataclass(frozen=True, slots=True)
class FragmentAttention:
    """`warps` subgroups a group, each with `tiles` fragments of rows; `positions` of a tile of K and V; `splits` groups
    share the positions of a row. Queries have `depth` columns and values `columns`, as `half`. `copies` says that
    tiles are copied asynchronously, where they are stored as halves, `apart` that queries are in shared memory and not
    in registers."""

    warps: int
    tiles: int
    positions: int
    splits: int
    depth: int
    columns: int
    half: DType
    copies: bool = False
    apart: bool = False

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.warps * SUBGROUP

    @property
    def rows(self) -> int:
        """Rows of a group."""
        return self.warps * self.tiles * ROWS

    @property
    def key_pitch(self) -> int:
        """Words between neighbouring positions of K: off by half of the banks, so that the vectors which four lanes
        each take of two positions meet every bank once."""
        words = self.depth // 2
        return words + (BANKS // 2 - words) % BANKS

    @property
    def value_pitch(self) -> int:
        """Words between neighbouring positions of V: an odd number of vectors, so that the vectors which two lanes each
        take of four positions, every other one, meet every bank once."""
        words = self.columns // 2
        return words + 4 if words % 8 == 0 else words

    @property
    def shared_bytes(self) -> int:
        """Shared memory for a tile, for queries that are apart, and for the group's reductions."""
        queries = self.rows * self.depth // 2 if self.apart else 0
        return 4 * (self.positions * (self.key_pitch + self.value_pitch) + queries + 4 * self.warps)

    @property
    def register_words(self) -> int:
        """Words that a lane has of queries, scores and sums."""
        queries = 0 if self.apart else self.depth // 4
        return self.tiles * (queries + self.positions // 2 + self.columns // 2)

    def describe(self) -> dict[str, Any]:
        """The tunables by name, for `explain`."""
        return {**asdict(self), "half": str(self.half)}


def fragment_attention(
    rows: int, batches: int, span: int, depth: int, columns: int, half: DType | None, caps: Caps, *, splits: bool
) -> FragmentAttention | None:
    """The heuristic pick for `batches` times `rows` rows of `span` positions, as many groups a row as fill the device
    where `splits` are possible; None where fragments do not pay or fit. `half` is what the graph's tensors are in."""
    if half is None or not {"mma", "packed_half", "subgroup"} <= caps.features or caps.subgroup_width != SUBGROUP:
        return None
    if rows < ROWS_LEAST or depth % PAIR or columns % DEPTH:
        return None
    warps = caps.picked("warps") or next((w for w in WARPS if w * ROWS >= rows and w <= WARPS_MOST), WARPS_MOST)
    tiles = caps.picked("tiles") or 1
    apart = bool(depth > DEPTH_HELD if caps.picked("apart") is None else caps.picked("apart"))
    least = -(-span // POSITIONS[0]) * POSITIONS[0]
    picked = caps.picked("positions")
    shapes = [p for p in reversed(POSITIONS) if p <= POSITIONS_MOST and p <= least] if picked is None else [picked]
    # A great head takes more of both.
    limits = ((REGISTER_WORDS, caps.max_shared_bytes), (REGISTER_WORDS_MOST, caps.most_shared_bytes))
    for (words, most), positions in product(limits, shapes):
        groups = -(-rows // (warps * tiles * ROWS)) * batches
        turns = -(-span // positions)
        shared = min(caps.parallel_groups // groups, turns // caps.split_tiles, SPLITS_MOST, caps.max_groups[2])
        count = min(caps.picked("splits") or max(1, shared), turns) if splits else 1
        made = FragmentAttention(
            warps, tiles, positions, count, depth, columns, half, COPIES in caps.features, apart=apart
        )
        fits = made.shared_bytes <= most and made.threads <= caps.max_group_size
        if fits and (picked is not None or made.register_words <= words):
            return made
    return None
