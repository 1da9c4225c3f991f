"""Fusing around contractions with weights: what reads one input becomes one dispatch, with the norm before it and what
follows each.

Three steps, each over regions that the former made:

1. an epilogue that looks further than its own element (a rotation of pairs, a write into KV) joins the contraction it
reads; 2. contractions of one input join: by equal rows when one finishes both (gate and up), side by side otherwise (Q,
K and V); 3. the row reduction that makes the input joins as their prologue, computed by every group for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from poot_executor.compile.epilogues import Epilogues
from poot_executor.compile.experts import fuse_experts
from poot_executor.compile.expression import Scene
from poot_executor.compile.fusing import Fusing
from poot_executor.compile.program import Decline
from poot_executor.compile.prologues import Prologues
from poot_executor.compile.region import Projection, Region, Regions, Segment
from poot_executor.compile.target import Caps, Pick
from poot_executor.graph.graph import Graph, Value
from poot_executor.layout import WeightLayout

NO_NORMS: Mapping[str, Pick] = MappingProxyType({})


def fuse_projections(
    graph: Graph,
    regions: Regions,
    layouts: Mapping[Value, WeightLayout],
    caps: Caps,
    norms: Mapping[str, Pick] = NO_NORMS,
) -> Regions:
    """Contractions with weights as projections, wherever the pieces fit. `norms` says by `norm_key` which norms were
    measured to be faster apart from what reads them."""
    return _Fuser(Fusing(graph, fuse_experts(graph, regions, layouts, caps), layouts, caps, norms)).run()


class _Fuser:
    def __init__(self, state: Fusing) -> None:
        self.state = state
        self.epilogues, self.prologues = Epilogues(state), Prologues(state)

    def run(self) -> Regions:
        # Row reductions last: one may be between a contraction and what finishes it.
        for region in sorted(self.state.regions, key=lambda r: r.kind == "row_reduction"):
            if region.root not in self.state.taken:
                self.epilogues.join(region)
        whole: list[Region] = []
        for region in self.state.regions:
            if region.kind == "contraction" and region.root not in self.state.taken:
                segment = Segment((self.state.anchor(region),), region.root, region.root, None, 0)
                if self.state.single(region):
                    self.state.add(segment, [region])
                else:
                    self.state.taken.add(region.root)
                    whole.append(self._region(Projection(self.state.anchor(region).inputs[0], (segment,), None)))
        merged: list[Region] = []
        normed: dict[Value, Region] = {}
        for left, found in self.state.segments.items():
            prologue = self.prologues.of(left)
            segments = [s for _, s in sorted(found, key=lambda f: f[0])]
            if prologue is not None:
                self.state.stored.discard(prologue.root)
                experts = [r.projection for r in self.prologues.experts(prologue) if r.projection is not None]
                counts = [self._bindings([s], left, prologue) for s in segments]
                counts += [self._bindings(e.segments, e.left, prologue) + 1 for e in experts]
                if any(count > self.state.caps.max_bindings for count in counts):
                    self.state.stored.add(prologue.root)
                    prologue = None
            if prologue is not None:
                self.state.taken.add(prologue.root)
                normed.update((r.root, prologue) for r in self.prologues.experts(prologue))
            merged += [self._region(Projection(left, g, prologue)) for g in self._together(segments, left, prologue)]
        kept = [_after(r, normed.get(r.root)) for r in self.state.regions if r.root not in self.state.taken] + whole
        everything = sorted([*kept, *merged], key=lambda r: self.state.position[r.root])
        return Regions(tuple(everything), frozenset(self.state.stored), tuple(self.state.declines), self.state.cuts)

    def _together(self, segments: list[Segment], left: Value, prologue: Region | None) -> list[tuple[Segment, ...]]:
        """The second half of step 2: as few groups as may be of which no member waits for another, and whose buffers
        the target binds at once."""
        groups: list[list[Segment]] = []
        for segment in segments:
            open_ = [g for g in groups if self.state.precedence.independent(g[0].root, segment.root)]
            fits = [g for g in open_ if self._bindings([*g, segment], left, prologue) <= self.state.caps.max_bindings]
            if fits:
                self.state.precedence.merge(fits[0][0].root, segment.root)
                fits[0].append(segment)
                continue
            if groups:
                why = "the target binds too few buffers" if open_ else "it waits for another of its input"
                self.state.declines.append(Decline("projection", self.state.position[segment.anchors[0].output], why))
            groups.append([segment])
        return [tuple(group) for group in groups]

    def _bindings(self, segments: Sequence[Segment], left: Value, prologue: Region | None) -> int:
        """Buffers that a dispatch of these segments binds: each weight twice (see BlockReader), what is read, the
        roots."""
        scene = Scene(self.state.graph, frozenset(self.state.stored), self.state.layouts)
        reductions = prologue.reductions if prologue is not None else ()
        totals = {e.output for e in reductions}
        read = {leaf for v in (left, *(e.inputs[0] for e in reductions)) for leaf in scene.leaves(v, totals)}
        for segment in segments:
            products = {a.output for a in segment.anchors}
            if segment.domain not in products:
                own = scene.graph.equation(segment.domain) if segment.domain in self.state.stored else None
                for value in own.inputs if own is not None else (segment.domain,):
                    read.update(scene.leaves(value, products))
            if segment.scatter is not None:
                read.update(scene.leaves(segment.scatter.inputs[1], set()))
        return 2 * sum(len(s.anchors) for s in segments) + len(read) + len(segments)

    def _region(self, projection: Projection) -> Region:
        first = projection.segments[0]
        alone = (
            len(projection.segments) == 1
            and projection.prologue is None
            and len(first.anchors) == 1
            and first.block == 0
        )
        return Region("contraction" if alone else "projection", first.root, None, (), None, projection)


def _after(region: Region, norm: Region | None) -> Region:
    """A region of experts with the norm before it."""
    if norm is None or region.projection is None:
        return region
    return replace(region, projection=replace(region.projection, prologue=norm))
