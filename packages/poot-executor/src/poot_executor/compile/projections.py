"""Fusing around contractions with weights: what reads one input becomes one dispatch, with the norm before it and what
follows each.

Three steps, each over regions that the former made:

1. an epilogue that looks further than its own element (a rotation of pairs, a write into KV) joins the contraction it
reads; 2. contractions of one input join: by equal rows when one finishes both (gate and up), side by side otherwise (Q,
K and V); 3. the row reduction that makes the input joins as their prologue, computed by every group for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType

from poot_executor.compile.blocks_between import blocks_between, whole_block
from poot_executor.compile.classify import operations, weight_of
from poot_executor.compile.experts import fuse_experts, takes_norm
from poot_executor.compile.expression import Scene
from poot_executor.compile.extent import long_expressions
from poot_executor.compile.locality import is_local
from poot_executor.compile.lower.blocks import block_columns, lane_words, row_units
from poot_executor.compile.lower.scatter import whole_words
from poot_executor.compile.norm_reads import NORM_READS, norm_reads
from poot_executor.compile.precedence import Precedence
from poot_executor.compile.program import Decline
from poot_executor.compile.reading import leaves_of, reads
from poot_executor.compile.region import Projection, Region, Regions, Segment
from poot_executor.compile.schedule import contraction_schedule
from poot_executor.compile.schedule_fragments import STEP_ROWS
from poot_executor.compile.schedule_picks import MEASURED, norm_key
from poot_executor.compile.schedule_tile import tile_schedule
from poot_executor.compile.target import Caps, Pick
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.layout import WeightLayout

NO_NORMS: Mapping[str, Pick] = MappingProxyType({})
PROLOGUE_BYTES = 1 << 20
"""An input larger than this is normed once: recomputing it in every group would cost more than a dispatch."""
BLOCK_BYTES = 512 << 10
"""More than this one group does not read by itself for a norm over its columns: at the some 100 GB/s that a group gets,
it would take longer than the dispatches that it spares."""


def fuse_projections(
    graph: Graph,
    regions: Regions,
    layouts: Mapping[Value, WeightLayout],
    caps: Caps,
    norms: Mapping[str, Pick] = NO_NORMS,
) -> Regions:
    """Contractions with weights as projections, wherever the pieces fit. `norms` says by `norm_key` which norms were
    measured to be faster apart from what reads them."""
    return _Fuser(graph, fuse_experts(graph, regions, layouts, caps), layouts, caps, norms).run()


class _Fuser:
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
        self.kept = self.wanted | long_expressions(graph)
        self.declines = list(regions.declines)
        self.precedence = Precedence(self.regions, self.readers)
        self.segments: dict[Value, list[tuple[int, Segment]]] = {}
        self.taken: set[Value] = set()

    def run(self) -> Regions:
        # Row reductions last: one may be between a contraction and what finishes it.
        for region in sorted(self.regions, key=lambda r: r.kind == "row_reduction"):
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
        normed: dict[Value, Region] = {}
        for left, found in self.segments.items():
            prologue = self._prologue(left)
            segments = [s for _, s in sorted(found, key=lambda f: f[0])]
            if prologue is not None:
                self.stored.discard(prologue.root)
                experts = [r.projection for r in self._experts(prologue) if r.projection is not None]
                counts = [self._bindings([s], left, prologue) for s in segments]
                counts += [self._bindings(e.segments, e.left, prologue) + 1 for e in experts]
                if any(count > self.caps.max_bindings for count in counts):
                    self.stored.add(prologue.root)
                    prologue = None
            if prologue is not None:
                self.taken.add(prologue.root)
                normed.update((r.root, prologue) for r in self._experts(prologue))
            merged += [self._region(Projection(left, g, prologue)) for g in self._together(segments, left, prologue)]
        kept = [_after(r, normed.get(r.root)) for r in self.regions if r.root not in self.taken] + whole
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
        if region.kind not in ("pointwise", "scatter", "contraction", "row_reduction"):
            return
        if region.kind == "contraction" and not self._single(region):
            return
        if region.kind == "row_reduction" and region.anchor is not None:
            return
        between = blocks_between(region, self._leaves, self.by_root, self.readers, self.kept)
        why = self._join(region, between)
        if why is not None and between:
            why = None if self._join(region, []) is None else why
        if why:
            self.declines.append(Decline("projection", self.position[region.root], why))

    def _join(self, region: Region, between: Sequence[Region]) -> str | None:
        """Take in the contractions that a region finishes, with the regions between: None where that is done. Otherwise
        why not, nothing where there is none to be taken in."""
        finishers = {region.root, *(r.root for r in between)}
        leaves = sorted({v for r in (region, *between) for v in self._leaves(r)}, key=lambda v: v.id)
        inner = [self.by_root[v] for v in leaves if v not in finishers and self._can_join(v, finishers)]
        candidates = [region, *inner] if region.kind == "contraction" else inner
        if not inner or len(candidates) > 2:
            return ""
        lefts = {self._anchor(r).inputs[0] for r in candidates}
        shapes = {self._weight_shape(r) for r in candidates}
        if len(lefts) != 1 or len(shapes) != 1:
            return ""
        products = [self._anchor(r).output for r in candidates]
        reductions = tuple(e for r in (*between, region) for e in r.reductions)
        reductions = tuple(sorted(reductions, key=lambda e: self.position[e.output]))
        gone = finishers | {r.root for r in candidates}
        reach = self._reach(region, products, candidates, reductions, frozenset(self.stored - gone))
        if isinstance(reach, str):
            return reach
        scatter = self._anchor(region) if region.kind == "scatter" else None
        for joined in (*between, *inner):
            self.stored.discard(joined.root)
            # What declined alone became part of this.
            place = self.position[joined.root]
            self.declines = [d for d in self.declines if d.equation != place or d.matcher != "row_reduction"]
            self.precedence.merge(region.root, joined.root)
        anchors = tuple(self._anchor(r) for r in candidates)
        segment = Segment(anchors, region.root, self._domain(region), scatter, *reach, reductions)
        self._add(segment, [region, *between, *inner])
        return None

    def _leaves(self, region: Region) -> set[Value]:
        return leaves_of(self.graph, region, frozenset(self.stored))

    def _domain(self, region: Region) -> Value:
        return (
            self._anchor(region).inputs[2]
            if region.kind == "scatter" and self._anchor(region).op == "scatter_update"
            else region.root
        )

    def _can_join(self, value: Value, finishers: Set[Value]) -> bool:
        """Is a value the product of a contraction, or one with a short epilogue, that nothing else reads?"""
        made = self.by_root.get(value)
        return (
            made is not None
            and made.kind == "contraction"
            and value not in (self.wanted if made.root == self._anchor(made).output else self.kept)
            and value not in self.taken
            and all(r.root in finishers for r in self.readers[value])
            and self._single(made)
            and operations(self.graph, value, self.stored - {value}) is not None
        )

    def _weight_shape(self, region: Region) -> tuple[int, ...]:
        weight = weight_of(self.graph, self._anchor(region))
        assert weight is not None
        layout = self.layouts[weight]
        return (layout.rows, row_units(layout, self.caps), block_columns(layout), lane_words(layout, self.caps) or 0)

    def _reach(
        self,
        region: Region,
        products: Sequence[Value],
        candidates: Sequence[Region],
        reductions: Sequence[Equation],
        stored: frozenset[Value],
    ) -> tuple[int, int] | str:
        """The block and stride within which the epilogue looks, or why it does not fit."""
        domain = self._domain(region)
        columns = products[0].shape[-1]
        if domain.type.count != products[0].type.count:
            return "" if region.kind == "row_reduction" else "its elements do not correspond to the products"
        if region.kind == "scatter" and self._anchor(region).op != "scatter_update":
            return "only row scatters join a contraction"
        if region.kind == "scatter" and not whole_words(self._anchor(region)):
            return "rows of narrow elements are not whole words"
        per_word = 4 // min(region.root.dtype.size, 4)
        reaches = self._reaches(domain, columns)
        if reductions:
            whole = whole_block(self.graph, reductions, products, stored)
            if isinstance(whole, str):
                return whole
            if whole == columns and len(self._siblings(candidates[0])) == len(candidates):
                return "a norm over whole rows looks at every group's products"
            nbytes = whole * self._row_bytes(candidates)
            if nbytes > BLOCK_BYTES and not self._has_schedule(candidates, whole, 1):
                return f"one group would read all {nbytes:,} bytes of a block of {whole} columns"
            reaches = [(whole, 1)]
        for block, stride in reaches:
            if not all(is_local(self.graph, domain, p, block, stride, stored) for p in products):
                continue
            if block == 1 and region.kind != "scatter" and per_word == 1:
                return (0, 1)
            if stride > 1 and per_word > 1:
                continue
            whole = max(block, per_word)
            if columns % whole == 0 and self._has_schedule(candidates, whole, stride, turns=bool(reductions)):
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

    def _siblings(self, region: Region) -> list[Region]:
        """The contractions of one input."""
        left = self._anchor(region).inputs[0]
        return [r for r in self.regions if r.kind == "contraction" and self._anchor(r).inputs[0] == left]

    def _row_bytes(self, candidates: Sequence[Region]) -> int:
        """Bytes of a row of every weight."""
        weights = [weight_of(self.graph, self._anchor(r)) for r in candidates]
        return sum(self.layouts[w].parts[0].nbytes // self.layouts[w].parts[0].rows for w in weights if w is not None)

    def _has_schedule(self, candidates: Sequence[Region], block: int, stride: int, *, turns: bool = False) -> bool:
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
                turns=turns,
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
        if self._tiles(left):
            return None  # Likewise.
        experts = self._experts(region)
        readers = [r for r in self.readers[source] if r not in experts]
        if not all(r.root in self.taken for r in readers):
            return None
        segments = [s for _, s in self.segments[left]]
        joined = {a.output for s in segments for a in s.anchors}
        if any(reads(self.graph, s.domain, source, joined | self.stored - {s.domain}) for s in segments):
            return None  # An epilogue reads the normed input itself.
        for reader in readers:
            if reader.anchor is None or reader.anchor.output not in joined:
                return None
        measured = dict(self.norms.get(norm_key(self.graph, left, segments, self.layouts), ())).get("apart")
        reads_of_norm = norm_reads(self._weights(left), left, source, self.caps)
        if measured or (measured is None and reads_of_norm > NORM_READS):
            why = f"its groups would read {reads_of_norm:,} bytes for their norms"
            if measured:
                why = f"{MEASURED}: a norm of its own is faster"
            self.declines.append(Decline("projection", self.position[region.root], why))
            return None
        return region

    def _experts(self, norm: Region) -> list[Region]:
        """Regions of experts whose groups can norm their rows for themselves."""
        return [r for r in self.readers[norm.root] if takes_norm(self.graph, r, norm, self.stored)]

    def _tiles(self, left: Value) -> bool:
        """Do tiles of many rows take what reads this input?"""
        return tile_schedule(self._weights(left), left.shape[0], left.dtype, self.caps) is not None

    def _weights(self, left: Value) -> list[tuple[WeightLayout, Segment]]:
        """The first weight of each segment that reads this input."""
        weights = [(weight_of(self.graph, s.anchors[0]), s) for _, s in self.segments[left]]
        return [(self.layouts[weight], s) for weight, s in weights if weight is not None]

    def _source(self, value: Value) -> Value:
        """The stored value under reshapes and casts, which a contraction's input may wear."""
        while (
            value not in self.stored
            and (equation := self.graph.equation(value)) is not None
            and equation.op in ("reshape", "cast")
        ):
            value = equation.inputs[0]
        return value


def _after(region: Region, norm: Region | None) -> Region:
    """A region of experts with the norm before it."""
    if norm is None or region.projection is None:
        return region
    return replace(region, projection=replace(region.projection, prologue=norm))
