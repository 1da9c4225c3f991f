"""Contractions with weights by matrix fragments: weights go straight into registers, activations through shared memory.

The same dispatches as `projection.py` makes, from other products. A group stages its activation rows, normed where a
norm comes before, as halves in the order in which lanes hold weights; each of its subgroups multiplies fragments of 16
weight rows by 8 columns; the sums go through shared memory into the epilogue. A block of quants is multiplied exactly
and then scaled, and its minimum meets the sum of the block's activations: scale · Σ q·x + minimum · Σ x, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.epilogue import Products, store_products
from poot_executor.compile.lower.fragment_weights import FragmentWeight, fours, in_order
from poot_executor.compile.lower.projection import declare_reads, layout_of, supply_totals, token_totals
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.region import Projection, Region, Segment
from poot_executor.compile.schedule import fits_block
from poot_executor.compile.schedule_fragments import (
    COLUMNS,
    DEPTH,
    PARTS,
    ROWS,
    FragmentSchedule,
    fragment_schedule,
    unit_columns,
)
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle
from poot_executor.layout import LANES

SUMS = 4
"""Sums of a fragment that a lane has: columns 2t and 2t + 1 of rows g and g + 8."""
TOP = 0xFFFF0000
"""The upper half of an f32: its first third."""
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
        sum(layout_of(scene, s.anchors[0]).rows for s in segments),
        count,
        projection.left.dtype,
        caps,
        anchors=max(len(s.anchors) for s in segments),
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


@dataclass(frozen=True, slots=True)
class _Staging:
    """Shared memory of a group: `halves` [pass, column, pitch] two a word, `sums` [column, run] of each block's
    activations, `pieces` of products."""

    halves: SharedRef
    sums: SharedRef | None
    pieces: SharedRef


class _Template:
    """One kernel's pieces, in the order in which they run."""

    def __init__(self, frame: Frame, projection: Projection, schedule: FragmentSchedule, part: int) -> None:
        self.frame, self.b, self.projection = frame, frame.b, projection
        self.schedule, self.part = schedule, part
        self.count, self.depth = projection.left.shape
        lane = self.b.lane_id()
        self.group_lane, self.lane = lane // LANES, lane % LANES
        self.warp = self.b.subgroup_id()
        self.weights = [[self._weight(s, i) for i in range(len(s.anchors))] for s in projection.segments]
        self.maps = [RowMap(schedule.rows, s.block, s.stride) for s in projection.segments]
        self.source = self._source()

    def _weight(self, segment: Segment, place: int) -> FragmentWeight:
        anchor = segment.anchors[place]
        layout, weight = layout_of(self.frame.scene, anchor), weight_of(self.frame.scene.graph, anchor)
        assert weight is not None
        wide, narrow = (self.frame.weight_part(weight, self.part) for _ in range(2))
        part = layout.parts[self.part]
        return FragmentWeight(self.b, wide, narrow, layout, part, self.schedule.half, self.lane)

    def _source(self) -> Value:
        """What is rounded to halves: the input, or what the input is rounded from, since staging rounds the same."""
        left, scene = self.projection.left, self.frame.scene
        made = scene.graph.equation(left)
        if any(w.has_minimum for weights in self.weights for w in weights):
            return left  # The sums are of rounded activations.
        rounds = made is not None and made.op == "cast" and made.inputs[0].dtype is DType.F32
        if left not in scene.stored and made is not None and rounds and left.dtype is self.schedule.half:
            return made.inputs[0]
        return left

    def emit(self) -> Draft:
        frame, b, projection, schedule = self.frame, self.b, self.projection, self.schedule
        declare_reads(frame, projection)
        outs = [frame.write(s.root, separate=True) for s in projection.segments]
        staging = self._staging()
        across = [m.groups(w[0].part.rows) for m, w in zip(self.maps, self.weights, strict=True)]
        flat = grid(sum(across), frame.caps)
        groups = (*flat[:2], -(-self.count // schedule.tokens))
        first = b.group_id(2) * schedule.tokens
        tokens = [b.min(first + m, self.count - 1) for m in range(schedule.tokens)] if projection.prologue else []
        totals = token_totals(frame, projection, tokens, schedule.threads)
        place = frame.flat_group(flat)
        start = 0
        for s, segment in enumerate(projection.segments):
            group = place - start
            with b.if_((place >= start) & (group < across[s])):
                sums = self._multiply(s, group, first, totals, staging)
                self._finish(s, segment, outs[s], group, first, sums, staging.pieces)
            start += across[s]
        return frame.draft(
            groups,
            frame.nbytes(),
            **schedule.describe(),
            weights=[len(s.anchors) for s in projection.segments],
            prologue=projection.prologue is not None,
            part=self.part,
        )

    def _staging(self) -> _Staging:
        b, schedule = self.b, self.schedule
        minimum = any(w.has_minimum for weights in self.weights for w in weights)
        sums = schedule.used * (schedule.chunk // DEPTH)
        return _Staging(
            b.shared("halves", DType.U32, schedule.staged),
            b.shared("sums", DType.F32, sums) if minimum else None,
            b.shared("results", DType.F32, max(self._piece(len(s.anchors)) for s in self.projection.segments)),
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

    # Staging

    def _stage(self, s: int, chunk: Handle, first: Handle, totals: list[list[Handle]], staging: _Staging) -> None:
        """Columns [chunk, chunk + `chunk`) of the group's activation rows into shared memory, eight at a time."""
        b, schedule = self.b, self.schedule
        each = schedule.chunk // 8
        if self.projection.prologue is None:
            self._stage_rows(s, chunk, each * schedule.tokens, lambda item: (item // each, item % each), first, staging)
            return
        for m in range(schedule.tokens):
            supply_totals(self.frame, self.projection, totals[m])
            row = b.const(m, DType.I32)
            self._stage_rows(s, chunk, each, lambda item, row=row: (row, item), first, staging)

    def _stage_rows(
        self,
        s: int,
        chunk: Handle,
        items: int,
        place: Callable[[Handle], tuple[Handle, Handle]],
        first: Handle,
        staging: _Staging,
    ) -> None:
        b, schedule = self.b, self.schedule
        # Every thread goes round as often, since lanes sum together.
        with b.range(0, -(-items // schedule.threads), name="round") as turn:
            item = turn * schedule.threads + b.thread_id()
            whole = items % schedule.threads == 0
            m, eight = place(item if whole else b.min(item, items - 1))
            token = b.min(first + m, self.count - 1) if self.count % schedule.tokens else first + m
            values = self._values(s, chunk, token, eight)
            total = self._summed(values) if staging.sums is not None else None
            with b.if_(item < items):
                self._store(values, total, m, eight, staging)

    def _values(self, s: int, chunk: Handle, token: Handle, eight: Handle) -> list[Handle]:
        """The eight activations that a lane's halves meet, in their order."""
        layout = self.weights[s][0].layout
        values: list[Handle] = []
        for start in fours(layout, eight % LANES):
            column = chunk + (eight // LANES * DEPTH + start)
            vector = self.frame.emission.vector(self.source, (token, column), 1)
            four = [vector] * LANES if vector.width == 1 else [vector[i] for i in range(LANES)]
            values += in_order(layout, four)
        return values

    def _summed(self, values: list[Handle]) -> Handle:
        """The sum of a run's activations: four lanes have eight each."""
        total = values[0]
        for value in values[1:]:
            total = total + value
        for mask in (1, 2):
            total = total + self.b.subgroup_shuffle_xor(total, mask)
        return total

    def _store(self, values: list[Handle], total: Handle | None, m: Handle, eight: Handle, staging: _Staging) -> None:
        b, schedule = self.b, self.schedule
        run, lane, runs = eight // LANES, eight % LANES, schedule.chunk // DEPTH
        for part, words in enumerate(self._halves(values)):
            column = m * PARTS + part if schedule.spread else m
            region = 0 if schedule.spread else part * schedule.used * schedule.pitch
            at = column * schedule.pitch + run * (DEPTH // 2) + lane * LANES + region
            staging.halves[at] = b.vector(*words)
        if total is None or staging.sums is None:
            return
        # The sum belongs to the first third alone.
        thirds = PARTS if schedule.spread else 1
        with b.if_(lane < thirds):
            staging.sums[(m * thirds + lane) * runs + run] = b.select(lane == 0, total, 0.0)

    def _halves(self, values: list[Handle]) -> list[list[Handle]]:
        """Words of two halves each: the rounded values, or their thirds, whose sum is exact."""
        b, schedule = self.b, self.schedule
        pairs = list(zip(values[::2], values[1::2], strict=True))
        if schedule.half is DType.F16:
            return [[b.pack_half2(*pair) for pair in pairs]]
        if not schedule.thirds:
            return [[b.pack_bf16(*pair) for pair in pairs]]
        parts: list[list[Handle]] = []
        for part in range(PARTS):
            bits = [b.bitcast(value, DType.U32) for value in values]
            parts.append([(low >> 16) | (high & TOP) for low, high in zip(bits[::2], bits[1::2], strict=True)])
            if part + 1 < PARTS:
                rest = [v - b.bitcast(w & TOP, DType.F32) for v, w in zip(values, bits, strict=True)]
                # Infinity is its own first third.
                values = [b.select((w & 0xFFFF) == 0, 0.0, r) for w, r in zip(bits, rest, strict=True)]
        return parts

    # Products

    def _multiply(
        self, s: int, group: Handle, first: Handle, totals: list[list[Handle]], staging: _Staging
    ) -> list[list[list[Var]]]:
        """Sums by weight, fragment of rows and fragment of columns."""
        b, schedule, weights = self.b, self.schedule, self.weights[s]
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(SUMS)))
        sums = [
            [[b.var(zero, name="sums") for _ in range(schedule.columns)] for _ in range(schedule.tiles)]
            for _ in weights
        ]
        rows = self._rows(s, group)
        units = schedule.chunk // unit_columns(weights[0].layout)
        chunks = self.depth // schedule.chunk
        with b.range(0, chunks, name="chunk") as chunk:
            self._stage(s, chunk * schedule.chunk, first, totals, staging)
            b.barrier()
            each = units // schedule.slices
            with b.range(0, each, unroll=self._unroll(each), name="unit") as turn:
                local = turn * schedule.slices + self.warp % schedule.slices if schedule.slices > 1 else turn
                self._add_unit(weights, rows, chunk * units + local, local, sums, staging)
            if chunks > 1:
                b.barrier()
        return sums

    def _unroll(self, each: int) -> int | None:
        """Units whose loads are on their way at once."""
        wide = 1 if self.schedule.columns > 2 else 2
        return next((n for n in (wide, 1) if n > 1 and each % n == 0), None)

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

    def _add_unit(
        self,
        weights: Sequence[FragmentWeight],
        rows: Sequence[tuple[Handle, Handle]],
        unit: Handle,
        local: Handle,
        sums: list[list[list[Var]]],
        staging: _Staging,
    ) -> None:
        words = [[[w.load(row, unit) for row in pair] for pair in rows] for w in weights]
        scales = [[[w.scales(row, unit) if w.scaled else [] for row in pair] for pair in rows] for w in weights]
        for run in range(weights[0].runs):
            loaded = self._activations(local * weights[0].runs + run, staging)
            for w, weight in enumerate(weights):
                for r in range(len(rows)):
                    halves = [weight.pairs(part, run) for part in words[w][r]]
                    for n, passes in enumerate(loaded):
                        total = sums[w][r][n]
                        if not weight.scaled:
                            total.set(self._product(halves, passes, total.get()))
                            continue
                        product = self._product(halves, passes, None)
                        scale = [scales[w][r][k][run] for k in (0, 1)]
                        total.set(self._scaled(product, scale, total.get(), n, local * weight.runs + run, staging))

    def _activations(self, run: Handle, staging: _Staging) -> list[list[Handle]]:
        """The lane's halves of a run, by fragment of columns and pass. What no activation row has, nobody looks at."""
        b, schedule = self.b, self.schedule
        found: list[list[Handle]] = []
        for n in range(schedule.columns):
            column = self.group_lane + n * COLUMNS
            if (n + 1) * COLUMNS > schedule.used:
                column = b.min(column, schedule.used - 1)
            at = column * schedule.pitch + run * (DEPTH // 2) + self.lane * LANES
            size = schedule.used * schedule.pitch
            found.append([staging.halves.load(at + p * size, LANES) for p in range(schedule.passes)])
        return found

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
        staging: _Staging,
    ) -> Handle:
        """total + scale · product + minimum · Σ x, for the lane's four sums."""
        b, schedule = self.b, self.schedule
        (upper, upper_least), (lower, lower_least) = scale
        total = b.fma(product, b.vector(upper, upper, lower, lower), total)
        if upper_least is None or lower_least is None:
            return total
        assert staging.sums is not None
        runs, column = schedule.chunk // DEPTH, self.lane * 2 + n * COLUMNS
        x = [staging.sums[b.min(column + k, schedule.used - 1) * runs + run] for k in (0, 1)]
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
