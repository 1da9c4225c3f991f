"""Contractions with weights by products of warpgroups: both factors are copied into shared memory ahead of them.

The same dispatches as `projection.py` makes, from other products. A group goes through the depth in chunks: a barrier,
behind which a chunk is there and the one before the last is done with; the chunk's product, which is begun; the copies
of a later chunk into the stage that is free, beside it. Sums go through shared memory into the epilogue, some
activation rows at a time.
"""

from __future__ import annotations

from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.epilogue import Products, store_products
from poot_executor.compile.lower.projection import declare_reads, layout_of
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.lower.stored_halves import parts_of, scratch_halves, store_halves
from poot_executor.compile.region import Projection, Region, Segment
from poot_executor.compile.schedule_warpgroups import BEHIND, PAD, WarpgroupSchedule, warpgroup_schedule
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.warpgroups import COLUMNS, DEPTH, LINE, ROWS, THREADS, VECTOR, swizzled
from poot_executor.layout import Part

VECTORS = LINE // VECTOR
"""Copies of a line, by neighbouring threads."""
QUARTER, LOWER = 4, 8
"""Lanes that have a row's sums of eight columns, and how far below its row a lane's other row is."""


def lower_warpgroups(scene: Scene, region: Region, caps: Caps) -> list[Draft] | None:
    """A projection's dispatches, or None where its weights, activations or shape are not for warpgroups."""
    projection = region.projection
    assert projection is not None
    left = projection.left
    if projection.prologue is not None:
        return None
    segments = projection.segments
    weights = [(layout_of(scene, s.anchors[0]), s) for s in segments]
    if any(layout_of(scene, a).format is not layout.format for layout, s in weights for a in s.anchors):
        return None
    schedule = warpgroup_schedule(weights, left.shape[0], left.dtype, caps)
    if schedule is None:
        return None
    hidden = {a.output for s in segments for a in s.anchors} | set(region.roots)
    inner = Scene(scene.graph, scene.stored - hidden, scene.layouts)
    copied = left in scene.stored and left.dtype is schedule.half
    before = [] if copied else [store_halves(scene, left, caps)]
    products = [
        _Template(Frame(inner, caps, region.kind, schedule.threads), projection, schedule, part, copied=copied).emit()
        for part in range(len(weights[0][0].parts))
    ]
    return before + products


class _Template:
    """One kernel's pieces, in the order in which they run."""

    def __init__(
        self, frame: Frame, projection: Projection, schedule: WarpgroupSchedule, part: int, *, copied: bool
    ) -> None:
        self.frame, self.b, self.projection = frame, frame.b, projection
        self.schedule, self.part, self.copied = schedule, part, copied
        self.count, self.depth = projection.left.shape
        self.weights = [[self._weight(s, k) for k in range(len(s.anchors))] for s in projection.segments]
        self.parts = [layout_of(frame.scene, s.anchors[0]).parts[part] for s in projection.segments]
        self.maps = [RowMap(schedule.rows, s.block, s.stride) for s in projection.segments]

    def _weight(self, segment: Segment, place: int) -> BufferRef:
        weight = weight_of(self.frame.scene.graph, segment.anchors[place])
        assert weight is not None
        return self.frame.weight_part(weight, self.part)

    def emit(self) -> Draft:
        frame, b, projection, schedule = self.frame, self.b, self.projection, self.schedule
        declare_reads(frame, projection)
        left = projection.left
        self.left = frame.buffers[left][0] if self.copied else scratch_halves(frame, left)
        outs = [frame.write(s.root, separate=True) for s in projection.segments]
        across = [m.groups(part.rows) for m, part in zip(self.maps, self.parts, strict=True)]
        tiles = -(-self.count // schedule.tokens)
        flat = grid(sum(across) * tiles, frame.caps)
        # Groups of the same weight rows are neighbours: they read them from a cache.
        turn = frame.flat_group(flat)
        place, first = turn // tiles, turn % tiles * schedule.tokens
        stages = b.shared("stages", DType.U32, schedule.stages * schedule.stage_words)
        pieces = b.shared("results", DType.F32, schedule.piece_words)
        start = 0
        for s, segment in enumerate(projection.segments):
            group = place - start
            with b.if_((place >= start) & (group < across[s])):
                sums = self._multiply(s, group, first, stages)
                self._finish(s, segment, outs[s], group, first, sums, pieces)
            start += across[s]
        return frame.draft(
            flat,
            frame.nbytes(),
            **schedule.describe(),
            weights=[len(s.anchors) for s in projection.segments],
            prologue=False,
            copied=self.copied,
            part=self.part,
        )

    # Products

    def _multiply(self, s: int, group: Handle, first: Handle, stages: SharedRef) -> list[list[Var]]:
        """Sums by weight and eight columns."""
        b, schedule = self.b, self.schedule
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(4)))
        sums = [[b.var(zero, name="sums") for _ in range(schedule.tokens // COLUMNS)] for _ in self.weights[s]]
        copies = _Copies(self, s, group, first, stages)
        chunks = copies.chunks
        for chunk in range(schedule.ahead):
            if chunk < chunks:
                copies.begin(b.const(chunk, DType.I32))
            b.copy_commit()
        mine = b.thread_id() // THREADS * (ROWS * LINE)
        with b.range(0, chunks, name="chunk") as chunk:
            b.copy_wait(schedule.ahead - 1)
            b.barrier()
            stage = chunk % schedule.stages * schedule.stage_words
            tokens = stage + schedule.anchors * schedule.rows * LINE
            for w, totals in enumerate(sums):
                rows = stage + (mine + w * schedule.rows * LINE)
                values = stages.multiply(rows, tokens, [t.get() for t in totals], schedule.half, BEHIND)
                for total, value in zip(totals, values, strict=True):
                    total.set(value)
            with b.if_(chunk + schedule.ahead < chunks):
                copies.begin(chunk + schedule.ahead)
            b.copy_commit()
        return sums

    # The end

    def _finish(
        self,
        s: int,
        segment: Segment,
        out: BufferRef,
        group: Handle,
        first: Handle,
        sums: list[list[Var]],
        pieces: SharedRef,
    ) -> None:
        """The sums through shared memory into the epilogue, some activation rows at a time."""
        b, schedule = self.b, self.schedule
        products = Products(pieces, schedule.piece, schedule.rows, len(sums), pad=PAD)
        lane = b.lane_id()
        row = b.subgroup_id() * (ROWS // QUARTER) + lane // QUARTER
        for start in range(0, schedule.tokens, schedule.piece):
            if start:
                b.barrier()
            for n in range(start // COLUMNS, (start + schedule.piece) // COLUMNS):
                for w, totals in enumerate(sums):
                    for k in range(4):
                        token = lane % QUARTER * 2 + (n * COLUMNS - start + k % 2)
                        pieces[products.place(0, w, token, row + k // 2 * LOWER)] = totals[n].get()[k]
            b.barrier()
            threads, part = schedule.threads, self.parts[s]
            store_products(
                self.frame, segment, out, products, self.maps[s], group, first + start, self.count, part, threads
            )


class _Copies:
    """The copies that a thread begins for each chunk: a vector of every so many lines, always at the same place of a
    line."""

    def __init__(self, template: _Template, s: int, group: Handle, first: Handle, stages: SharedRef) -> None:
        b, schedule = template.b, template.schedule
        self._b, self._schedule, self._stages = b, schedule, stages
        line, vector = b.thread_id() // VECTORS, b.thread_id() % VECTORS
        self._apart = schedule.threads // VECTORS
        # Lines that are multiples of eight apart are swizzled alike.
        self._place = swizzled(line, vector)
        self._weights: list[tuple[BufferRef, Handle, int]] = []
        self._tokens: list[tuple[BufferRef, Handle, int]] = []
        words, part = template.depth // 2, template.parts[s]
        # An f32 is three halves: their products are summed one after the other, the small ones first.
        self._parts, self._each = parts_of(template.projection.left), template.depth // DEPTH
        self._further = template.count * words
        for w, weight in enumerate(template.weights[s]):
            for turn in range(schedule.rows // self._apart):
                row = _inside(template.maps[s].row(group, line + turn * self._apart), part, schedule)
                self._weights.append((weight, row * words + vector * VECTOR, w * schedule.rows + turn * self._apart))
        for turn in range(schedule.tokens // self._apart):
            token = first + line + turn * self._apart
            if template.count % schedule.tokens:
                token = b.min(token, template.count - 1)
            at = schedule.anchors * schedule.rows + turn * self._apart
            self._tokens.append((template.left, token * words + vector * VECTOR, at))

    @property
    def chunks(self) -> int:
        """Chunks of all the depth, for each half of an activation."""
        return self._parts * self._each

    def begin(self, chunk: Handle) -> None:
        """A chunk's copies into its stage."""
        place = chunk % self._schedule.stages * self._schedule.stage_words + self._place
        inner = further = chunk * LINE
        if self._parts > 1:
            inner = chunk % self._each * LINE
            further = inner + (self._parts - 1 - chunk // self._each) * self._further
        for sources, offset in ((self._weights, inner), (self._tokens, further)):
            for source, word, line in sources:
                self._stages.copy_from(place + line * LINE, source, word + offset)


def _inside(row: Handle, part: Part, schedule: WarpgroupSchedule) -> Handle:
    """Beyond the weight its last row is read, whose product nobody stores."""
    return row if part.rows % schedule.rows == 0 else row.builder.min(row, part.rows - 1)
