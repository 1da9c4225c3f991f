"""Fusing around contractions with weights: what reads one input becomes one dispatch, with the norm before it and what
follows each.

Three steps, each over regions that the former made:

1. an epilogue that looks further than its own element (a rotation of pairs, a write into KV) joins the contraction it
reads; 2. contractions of one input join: by equal rows when one finishes both (gate and up), side by side otherwise (Q,
K and V); 3. the row reduction that makes the input joins as their prologue, computed by every group for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_executor.compile.attention import leaves_of, reads
from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Scene
from poot_executor.compile.locality import is_local
from poot_executor.compile.lower.blocks import block_columns, lane_words, row_units
from poot_executor.compile.lower.scatter import whole_words
from poot_executor.compile.precedence import Precedence
from poot_executor.compile.program import Decline
from poot_executor.compile.region import Projection, Region, Regions, Segment
from poot_executor.compile.schedule import contraction_schedule
from poot_executor.compile.schedule_fragments import STEP_ROWS
from poot_executor.compile.target import Caps
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.layout import WeightLayout

PROLOGUE_BYTES = 1 << 20
"""An input larger than this is normed once: recomputing it in every group would cost more than a dispatch."""


def fuse_projections(graph: Graph, regions: Regions, layouts: Mapping[Value, WeightLayout], caps: Caps) -> Regions:
    """Contractions with weights as projections, wherever the pieces fit."""
    return _Fuser(graph, regions, layouts, caps).run()


class _Fuser:
    def __init__(self, graph: Graph, regions: Regions, layouts: Mapping[Value, WeightLayout], caps: Caps) -> None:
        self.graph, self.layouts, self.caps = graph, layouts, caps
        self.stored = set(regions.stored)
        self.regions = list(regions.regions)
        self.by_root = {r.root: r for r in self.regions}
        self.position = {e.output: i for i, e in enumerate(graph.equations)}
        self.readers: dict[Value, list[Region]] = {}
        for region in self.regions:
            for value in leaves_of(graph, region, regions.stored):
                self.readers.setdefault(value, []).append(region)
        self.wanted = set(graph.roots())
        self.declines = list(regions.declines)
        self.precedence = Precedence(self.regions, self.readers)
        self.segments: dict[Value, list[tuple[int, Segment]]] = {}
        self.taken: set[Value] = set()

    def run(self) -> Regions:
        for region in self.regions:
            if region.root not in self.taken:
                self._finish(region)
        whole: list[Region] = []
        for region in self.regions:
            if region.kind == "contraction" and region.root not in self.taken:
                segment = Segment((self._anchor(region),), region.root, region.root, None, 0)
                if self._single(region):
                    self._add(segment, [region])
                else:
                    self.taken.add(region.root)
                    whole.append(self._region(Projection(self._anchor(region).inputs[0], (segment,), None)))
        merged: list[Region] = []
        for left, found in self.segments.items():
            prologue = self._prologue(left)
            segments = [s for _, s in sorted(found, key=lambda f: f[0])]
            if prologue is not None:
                self.stored.discard(prologue.root)
                if any(self._bindings([s], left, prologue) > self.caps.max_bindings for s in segments):
                    self.stored.add(prologue.root)
                    prologue = None
            if prologue is not None:
                self.taken.add(prologue.root)
            merged += [self._region(Projection(left, g, prologue)) for g in self._together(segments, left, prologue)]
        kept = [r for r in self.regions if r.root not in self.taken] + whole
        everything = sorted([*kept, *merged], key=lambda r: self.position[r.root])
        return Regions(tuple(everything), frozenset(self.stored), tuple(self.declines))

    def _anchor(self, region: Region) -> Equation:
        assert region.anchor is not None
        return region.anchor

    def _single(self, region: Region) -> bool:
        """Is the weight one part, so that one dispatch can read it?"""
        weight = weight_of(self.graph, self._anchor(region))
        return weight is not None and len(self.layouts[weight].parts) == 1

    def _finish(self, region: Region) -> None:
        """Step 1, and the first half of step 2: a region that finishes contractions of one input takes them in."""
        if region.kind not in ("pointwise", "scatter", "contraction"):
            return
        domain = self._domain(region)
        inner = [
            self.by_root[v] for v in leaves_of(self.graph, region, frozenset(self.stored)) if self._can_join(v, region)
        ]
        own = [region] if region.kind == "contraction" and self._single(region) else []
        if region.kind == "contraction" and not own:
            return
        candidates = [*own, *inner]
        if not inner or len(candidates) > 2:
            return
        lefts = {self._anchor(r).inputs[0] for r in candidates}
        shapes = {self._weight_shape(r) for r in candidates}
        if len(lefts) != 1 or len(shapes) != 1:
            return
        products = [self._anchor(r).output if r is region else r.root for r in candidates]
        reach = self._reach(region, domain, products, candidates)
        if isinstance(reach, str):
            self.declines.append(Decline("projection", self.position[region.root], reach))
            return
        scatter = self._anchor(region) if region.kind == "scatter" else None
        for joined in inner:
            self.stored.discard(joined.root)
            self.precedence.merge(region.root, joined.root)
        self._add(
            Segment(tuple(self._anchor(r) for r in candidates), region.root, domain, scatter, *reach), [region, *inner]
        )

    def _domain(self, region: Region) -> Value:
        return (
            self._anchor(region).inputs[2]
            if region.kind == "scatter" and self._anchor(region).op == "scatter_update"
            else region.root
        )

    def _can_join(self, value: Value, reader: Region) -> bool:
        made = self.by_root.get(value)
        return (
            made is not None
            and made is not reader
            and made.kind == "contraction"
            and value not in self.wanted
            and value not in self.taken
            and len(self.readers[value]) == 1
            and self._single(made)
            and made.root == self._anchor(made).output
        )

    def _weight_shape(self, region: Region) -> tuple[int, ...]:
        weight = weight_of(self.graph, self._anchor(region))
        assert weight is not None
        layout = self.layouts[weight]
        return (layout.rows, row_units(layout, self.caps), block_columns(layout), lane_words(layout, self.caps) or 0)

    def _reach(
        self, region: Region, domain: Value, products: Sequence[Value], candidates: Sequence[Region]
    ) -> tuple[int, int] | str:
        """The block and stride within which the epilogue looks, or why it does not fit."""
        stored = frozenset(self.stored - set(products) - {region.root})
        columns = products[0].shape[-1]
        if domain.type.count != products[0].type.count:
            return "its elements do not correspond to the products"
        if region.kind == "scatter" and self._anchor(region).op != "scatter_update":
            return "only row scatters join a contraction"
        if region.kind == "scatter" and not whole_words(self._anchor(region)):
            return "rows of narrow elements are not whole words"
        per_word = 4 // min(region.root.dtype.size, 4)
        for block, stride in self._reaches(domain, columns):
            if not all(is_local(self.graph, domain, p, block, stride, stored) for p in products):
                continue
            if block == 1 and region.kind != "scatter" and per_word == 1:
                return (0, 1)
            if stride > 1 and per_word > 1:
                continue
            whole = max(block, per_word)
            if columns % whole == 0 and self._has_schedule(candidates, whole, stride):
                return (whole, stride)
            return f"a group has no whole blocks of {whole} columns"
        return "it looks beyond the products of one block"

    def _reaches(self, domain: Value, columns: int) -> list[tuple[int, int]]:
        """Blocks to try, smallest reach first: one place, a pair of neighbours, a place in each half of the last axis,
        the last axis."""
        last = domain.shape[-1] if domain.shape else 1
        found = [(1, 1)]
        if columns % 2 == 0:
            found.append((2, 1))
        if columns % last == 0:
            found += [(last, last // 2)] if last % 2 == 0 and last > 2 else []
            found += [(last, 1)]
        return found

    def _has_schedule(self, candidates: Sequence[Region], block: int, stride: int) -> bool:
        rows, units, *_ = self._weight_shape(candidates[0])
        return (
            contraction_schedule(
                rows,
                units,
                1,
                self.caps,
                anchors=len(candidates),
                block=block,
                stride=stride,
            )
            is not None
        )

    def _add(self, segment: Segment, regions: Sequence[Region]) -> None:
        left = segment.anchors[0].inputs[0]
        self.taken.update(r.root for r in regions)
        self.segments.setdefault(left, []).append((self.position[segment.anchors[0].output], segment))

    def _together(self, segments: list[Segment], left: Value, prologue: Region | None) -> list[tuple[Segment, ...]]:
        """The second half of step 2: as few groups as may be of which no member waits for another, and whose buffers
        the target binds at once."""
        groups: list[list[Segment]] = []
        for segment in segments:
            open_ = [g for g in groups if self.precedence.independent(g[0].root, segment.root)]
            fits = [g for g in open_ if self._bindings([*g, segment], left, prologue) <= self.caps.max_bindings]
            if fits:
                self.precedence.merge(fits[0][0].root, segment.root)
                fits[0].append(segment)
                continue
            if groups:
                why = "the target binds too few buffers" if open_ else "it waits for another of its input"
                self.declines.append(Decline("projection", self.position[segment.anchors[0].output], why))
            groups.append([segment])
        return [tuple(group) for group in groups]

    def _bindings(self, segments: Sequence[Segment], left: Value, prologue: Region | None) -> int:
        """Buffers that a dispatch of these segments binds: each weight twice (see BlockReader), what is read, the
        roots."""
        scene = Scene(self.graph, frozenset(self.stored), self.layouts)
        reductions = prologue.reductions if prologue is not None else ()
        totals = {e.output for e in reductions}
        read = {leaf for v in (left, *(e.inputs[0] for e in reductions)) for leaf in scene.leaves(v, totals)}
        for segment in segments:
            products = {a.output for a in segment.anchors}
            if segment.domain not in products:
                own = scene.graph.equation(segment.domain) if segment.domain in self.stored else None
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

    def _prologue(self, left: Value) -> Region | None:
        source = self._source(left)
        region = self.by_root.get(source)
        if region is None or region.kind != "row_reduction" or region.anchor is not None or source in self.wanted:
            return None
        if source.shape[-1] != left.shape[-1] or source.type.nbytes > PROLOGUE_BYTES:
            return None
        if "mma" in self.caps.features and left.shape[0] > STEP_ROWS:
            return None  # Fragments stage many rows in any order, and would norm each of them for every group.
        readers = self.readers[source]
        if not all(r.root in self.taken for r in readers):
            return None
        segments = [s for _, s in self.segments[left]]
        joined = {a.output for s in segments for a in s.anchors}
        if any(reads(self.graph, s.domain, source, joined | self.stored - {s.domain}) for s in segments):
            return None  # An epilogue reads the normed input itself.
        for reader in readers:
            if reader.anchor is None or reader.anchor.output not in joined:
                return None
        return region

    def _source(self, value: Value) -> Value:
        """The stored value under reshapes and casts, which a contraction's input may wear."""
        while (
            value not in self.stored
            and (equation := self.graph.equation(value)) is not None
            and equation.op in ("reshape", "cast")
        ):
            value = equation.inputs[0]
        return value
