"""Contractions with weights by matrix fragments: weights go straight into registers, activations through shared memory.

The same dispatches as `projection.py` makes, from other products. A group stages its activation rows, normed where a
norm comes before, as halves in the order in which lanes hold weights; each of its subgroups multiplies fragments of 16
weight rows by 8 columns; the sums go through shared memory into the epilogue. A block of quants is multiplied exactly
and then scaled, and its minimum meets the sum of the block's activations: scale · Σ q·x + minimum · Σ x, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.epilogue import Products, store_products
from poot_executor.compile.lower.fragment_staging import Activations
from poot_executor.compile.lower.fragment_weights import FragmentWeight, Loaded
from poot_executor.compile.lower.projection import declare_reads, layout_of, token_totals
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.region import Projection, Region, Segment
from poot_executor.compile.schedule import fits_block
from poot_executor.compile.schedule_fragments import (
    COLUMNS,
    PARTS,
    ROWS,
    FragmentSchedule,
    fragment_schedule,
    unit_columns,
)
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import KernelBuilder, Var
from poot_executor.kernel.handle import Handle
from poot_executor.layout import LANES

SUMS = 4
"""Sums of a fragment that a lane has: columns 2t and 2t + 1 of rows g and g + 8."""
PIECE_BYTES = 8 << 10
"""Shared memory for the products that are finished at a time."""


def lower_fragments(scene: Scene, region: Region, caps: Caps) -> list[Draft] | None:
    """A projection's dispatches, or None where its weights, activations or shape are not for fragments."""
    projection = region.projection
    assert projection is not None
    segments = projection.segments
    layouts = [layout_of(scene, a) for s in segments for a in s.anchors]
    count = projection.left.shape[0]
    schedule = fragment_schedule(
        layouts,
        count,
        projection.left.dtype,
        caps,
        anchors=max(len(s.anchors) for s in segments),
        rows=sum(layout_of(scene, s.anchors[0]).rows for s in segments),
    )
    if schedule is None or not all(fits_block(schedule.rows, s.block, s.stride) for s in segments):
        return None
    if any((schedule.chunk // unit_columns(layout)) % schedule.slices for layout in layouts):
        return None
    if projection.prologue is not None and count > schedule.tokens:
        return None
    hidden = {a.output for s in segments for a in s.anchors} | set(region.roots)
    inner = Scene(scene.graph, scene.stored - hidden, scene.layouts)
    parts = range(len(layouts[0].parts))
    return [
        _Template(Frame(inner, caps, region.kind, schedule.threads), projection, schedule, part).emit()
        for part in parts
    ]


class _Waiting:
    """What was loaded for later: words that a loop carries."""

    def __init__(self, b: KernelBuilder, loaded: list[Loaded]) -> None:
        self._vars = [[b.var(word, name="word") for word in words] for words in loaded]

    def get(self) -> list[Loaded]:
        """The words."""
        return [[var.get() for var in words] for words in self._vars]

    def set(self, loaded: list[Loaded]) -> None:
        """Other words."""
        for variables, words in zip(self._vars, loaded, strict=True):
            for variable, word in zip(variables, words, strict=True):
                variable.set(word)


class _Template:
    """One kernel's pieces, in the order in which they run."""

    def __init__(self, frame: Frame, projection: Projection, schedule: FragmentSchedule, part: int) -> None:
        self.frame, self.b, self.projection = frame, frame.b, projection
        self.schedule, self.part = schedule, part
        self.b.resident = schedule.resident
        self.count, self.depth = projection.left.shape
        lane = self.b.lane_id()
        self.group_lane, self.lane = lane // LANES, lane % LANES
        self.warp = self.b.subgroup_id()
        layouts = [layout_of(frame.scene, a) for s in projection.segments for a in s.anchors]
        self.activations = Activations(frame, projection, schedule, layouts)
        self.weights = [[self._weight(s, i) for i in range(len(s.anchors))] for s in projection.segments]
        self.maps = [RowMap(schedule.rows, s.block, s.stride) for s in projection.segments]

    def _weight(self, segment: Segment, place: int) -> FragmentWeight:
        anchor = segment.anchors[place]
        layout, weight = layout_of(self.frame.scene, anchor), weight_of(self.frame.scene.graph, anchor)
        assert weight is not None
        wide, narrow = (self.frame.weight_part(weight, self.part) for _ in range(2))
        part = layout.parts[self.part]
        return FragmentWeight(
            self.b, wide, narrow, layout, part, self.schedule.half, self.lane, self.activations.copied
        )

    def emit(self) -> Draft:
        frame, b, projection, schedule = self.frame, self.b, self.projection, self.schedule
        declare_reads(frame, projection)
        outs = [frame.write(s.root, separate=True) for s in projection.segments]
        across = [m.groups(w[0].part.rows) for m, w in zip(self.maps, self.weights, strict=True)]
        tiles = -(-self.count // schedule.tokens)
        flat = grid(sum(across) * tiles, frame.caps)
        # Groups of the same weight rows are neighbours: they read them from a cache.
        turn = frame.flat_group(flat)
        place, first = turn // tiles, turn % tiles * schedule.tokens
        self.activations.declare(first)
        pieces = b.shared("results", DType.F32, max(self._piece(len(s.anchors)) for s in projection.segments))
        tokens = [b.min(first + m, self.count - 1) for m in range(schedule.tokens)] if projection.prologue else []
        totals = token_totals(frame, projection, tokens, schedule.threads)
        start = 0
        for s, segment in enumerate(projection.segments):
            group = place - start
            with b.if_((place >= start) & (group < across[s])):
                sums = self._multiply(s, group, totals)
                self._finish(s, segment, outs[s], group, first, sums, pieces)
            start += across[s]
        return frame.draft(
            flat,
            frame.nbytes(),
            **schedule.describe(),
            weights=[len(s.anchors) for s in projection.segments],
            prologue=projection.prologue is not None,
            copied=self.activations.copied,
            part=self.part,
        )

    def _piece_columns(self, anchors: int) -> int:
        """Fragments of columns whose products are finished at a time."""
        schedule = self.schedule
        if schedule.spread:
            return schedule.columns
        each = 4 * anchors * schedule.slices * schedule.rows * COLUMNS
        return max(1, min(schedule.columns, PIECE_BYTES // each))

    def _piece(self, anchors: int) -> int:
        schedule = self.schedule
        columns = self._piece_columns(anchors) * COLUMNS
        held = schedule.tokens * PARTS if schedule.spread else min(columns, schedule.tokens)
        return anchors * schedule.slices * schedule.rows * held

    # Products

    def _multiply(self, s: int, group: Handle, totals: list[list[Handle]]) -> list[list[list[Var]]]:
        """Sums by weight, fragment of rows and fragment of columns."""
        b, schedule, weights = self.b, self.schedule, self.weights[s]
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(SUMS)))
        sums = [
            [[b.var(zero, name="sums") for _ in range(schedule.columns)] for _ in range(schedule.tiles)]
            for _ in weights
        ]
        rows = self._rows(s, group)
        units = schedule.chunk // unit_columns(weights[0].layout)
        chunks, each = self.depth // schedule.chunk, units // schedule.slices
        ahead = min(each, schedule.ahead)

        def load(chunk: Handle | int, turn: Handle | int) -> list[Loaded]:
            return self._load(weights, rows, chunk * units + self._unit(turn))

        # The first weights of a chunk are on their way while the activations before them are staged.
        layout, activations = weights[0].layout, self.activations
        waiting = [_Waiting(b, load(0, turn)) for turn in range(ahead)]
        next_rows = activations.ahead(layout)
        with b.range(0, chunks, name="chunk") as chunk:
            activations.stage(layout, chunk, totals, next_rows)
            b.barrier()
            held = [w.get() for w in waiting]
            if chunks > 1:
                after = b.min(chunk + 1, chunks - 1)
                for turn, w in enumerate(waiting):
                    w.set(load(after, turn))
                activations.fetch(layout, after, next_rows)
            for turn, loaded in enumerate(held):
                self._add_unit(weights, loaded, self._unit(turn), sums)
            with b.range(ahead, each, name="unit") as turn:
                self._add_unit(weights, load(chunk, turn), self._unit(turn), sums)
            if chunks > 1:
                b.barrier()
        return sums

    def _unit(self, turn: Handle | int) -> Handle:
        """The unit of a chunk that the subgroup takes at its turn."""
        turn = self.b.as_handle(turn, DType.I32)
        slices = self.schedule.slices
        return turn * slices + self.warp % slices if slices > 1 else turn

    def _places(self) -> list[Handle]:
        """The first place of the lane's rows in each fragment of rows; its other is 8 places on."""
        first = self.warp // self.schedule.slices * self.schedule.tiles
        return [(first + r) * ROWS + self.group_lane for r in range(self.schedule.tiles)]

    def _rows(self, s: int, group: Handle) -> list[tuple[Handle, Handle]]:
        """The lane's two weight rows of each fragment. Beyond the weight the last row is read, and never stored."""
        b, rows_of, rows = self.b, self.maps[s], self.weights[s][0].part.rows

        def row(place: Handle) -> Handle:
            found = rows_of.row(group, place)
            return found if rows % self.schedule.rows == 0 else b.min(found, rows - 1)

        return [(row(place), row(place + COLUMNS)) for place in self._places()]

    @staticmethod
    def _load(weights: Sequence[FragmentWeight], rows: Sequence[tuple[Handle, Handle]], unit: Handle) -> list[Loaded]:
        """The words of a unit that are this lane's: by weight, fragment of rows and upper or lower row."""
        return [weight.load(row, unit) for weight in weights for pair in rows for row in pair]

    def _add_unit(
        self,
        weights: Sequence[FragmentWeight],
        loaded: list[Loaded],
        local: Handle,
        sums: list[list[list[Var]]],
    ) -> None:
        tiles, runs = self.schedule.tiles, weights[0].runs
        scales = [weights[i // (2 * tiles)].scales(words) for i, words in enumerate(loaded)]
        for run in range(runs):
            activations = self.activations.read(local * runs + run, self.lane, self.group_lane)
            for w, weight in enumerate(weights):
                for r in range(tiles):
                    pair = 2 * (w * tiles + r)
                    halves = [weight.pairs(words, run) for words in loaded[pair : pair + 2]]
                    for n, passes in enumerate(activations):
                        total = sums[w][r][n]
                        if not weight.scaled:
                            total.set(self._product(halves, passes, total.get()))
                            continue
                        product = self._product(halves, passes, None)
                        scale = [scales[pair + k][run] for k in (0, 1)]
                        total.set(self._scaled(product, scale, total.get(), n, local * runs + run))

    def _product(
        self,
        halves: list[tuple[tuple[Handle, Handle], tuple[Handle, Handle]]],
        passes: list[Handle],
        start: Handle | None,
    ) -> Handle:
        """A run's products added to `start`: two fragments deep, the small thirds first."""
        b = self.b
        total = b.vector(*(b.const(0.0, DType.F32) for _ in range(SUMS))) if start is None else start
        upper, lower = halves
        for x in reversed(passes):
            for k in (0, 1):
                a = b.vector(upper[k][0], lower[k][0], upper[k][1], lower[k][1])
                total = b.mma(a, b.vector(x[2 * k], x[2 * k + 1]), total, self.schedule.half)
        return total

    def _scaled(
        self,
        product: Handle,
        scale: list[tuple[Handle, Handle | None]],
        total: Handle,
        n: int,
        run: Handle,
    ) -> Handle:
        """total + scale · product + minimum · Σ x, for the lane's four sums."""
        b = self.b
        (upper, upper_least), (lower, lower_least) = scale
        total = b.fma(product, b.vector(upper, upper, lower, lower), total)
        if upper_least is None or lower_least is None:
            return total
        x = self.activations.sums(run, self.lane * 2 + n * COLUMNS)
        least = b.vector(upper_least, upper_least, lower_least, lower_least)
        return b.fma(least, b.vector(x[0], x[1], x[0], x[1]), total)

    # The end

    def _finish(
        self,
        s: int,
        segment: Segment,
        out: BufferRef,
        group: Handle,
        first: Handle,
        sums: list[list[list[Var]]],
        pieces: SharedRef,
    ) -> None:
        """The sums through shared memory into the epilogue, a few fragments of columns at a time."""
        b, schedule = self.b, self.schedule
        part = self.weights[s][0].part
        step = self._piece_columns(len(sums))
        for start in range(0, schedule.columns, step):
            tokens = schedule.tokens if schedule.spread else min(step * COLUMNS, schedule.tokens - start * COLUMNS)
            partials = schedule.slices * (PARTS if schedule.spread else 1)
            products = Products(pieces, tokens, schedule.rows, len(sums), partials)
            if start:
                b.barrier()
            for n in range(start, min(start + step, schedule.columns)):
                self._share(sums, n, n - start, products)
            b.barrier()
            store_products(
                self.frame,
                segment,
                out,
                products,
                self.maps[s],
                group,
                first + start * COLUMNS,
                self.count,
                part,
                schedule.threads,
            )

    def _share(self, sums: list[list[list[Var]]], n: int, place: int, products: Products) -> None:
        """One fragment of columns of every weight into shared memory."""
        b, schedule = self.b, self.schedule
        slice_ = self.warp % schedule.slices if schedule.slices > 1 else b.const(0, DType.I32)
        for k in (0, 1):
            column = self.lane * 2 + (place * COLUMNS + k)
            token, partial = (column, slice_)
            if schedule.spread:
                token, partial = column // PARTS, slice_ * PARTS + column % PARTS
            with b.if_(token < products.tokens):
                for w, tiles in enumerate(sums):
                    for first, columns in zip(self._places(), tiles, strict=True):
                        for half in (0, 1):
                            at = products.place(partial, w, token, first + half * COLUMNS)
                            products.shared[at] = columns[n].get()[2 * half + k]
