"""Contractions with matrices that rows choose: the experts of a layer read as stored, two of one input in one dispatch.

What a row's experts give is finished at its own place (a gate times what it lets through); the norm before them may
join, since every group can norm its own row.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import prod

from poot_executor.compile.classify import experts_of
from poot_executor.compile.locality import is_local
from poot_executor.compile.lower.blocks import block_columns, lane_words, row_units
from poot_executor.compile.program import Decline
from poot_executor.compile.reading import leaves_of, reads
from poot_executor.compile.region import Projection, Region, Regions, Segment
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.layout import WeightLayout


def fuse_experts(graph: Graph, regions: Regions, layouts: Mapping[Value, WeightLayout], caps: Caps) -> Regions:
    """Indexed contractions by stored experts as projections; what is not so simple stays and says why."""
    by_root = {r.root: r for r in regions.regions}
    position = {e.output: i for i, e in enumerate(graph.equations)}
    readers: dict[Value, int] = {}
    for region in regions.regions:
        for value in leaves_of(graph, region, regions.stored):
            readers[value] = readers.get(value, 0) + 1
    wanted, stored = set(graph.roots()), set(regions.stored)
    made: dict[Value, Region] = {}
    declines = list(regions.declines)
    for region in regions.regions:
        anchor = region.anchor
        if region.kind != "indexed_contraction" or anchor is None:
            continue
        shape = _shape(graph, anchor, layouts, caps)
        if isinstance(shape, str):
            declines.append(Decline("experts", position[anchor.output], shape))
            continue
        anchors = [anchor]
        for value in sorted(leaves_of(graph, region, stored), key=lambda v: v.id):
            other = by_root.get(value)
            if other is None or other.anchor is None or other.kind != "indexed_contraction":
                continue
            if value in wanted or readers[value] != 1 or len(anchors) > 1:
                continue
            if _alike(graph, anchor, other.anchor, layouts, caps) and other.root == other.anchor.output:
                anchors.insert(0, other.anchor)
        inner = frozenset(stored - {a.output for a in anchors} - {region.root})
        if not all(is_local(graph, region.root, a.output, 1, 1, inner) for a in anchors):
            anchors = [anchor]
        stored -= {a.output for a in anchors} - {region.root}
        segment = Segment(tuple(anchors), region.root, region.root, None, 0)
        made[region.root] = Region(
            region.kind, region.root, anchor, (), None, Projection(anchor.inputs[0], (segment,), None)
        )
    gone = regions.stored - stored
    kept = tuple(made.get(r.root, r) for r in regions.regions if r.root not in gone)
    return Regions(kept, frozenset(stored), tuple(declines), regions.cuts)


def _shape(graph: Graph, anchor: Equation, layouts: Mapping[Value, WeightLayout], caps: Caps) -> tuple[int, ...] | str:
    """What experts have in common that are read together, or why they are not read as stored."""
    weight = experts_of(graph, anchor)
    if weight is None:
        return "its matrices are no weight as it is stored"
    layout = layouts[weight]
    if weight.dtype is not DType.U8 and weight.shape[-1] * weight.dtype.size % 4:
        return f"rows of {weight.type} are not whole words"
    if len(layout.parts) != 1:
        return "the weight is in several parts"
    if anchor.output.shape[0] > caps.max_groups[2]:
        return f"the target launches {caps.max_groups[2]:,} groups along an axis"
    return (layout.rows, row_units(layout, caps), block_columns(layout), lane_words(layout, caps) or 0)


def _alike(graph: Graph, anchor: Equation, other: Equation, layouts: Mapping[Value, WeightLayout], caps: Caps) -> bool:
    same = anchor.inputs[0] == other.inputs[0] and anchor.inputs[2] == other.inputs[2]
    return same and _shape(graph, anchor, layouts, caps) == _shape(graph, other, layouts, caps)


def takes_norm(graph: Graph, region: Region, norm: Region, stored: Set[Value]) -> bool:
    """Can each group of a region of experts norm the row that it reads for itself?"""
    if region.projection is None or region.kind != "indexed_contraction":
        return False
    value, root = region.projection.left, norm.root
    while value != root:
        equation = graph.equation(value)
        if equation is None or value in stored - {root} or equation.op not in ("cast", "reshape", "gather"):
            return False
        source = equation.inputs[0]
        if source.shape[-1] != value.shape[-1] or (equation.op == "gather" and prod(source.shape[1:-1]) != 1):
            return False
        if equation.op == "gather" and reads(graph, equation.inputs[1], root):
            return False
        value = source
    (segment,) = region.projection.segments
    return not reads(graph, segment.domain, root, {a.output for a in segment.anchors} | stored - {segment.domain})
