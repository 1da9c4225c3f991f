"""Regions while they join around contractions with weights: which are taken, what is stored, who reads whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_executor.compile.classify import weight_of
from poot_executor.compile.precedence import Precedence
from poot_executor.compile.reading import leaves_of, leaves_under
from poot_executor.compile.region import Region, Regions, Segment
from poot_executor.compile.target import Caps, Pick
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.layout import WeightLayout


class Fusing:
    """What the steps of `projections` share: `segments` by the input that they read, with their places; in `taken` the
    roots of regions that became part of one; in `declines` why others did not."""

    def __init__(
        self,
        graph: Graph,
        regions: Regions,
        layouts: Mapping[Value, WeightLayout],
        caps: Caps,
        norms: Mapping[str, Pick],
    ) -> None:
        self.graph, self.layouts, self.caps, self.norms = graph, layouts, caps, norms
        self.stored = set(regions.stored)
        self.regions = list(regions.regions)
        self.by_root = {r.root: r for r in self.regions}
        self.position = {e.output: i for i, e in enumerate(graph.equations)}
        self.readers: dict[Value, list[Region]] = {}
        for region in self.regions:
            for value in leaves_of(graph, region, regions.stored):
                self.readers.setdefault(value, []).append(region)
        self.wanted = set(graph.roots())
        self.cuts = regions.cuts
        self.kept = self.wanted | self.cuts
        self.declines = list(regions.declines)
        self.precedence = Precedence(self.regions, self.readers)
        self.segments: dict[Value, list[tuple[int, Segment]]] = {}
        self.taken: set[Value] = set()

    def anchor(self, region: Region) -> Equation:
        """The contraction or scatter that a region is around."""
        assert region.anchor is not None
        return region.anchor

    def single(self, region: Region) -> bool:
        """Is the weight one part, so that one dispatch can read it?"""
        weight = weight_of(self.graph, self.anchor(region))
        return weight is not None and len(self.layouts[weight].parts) == 1

    def leaves(self, region: Region) -> set[Value]:
        """What it reads that is stored, as things stand."""
        return leaves_of(self.graph, region, frozenset(self.stored))

    def beside(self, region: Region) -> set[Value]:
        """What a scatter reads besides its updates: the rows that stay, and where the others go."""
        if region.kind != "scatter" or self.anchor(region).op != "scatter_update":
            return set()
        data, index, _ = self.anchor(region).inputs
        return leaves_under(self.graph, (data, index), frozenset(self.stored))

    def add(self, segment: Segment, regions: Sequence[Region]) -> None:
        """Let `regions` be a segment of the input that it reads."""
        left = segment.anchors[0].inputs[0]
        self.taken.update(r.root for r in regions)
        self.segments.setdefault(left, []).append((self.position[segment.anchors[0].output], segment))
