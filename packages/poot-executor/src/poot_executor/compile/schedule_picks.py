"""Schedules that were measured, as data: for each region key the tunables that take the place of the heuristic's.

A region key says what a region computes and nothing of where: equal regions of any model have one. `legal` is asked of
every pick before it is used, so that what a file says never reaches a kernel unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from poot_executor.compile.classify import weight_of
from poot_executor.compile.region import Region, Segment
from poot_executor.compile.schedule import NEUTRAL, QUERIES_MOST, ROWS_MOST, SPLITS_MOST, shares_rows
from poot_executor.compile.schedule_attention import POSITIONS, TILES, WARPS
from poot_executor.compile.target import Caps, Pick
from poot_executor.graph.graph import Graph, Value
from poot_executor.kernel.warpgroups import FEATURE as WARPGROUP
from poot_executor.layout import WeightLayout

TOKENS = (0, 32, 64, 128, 256)
"""Activation rows of a tile of warpgroups; 0 is for no warpgroups."""
NORM = "norm"
MEASURED = "measured"
KEY = "key"
"""What a dispatch's schedule calls its region key, the key of the choice about its norm, and its measured pick."""


@dataclass(frozen=True, slots=True)
class Schedules:
    """Measured picks by region key; empty, every schedule is the heuristic's."""

    picks: tuple[tuple[str, Pick], ...] = ()

    @classmethod
    def of(cls, picks: Mapping[str, Mapping[str, int]]) -> Schedules:
        """From mappings, in one order."""
        return cls(tuple(sorted((key, tuple(sorted(pick.items()))) for key, pick in picks.items())))

    def mapping(self) -> dict[str, Pick]:
        """By key."""
        return dict(self.picks)


def legal(key: str, pick: Pick, caps: Caps) -> str | None:
    """Why a pick cannot be used for a region of that key on that target; None where it can."""
    kind = key.partition(" ")[0]
    width = caps.subgroup_width or 1
    threads = dict(pick).get("threads", caps.group_threads)
    ranges: dict[str, Sequence[int]] = {
        "threads": [t for t in (1 << n for n in range(5, 11)) if t % width == 0 and t <= caps.max_group_size],
    }
    if kind == "attention":
        ranges |= {
            "queries": range(1, QUERIES_MOST + 1),
            "splits": range(1, min(SPLITS_MOST, caps.max_groups[2]) + 1),
            "unroll": (1, 2, 4, 8, 16),
        }
        if "mma" in caps.features:
            ranges |= {"fragments": (0,), "warps": WARPS, "tiles": TILES, "positions": POSITIONS, "apart": (0, 1)}
    elif kind in ("contraction", "projection"):
        lanes = [width << n for n in range(6) if width << n <= threads] if shares_rows(caps) else [1]
        ranges |= {"lanes": lanes, "rows": range(1, ROWS_MOST + 1), "tile": range(1, 17), "fragments": (0,)}
        if WARPGROUP in caps.features:
            ranges["tokens"] = TOKENS
    elif kind == NORM:
        ranges = {"apart": (0, 1)}
    else:
        return f"{kind} has no schedule to choose"
    if not pick:
        return "it says nothing"
    for name, value in pick:
        if name not in ranges:
            return f"{kind} has no {name}"
        if type(value) is not int or value not in ranges[name]:
            return f"{name} is {value!r}: one of {', '.join(map(str, ranges[name]))}"
    return None


def picked_caps(caps: Caps, pick: Pick) -> Caps:
    """The target as the schedule of one region sees it: with its pick, and the threads and features that this names."""
    values = dict(pick)
    features = caps.features - {"mma"} if values.get("fragments") == 0 else caps.features
    return replace(caps, pick=pick, features=features, group_threads=values.get("threads", caps.group_threads))


def invariant_pick(pick: Pick) -> Pick:
    """What of a pick leaves the order alone in which a row is summed: all that a batch-invariant program may take."""
    return tuple((name, value) for name, value in pick if name in NEUTRAL)


def norm_of(graph: Graph, region: Region, layouts: Mapping[Value, WeightLayout]) -> str | None:
    """The key of the choice that put a region's norm inside it; None where it has none."""
    projection = region.projection
    if projection is None or projection.prologue is None:
        return None
    return norm_key(graph, projection.left, projection.segments, layouts)


def region_key(graph: Graph, region: Region, layouts: Mapping[Value, WeightLayout]) -> str | None:
    """`projection 1x576 f32 1*576:q4_1/64 … normed`, `attention 3x64 3 span=2048 depth=64 f32`; None where there is
    nothing to choose."""
    if region.attention is not None:
        *lead, rows, columns = region.attention.out.output.shape
        span, depth = region.attention.out.inputs[1].shape[-2], region.attention.scores.inputs[0].shape[-1]
        return (
            f"attention {rows}x{columns} {prod(lead)} span={span} depth={depth} {region.attention.rounded}"
            f"{'' if region.attention.mask is None else ' masked'}"
        )
    if region.projection is None or region.kind == "indexed_contraction":
        return None
    left = region.projection.left
    parts = [_segment_key(graph, s, layouts) for s in region.projection.segments]
    normed = [] if region.projection.prologue is None else ["normed"]
    return " ".join([region.kind, "x".join(map(str, left.shape)), str(left.dtype), *parts, *normed])


def norm_key(graph: Graph, left: Value, segments: Sequence[Segment], layouts: Mapping[Value, WeightLayout]) -> str:
    """The key of the choice whether the norm of `left` is computed inside what reads it, or apart."""
    parts = sorted(_segment_key(graph, s, layouts) for s in segments)
    return " ".join([NORM, "x".join(map(str, left.shape)), str(left.dtype), *parts])


def _segment_key(graph: Graph, segment: Segment, layouts: Mapping[Value, WeightLayout]) -> str:
    weight = weight_of(graph, segment.anchors[0])
    assert weight is not None
    layout = layouts[weight]
    block = f"/{segment.block}" if segment.block else ""
    return f"{len(segment.anchors)}*{layout.rows}:{layout.format.name}{block}"
