"""Contractions with weights: y[m, n] = Σₖ x[m, k] · w[n, k], each weight read once, in its stored precision.

One dispatch takes several weights over one input, the norm before it and what follows each of them inside (a
*projection*; with one weight and nothing around it, a *contraction*). The grid's first two axes run over the segments
one after another, the third over tiles of tokens. Every group norms its tokens for itself, which costs less than a
dispatch. Products that an epilogue looks at together, and sums that several subgroups share, pass through shared
memory; otherwise a thread stores straight from its registers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from math import prod

from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.activations import Column, activation_blocks
from poot_executor.compile.lower.blocks import BlockReader, lane_words
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.epilogue import Products, store_products, store_registers, totals_bytes
from poot_executor.compile.lower.products import Totals, accumulate, sum_lanes
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.lower.rows import row_totals
from poot_executor.compile.region import Projection, Region, Segment
from poot_executor.compile.schedule import ContractionSchedule, contraction_schedule, tile_most
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.handle import Handle
from poot_executor.layout import WeightLayout


def lower_projection(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """Every segment's products and epilogues: one dispatch, or one a part of a weight over the binding limit.

    Raises Unsupported by region where shared memory or the grid is too small.
    """
    projection = region.projection
    assert projection is not None
    hidden = {a.output for s in projection.segments for a in s.anchors} | set(region.roots)
    inner = Scene(scene.graph, scene.stored - hidden, scene.layouts)
    first = layout_of(scene, projection.segments[0].anchors[0])
    return [
        _Template(Frame(inner, caps, region.kind, caps.group_threads), projection, part).emit()
        for part in range(len(first.parts))
    ]


def layout_of(scene: Scene, anchor: Equation) -> WeightLayout:
    """The layout of the weight that a matmul multiplies by."""
    weight = weight_of(scene.graph, anchor)
    assert weight is not None
    return scene.layouts[weight]


def declare_reads(frame: Frame, projection: Projection) -> None:
    """Parameters for what prologue, input and epilogues read."""
    reductions = projection.prologue.reductions if projection.prologue is not None else ()
    totals = [e.output for e in reductions]
    frame.read(*(e.inputs[0] for e in reductions), projection.left, supplied=totals)
    for segment in projection.segments:
        products = [a.output for a in segment.anchors]
        if segment.domain not in products:
            frame.read(segment.domain, supplied=products)
        if segment.scatter is not None:
            frame.read(segment.scatter.inputs[1])


def token_totals(frame: Frame, projection: Projection, tokens: list[Handle], threads: int) -> list[list[Handle]]:
    """The prologue's reductions of each token, which every group computes for itself."""
    prologue = projection.prologue
    if prologue is None:
        return []
    columns = prologue.root.shape[-1]
    return [row_totals(frame, prologue.reductions, token, columns, threads) for token in tokens]


def supply_totals(frame: Frame, projection: Projection, totals: list[Handle]) -> None:
    """From now on, expressions read a token's reductions from these."""
    assert projection.prologue is not None
    for reduction, total in zip(projection.prologue.reductions, totals, strict=True):
        frame.supply(reduction.output, lambda _index, value=total: value)


class _Template:
    """One kernel's pieces, in the order in which they run."""

    def __init__(self, frame: Frame, projection: Projection, part: int) -> None:
        self.frame, self.b, self.projection, self.part = frame, frame.b, projection, part
        self.count, self.depth = projection.left.shape
        self.threads = frame.caps.group_threads
        self.readers = [[self._reader(a) for a in s.anchors] for s in projection.segments]
        self.tile, self.schedules = self._fitting()
        self.maps = [
            RowMap(p.columns, s.block, s.stride) for s, p in zip(projection.segments, self.schedules, strict=True)
        ]
        self.width = frame.caps.subgroup_width or 1

    def _reader(self, anchor: Equation) -> BlockReader:
        layout = layout_of(self.frame.scene, anchor)
        weight = weight_of(self.frame.scene.graph, anchor)
        assert weight is not None
        wide, narrow = (self.frame.weight_part(weight, self.part) for _ in range(2))
        return BlockReader(self.b, wide, narrow, layout, layout.parts[self.part], lane_words(layout, self.frame.caps))

    def _fitting(self) -> tuple[int, list[ContractionSchedule]]:
        """As many tokens a thread as shared memory has room for, and the schedule of each segment then."""
        segments, caps, most = self.projection.segments, self.frame.caps, 0
        for tile in range(min(self.count, tile_most(caps)), 0, -1):
            found = [self._schedule(s, r, tile) for s, r in zip(segments, self.readers, strict=True)]
            most = max(
                p.shared_bytes(len(s.anchors), s.block, caps) + totals_bytes(s, tile, p.columns)
                for s, p in zip(segments, found, strict=True)
            )
            if most <= caps.max_shared_bytes:
                return tile, found
        raise Unsupported(
            f"projection of {self.projection.left.type}",
            f"products of one row need {most:,} bytes of shared memory, the target has {caps.max_shared_bytes:,}",
        )

    def _schedule(self, segment: Segment, readers: list[BlockReader], tile: int) -> ContractionSchedule:
        units = self.depth // readers[0].columns * readers[0].pieces
        schedule = contraction_schedule(
            readers[0].part.rows,
            units,
            tile,
            self.frame.caps,
            anchors=len(readers),
            block=segment.block,
            stride=segment.stride,
            turns=bool(segment.reductions),
        )
        if schedule is None:
            raise Unsupported(f"projection {segment.root}", f"no group has whole blocks of {segment.block} columns")
        return schedule

    def emit(self) -> Draft:
        frame, b, projection = self.frame, self.b, self.projection
        declare_reads(frame, projection)
        outs = [frame.write(s.root, separate=True) for s in projection.segments]
        products = self._products()
        across = [m.groups(r[0].part.rows) for m, r in zip(self.maps, self.readers, strict=True)]
        flat = grid(sum(across), frame.caps)
        groups = (*flat[:2], -(-self.count // self.tile))
        tokens = [b.group_id(2) * self.tile + m for m in range(self.tile)]
        if self.count % self.tile:
            tokens = [b.min(token, self.count - 1) for token in tokens]
        totals = token_totals(frame, projection, tokens, self.threads)
        place = frame.flat_group(flat)
        start = 0
        for s, segment in enumerate(projection.segments):
            group = place - start
            with b.if_((place >= start) & (group < across[s])):
                self._segment(s, segment, outs[s], group, tokens, self._reads(s, tokens, totals), products[s])
            start += across[s]
        return frame.draft(
            groups,
            frame.nbytes(),
            threads=self.threads,
            lanes=self.schedules[0].lanes,
            tile=self.tile,
            rows=[p.rows * p.turns for p in self.schedules],
            weights=[len(s.anchors) for s in projection.segments],
            prologue=projection.prologue is not None,
            part=self.part,
        )

    def _products(self) -> list[Products | None]:
        """Each segment's products, where threads finish them together, in one shared memory as large as the greediest
        segment's."""
        shapes = [
            (self.tile, p.columns, len(s.anchors), max(1, p.lanes // self.width)) if self._shares(s, p) else None
            for s, p in zip(self.projection.segments, self.schedules, strict=True)
        ]
        held = [prod(shape) for shape in shapes if shape is not None]
        if not held:
            return [None] * len(shapes)
        shared = self.b.shared("results", DType.F32, max(held))
        return [None if shape is None else Products(shared, *shape) for shape in shapes]

    def _shares(self, segment: Segment, schedule: ContractionSchedule) -> bool:
        return segment.block > 0 or schedule.lanes > 1

    def _reads(self, s: int, tokens: list[Handle], totals: list[list[Handle]]) -> list[Callable[[Handle], Column]]:
        """Each token's blocks of activations as a segment takes them, normed by the totals."""
        frame, projection = self.frame, self.projection
        uniform = self.schedules[s].lanes == 1
        read = activation_blocks(frame, projection.left, self.readers[s][0].run, self.threads, uniform=uniform)
        prologue = projection.prologue
        if prologue is None:
            return [lambda first, token=token: read(token, first) for token in tokens]

        def normed(m: int) -> Callable[[Handle], Column]:
            def block(first: Handle) -> Column:
                supply_totals(frame, projection, totals[m])
                return read(tokens[m], first)

            return block

        return [normed(m) for m in range(len(tokens))]

    def _segment(
        self,
        s: int,
        segment: Segment,
        out: BufferRef,
        group: Handle,
        tokens: list[Handle],
        reads: list[Callable[[Handle], Column]],
        products: Products | None,
    ) -> None:
        b, schedule, rows_of = self.b, self.schedules[s], self.maps[s]
        slot = b.thread_id() // schedule.lanes if schedule.lanes > 1 else b.thread_id()
        slots = self.threads // schedule.lanes
        part = self.readers[s][0].part

        def multiply(first: Handle | int) -> tuple[list[Handle], list[Handle], list[Totals]]:
            places = [slot + (first + j * slots) for j in range(schedule.rows)]
            rows = [rows_of.row(group, place) for place in places]
            return places, rows, accumulate(b, self.readers[s], reads, rows, self.depth, schedule.lanes)

        if products is None:
            _, rows, totals = multiply(0)
            store_registers(self.frame, segment, out, tokens, rows, totals, part)
            return
        # A loop only where there are several turns.
        with b.range(schedule.turns, name="turn") if schedule.turns > 1 else nullcontext() as turn:
            places, _, totals = multiply(0 if turn is None else turn * (slots * schedule.rows))
            if schedule.lanes > 1:
                sum_lanes(b, totals, schedule.lanes, self.width)
            self._share(schedule, places, totals, products)
        b.barrier()
        first = b.group_id(2) * self.tile
        store_products(self.frame, segment, out, products, rows_of, group, first, self.count, part, self.threads)

    def _share(
        self, schedule: ContractionSchedule, places: list[Handle], totals: list[Totals], products: Products
    ) -> None:
        """One lane of each subgroup stores what it summed (or every thread, where each has its own rows)."""
        b = self.b
        lane = b.thread_id() % min(schedule.lanes, self.width) if schedule.lanes > 1 else b.const(0, DType.I32)
        partial = b.thread_id() % schedule.lanes // self.width if products.partials > 1 else b.const(0, DType.I32)
        with b.if_(lane == 0):
            for w, total in enumerate(totals):
                for m in range(self.tile):
                    for j, place in enumerate(places):
                        products.shared[products.place(partial, w, m, place)] = total[m][j].get()
