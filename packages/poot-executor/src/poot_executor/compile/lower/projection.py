"""Projections: several weights over one input in one dispatch, the norm before it and what follows each of them inside.

The grid's first axis runs over the segments one after another, the second over tiles of tokens. Every group norms its tokens for
itself, which costs less than a dispatch. A segment whose epilogue looks at neighbouring products (a rotation, a head's norm) passes them
through shared memory; one that looks at its own place alone stores straight from registers.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Index, Scene, unravel
from poot_executor.compile.lower.activations import Column, activation_blocks
from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.compile.lower.draft import PER_WORD, Draft, Frame, pack_word
from poot_executor.compile.lower.products import Totals, accumulate
from poot_executor.compile.lower.rows import row_totals
from poot_executor.compile.lower.scatter import scatter_word
from poot_executor.compile.region import Projection, Region, Segment
from poot_executor.compile.schedule import ContractionSchedule, projection_schedule
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Value
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.handle import Handle


def lower_projection(scene: Scene, region: Region, caps: Caps) -> Draft:
    """Every segment's products and epilogues. Raises Unsupported by region where shared memory or the grid is too small."""
    projection = region.projection
    assert projection is not None
    hidden = {a.output for s in projection.segments for a in s.anchors} | set(region.roots)
    frame = Frame(Scene(scene.graph, scene.stored - hidden, scene.layouts), caps, region.kind, caps.group_threads)
    return _Template(frame, projection).emit()


class _Template:
    def __init__(self, frame: Frame, projection: Projection) -> None:
        self.frame, self.b, self.projection = frame, frame.b, projection
        self.count, self.depth = projection.left.shape
        self.threads = frame.caps.group_threads
        self.schedules = [self._schedule(s) for s in projection.segments]
        self.tile = self.schedules[0].tile
        self.across = [-(-self._rows(s) // (self.threads * p.rows)) for s, p in zip(projection.segments, self.schedules, strict=True)]

    def _rows(self, segment: Segment) -> int:
        return segment.anchors[0].output.shape[-1]

    def _schedule(self, segment: Segment) -> ContractionSchedule:
        return projection_schedule(self._rows(segment), len(segment.anchors), segment.block, self.count, self.frame.caps)

    def emit(self) -> Draft:
        frame, b, projection = self.frame, self.b, self.projection
        groups = (sum(self.across), -(-self.count // self.tile), 1)
        if groups[0] > frame.caps.max_groups[0] or groups[1] > frame.caps.max_groups[1]:
            raise Unsupported(f"projection of {projection.left.type}", f"a grid of {groups} is over the target's {frame.caps.max_groups}")
        readers = [[self._reader(a) for a in s.anchors] for s in projection.segments]
        supplied = [e.output for e in projection.prologue.reductions] if projection.prologue is not None else []
        for reduction in projection.prologue.reductions if projection.prologue is not None else ():
            frame.read(reduction.inputs[0], supplied=supplied)
        frame.read(projection.left, supplied=supplied)
        for segment in projection.segments:
            products = [a.output for a in segment.anchors]
            if segment.domain not in products:
                frame.read(segment.domain, supplied=products)
            if segment.scatter is not None:
                frame.read(segment.scatter.inputs[1])
        outs = [frame.write(s.root, separate=True) for s in projection.segments]
        held = [self.tile * self.threads * p.rows * len(s.anchors) for s, p in zip(projection.segments, self.schedules, strict=True) if s.block]
        shared_bytes = 4 * max(held, default=0)
        if shared_bytes + 4 * self.threads > frame.caps.max_shared_bytes:
            raise Unsupported(f"projection of {projection.left.type}", f"it needs {shared_bytes:,} bytes of shared memory")
        results = b.shared("results", DType.F32, max(held)) if held else None
        tokens = [b.group_id(1) * self.tile + m for m in range(self.tile)]
        if self.count % self.tile:
            tokens = [b.min(token, self.count - 1) for token in tokens]
        reads = self._reads(tokens, readers[0][0].columns)
        start = 0
        for s, segment in enumerate(projection.segments):
            group = b.group_id(0) - start
            with b.if_((b.group_id(0) >= start) & (group < self.across[s])):
                self._segment(segment, self.schedules[s], readers[s], outs[s], group, tokens, reads, results)
            start += self.across[s]
        return frame.draft(
            groups, frame.nbytes(), threads=self.threads, tile=self.tile, rows=[p.rows for p in self.schedules],
            weights=[len(s.anchors) for s in projection.segments], prologue=projection.prologue is not None,
        )  # fmt: skip

    def _reader(self, anchor) -> BlockReader:  # noqa: ANN001
        weight = weight_of(self.frame.scene.graph, anchor)
        assert weight is not None
        layout = self.frame.scene.layouts[weight]
        return BlockReader(self.b, self.frame.weight_part(weight, 0), self.frame.weight_part(weight, 0), layout, layout.parts[0])

    def _reads(self, tokens: list[Handle], columns: int) -> list[Callable[[Handle], Column]]:
        """Each token's blocks of activations, normed by totals that the group computes first."""
        frame, projection = self.frame, self.projection
        read = activation_blocks(frame, projection.left, columns, self.threads)
        prologue = projection.prologue
        if prologue is None:
            return [lambda first, token=token: read(token, first) for token in tokens]
        totals = [row_totals(frame, prologue.reductions, token, prologue.root.shape[-1], self.threads) for token in tokens]

        def normed(m: int) -> Callable[[Handle], Column]:
            def block(first: Handle) -> Column:
                for reduction, total in zip(prologue.reductions, totals[m], strict=True):
                    frame.supply(reduction.output, lambda _index, value=total: value)
                return read(tokens[m], first)

            return block

        return [normed(m) for m in range(len(tokens))]

    def _segment(
        self, segment: Segment, schedule: ContractionSchedule, readers: list[BlockReader], out: BufferRef, group: Handle,
        tokens: list[Handle], reads: list[Callable[[Handle], Column]], results: SharedRef | None,
    ) -> None:  # fmt: skip
        b = self.b
        base = group * (self.threads * schedule.rows)
        rows = [base + (b.thread_id() + j * self.threads) for j in range(schedule.rows)]
        totals = accumulate(b, readers, reads, rows, self.depth)
        if segment.block == 0:
            self._store(segment, out, tokens, rows, totals)
        else:
            assert results is not None
            self._through_shared(segment, schedule, out, base, tokens, totals, results)

    def _store(self, segment: Segment, out: BufferRef, tokens: list[Handle], rows: list[Handle], totals: list[Totals]) -> None:
        frame, b = self.frame, self.b
        width = self._rows(segment)
        for j, row in enumerate(rows):
            with b.if_(row < width):
                for m, token in enumerate(tokens):
                    for anchor, total in zip(segment.anchors, totals, strict=True):
                        frame.supply(anchor.output, lambda _index, value=total[m][j]: value.get())
                    place = token * width + row
                    index = (token, row) if len(segment.root.shape) == 2 and segment.root.shape[-1] == width else None
                    out[place] = frame.element(segment.root, index or unravel(b, place, segment.root.shape))

    def _through_shared(
        self, segment: Segment, schedule: ContractionSchedule, out: BufferRef, base: Handle, tokens: list[Handle],
        totals: list[Totals], results: SharedRef,
    ) -> None:  # fmt: skip
        b = self.b
        columns = self.threads * schedule.rows
        for w, total in enumerate(totals):
            for m in range(len(tokens)):
                for j in range(schedule.rows):
                    results[b.thread_id() + ((w * self.tile + m) * columns + j * self.threads)] = total[m][j].get()
        b.barrier()
        width = self._rows(segment)
        per_word = PER_WORD.get(segment.root.dtype, 1)
        for m, token in enumerate(tokens):
            for w, anchor in enumerate(segment.anchors):
                at = (w * self.tile + m) * columns
                self.frame.supply(anchor.output, lambda index, at=at: results[index[1] - base + at])
            with b.range(b.thread_id(), columns // per_word, self.threads, name="word") as word:
                first = base + word * per_word
                with b.if_(first < width):
                    self._store_word(segment, out, (token * width + first) // per_word if per_word > 1 else token * width + first)

    def _store_word(self, segment: Segment, out: BufferRef, word: Handle) -> None:
        frame, b, root = self.frame, self.b, segment.root
        if segment.scatter is not None:
            scatter_word(frame, segment.scatter, out, word)
            return
        per_word = PER_WORD.get(root.dtype, 1)
        parts = [self._element(root, word * per_word + i) for i in range(per_word)]
        if per_word == 1:
            out[word] = parts[0]
        else:
            out.store_word(word, pack_word(b, root.dtype, parts))

    def _element(self, value: Value, place: Handle) -> Handle:
        index: Index = unravel(self.b, place, value.shape)
        return self.frame.element(value, index)
