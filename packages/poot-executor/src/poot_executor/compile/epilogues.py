"""What follows contractions joins them: an epilogue within its own element or block, or one that finishes two."""

from __future__ import annotations

from collections.abc import Sequence, Set

from poot_executor.compile.blocks_between import blocks_between, whole_block
from poot_executor.compile.classify import operations, weight_of
from poot_executor.compile.fusing import Fusing
from poot_executor.compile.locality import is_local
from poot_executor.compile.lower.blocks import block_columns, lane_words, row_units
from poot_executor.compile.lower.scatter import whole_words
from poot_executor.compile.program import Decline
from poot_executor.compile.region import Region, Segment
from poot_executor.compile.schedule import contraction_schedule
from poot_executor.graph.graph import Equation, Value

BLOCK_BYTES = 512 << 10
"""More than this one group does not read by itself for a norm over its columns: at the some 100 GB/s that a group gets,
it would take longer than the dispatches that it spares."""


class Epilogues:
    """Joins the regions that finish contractions to those."""

    def __init__(self, state: Fusing) -> None:
        self.state = state

    def join(self, region: Region) -> None:
        """Step 1, and the first half of step 2: a region that finishes contractions of one input takes them in."""
        if region.kind not in ("pointwise", "scatter", "contraction", "row_reduction"):
            return
        if region.kind == "contraction" and not self.state.single(region):
            return
        if region.kind == "row_reduction" and region.anchor is not None:
            return
        beside = self.state.beside(region)
        kept = self.state.kept | beside
        between = blocks_between(region, self.state.leaves, self.state.by_root, self.state.readers, kept)
        why = self._take_in(region, between, beside)
        if why is not None and between:
            why = None if self._take_in(region, [], beside) is None else why
        if why:
            self.state.declines.append(Decline("projection", self.state.position[region.root], why))

    def _take_in(self, region: Region, between: Sequence[Region], beside: Set[Value]) -> str | None:
        """Take in the contractions that a region finishes, with the regions between, but none of those `beside`: None
        where that is done. Otherwise why not, nothing where there is none to be taken in."""
        finishers = {region.root, *(r.root for r in between)}
        leaves = sorted({v for r in (region, *between) for v in self.state.leaves(r)} - beside, key=lambda v: v.id)
        inner = [self.state.by_root[v] for v in leaves if v not in finishers and self._can_join(v, finishers)]
        candidates = [region, *inner] if region.kind == "contraction" else inner
        if not inner or len(candidates) > 2:
            return ""
        lefts = {self.state.anchor(r).inputs[0] for r in candidates}
        shapes = {self._weight_shape(r) for r in candidates}
        if len(lefts) != 1 or len(shapes) != 1:
            return ""
        products = [self.state.anchor(r).output for r in candidates]
        reductions = tuple(e for r in (*between, region) for e in r.reductions)
        reductions = tuple(sorted(reductions, key=lambda e: self.state.position[e.output]))
        gone = finishers | {r.root for r in candidates}
        reach = self._reach(region, products, candidates, reductions, frozenset(self.state.stored - gone))
        if isinstance(reach, str):
            return reach
        scatter = self.state.anchor(region) if region.kind == "scatter" else None
        for joined in (*between, *inner):
            self.state.stored.discard(joined.root)
            # What declined alone became part of this.
            place = self.state.position[joined.root]
            self.state.declines = [
                d for d in self.state.declines if d.equation != place or d.matcher != "row_reduction"
            ]
            self.state.precedence.merge(region.root, joined.root)
        anchors = tuple(self.state.anchor(r) for r in candidates)
        segment = Segment(anchors, region.root, self._domain(region), scatter, *reach, reductions)
        self.state.add(segment, [region, *between, *inner])
        return None

    def _domain(self, region: Region) -> Value:
        return (
            self.state.anchor(region).inputs[2]
            if region.kind == "scatter" and self.state.anchor(region).op == "scatter_update"
            else region.root
        )

    def _can_join(self, value: Value, finishers: Set[Value]) -> bool:
        """Is a value the product of a contraction, or one with a short epilogue, that nothing else reads?"""
        made = self.state.by_root.get(value)
        return (
            made is not None
            and made.kind == "contraction"
            and value not in (self.state.wanted if made.root == self.state.anchor(made).output else self.state.kept)
            and value not in self.state.taken
            and all(r.root in finishers for r in self.state.readers[value])
            and self.state.single(made)
            and operations(self.state.graph, value, self.state.stored - {value}) is not None
        )

    def _weight_shape(self, region: Region) -> tuple[int, ...]:
        weight = weight_of(self.state.graph, self.state.anchor(region))
        assert weight is not None
        layout = self.state.layouts[weight]
        return (
            layout.rows,
            row_units(layout, self.state.caps),
            block_columns(layout),
            lane_words(layout, self.state.caps) or 0,
        )

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
        if region.kind == "scatter" and self.state.anchor(region).op != "scatter_update":
            return "only row scatters join a contraction"
        if region.kind == "scatter" and not whole_words(self.state.anchor(region)):
            return "rows of narrow elements are not whole words"
        per_word = 4 // min(region.root.dtype.size, 4)
        reaches = self._reaches(domain, columns)
        if reductions:
            whole = whole_block(self.state.graph, reductions, products, stored)
            if isinstance(whole, str):
                return whole
            if whole == columns and len(self._siblings(candidates[0])) == len(candidates):
                return "a norm over whole rows looks at every group's products"
            nbytes = whole * self._row_bytes(candidates)
            if nbytes > BLOCK_BYTES and not self._has_schedule(candidates, whole, 1):
                return f"one group would read all {nbytes:,} bytes of a block of {whole} columns"
            reaches = [(whole, 1)]
        for block, stride in reaches:
            if not all(is_local(self.state.graph, domain, p, block, stride, stored) for p in products):
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
        left = self.state.anchor(region).inputs[0]
        return [r for r in self.state.regions if r.kind == "contraction" and self.state.anchor(r).inputs[0] == left]

    def _row_bytes(self, candidates: Sequence[Region]) -> int:
        """Bytes of a row of every weight."""
        weights = [weight_of(self.state.graph, self.state.anchor(r)) for r in candidates]
        return sum(
            self.state.layouts[w].parts[0].nbytes // self.state.layouts[w].parts[0].rows
            for w in weights
            if w is not None
        )

    def _has_schedule(self, candidates: Sequence[Region], block: int, stride: int, *, turns: bool = False) -> bool:
        rows, units, *_ = self._weight_shape(candidates[0])
        return (
            contraction_schedule(
                rows,
                units,
                1,
                self.state.caps,
                anchors=len(candidates),
                block=block,
                stride=stride,
                turns=turns,
            )
            is not None
        )
