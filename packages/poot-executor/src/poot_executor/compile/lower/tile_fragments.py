"""A tile of products by opaque matrix fragments: weights and activations are staged as halves, subgroups multiply.

A block of quants is multiplied exactly, as halves, and then scaled; its minimum meets the sum of the block's
activations: scale · Σ q·x + minimum · Σ x, as where threads sum in registers. No lane knows which elements of a
fragment it has, so that scales, minima and sums come as fragments too: a line of shared memory that is every line of
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.epilogue import Products
from poot_executor.compile.schedule_tile import ACROSS, RUN, VECTOR, TileSchedule
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.builder import Var
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.handle import Handle
from poot_executor.layout import WeightLayout

EIGHT = 8
"""Activations that a thread stages at a time."""
TOP = 0xFFFF0000
"""The upper half of an f32: a bf16."""

Sums = list[list[list[Var]]]
"""By weight, fragment of rows and fragment of columns of the subgroup."""


def piece_words(layout: WeightLayout) -> int | None:
    """Quant words that a thread stages at a time: eight columns of a block; None for dense weights, whose blocks are a
    vector of words."""
    if not layout.format.is_packed:
        return None
    return 2 if layout.format.name == "q8_0" else 1


class FragmentTile:
    """The tile of one group. `summed` says that a weight has minima."""

    def __init__(self, frame: Frame, left: Value, schedule: TileSchedule, shape: FragmentShape, summed: bool) -> None:
        self.frame, self.b, self.left, self.schedule, self.shape = frame, frame.b, left, schedule, shape
        self.summed = summed
        self.copied = left in frame.scene.stored and not summed
        self.halves = self.b.shared("halves", DType.U32, (schedule.rows + schedule.tokens) * schedule.pitch)
        self.floats = self.b.shared("floats", DType.F32, schedule.float_words)
        subgroup = self.b.subgroup_id()
        self.down, self.along = subgroup % ACROSS, subgroup // ACROSS

    def multiply(
        self, readers: list[BlockReader], row: Callable[[Handle], Handle], token: Callable[[Handle], Handle]
    ) -> Iterator[tuple[int, Products]]:
        """See `tile.Tile`."""
        b, schedule, shape = self.b, self.schedule, self.shape
        rows = schedule.rows_of(len(readers))
        tall, wide = rows // (ACROSS * shape.rows), schedule.tokens // (ACROSS * shape.columns)
        sums: Sums = [
            [[b.var(b.fragment_zero(shape.sum), name="sums") for _ in range(wide)] for _ in range(tall)]
            for _ in readers
        ]
        with b.range(0, self.left.shape[1] // schedule.chunk, name="chunk") as chunk:
            first = chunk * schedule.chunk
            for w, reader in enumerate(readers):
                self._stage_weight(reader, w, rows, first, row)
            self._stage_activations(first, token)
            b.barrier()
            for run in range(schedule.runs):
                self._add(readers, sums, rows, run)
            b.barrier()
        step = schedule.piece // (ACROSS * shape.columns)
        products = Products(self.floats, schedule.piece, rows, len(readers))
        for start in range(0, wide, step):
            if start:
                b.barrier()
            for w, weight in enumerate(sums):
                for r, fragments in enumerate(weight):
                    for n in range(step):
                        place = products.place(0, w, self._token(n), self._row(r, rows))
                        self.floats.store_fragment(place, fragments[start + n].get(), rows, "column")
            b.barrier()
            yield start * ACROSS * shape.columns, products

    def _row(self, r: int, rows: int) -> Handle:
        """The first row of the subgroup's fragment of rows: its fragments are neighbours."""
        return self.down * (rows // ACROSS) + r * self.shape.rows

    def _token(self, n: int) -> Handle:
        """The first token of the subgroup's fragment of columns: subgroups take turns, so that pieces are whole."""
        return self.along * self.shape.columns + n * (ACROSS * self.shape.columns)

    # Products

    def _add(self, readers: Sequence[BlockReader], sums: Sums, rows: int, run: int) -> None:
        """The products of a run of columns."""
        b, shape, pitch = self.b, self.shape, self.schedule.pitch
        steps = range(RUN // shape.depth)
        words = [(run * RUN + k * shape.depth) // 2 for k in steps]
        left = [
            [
                [
                    self.halves.load_fragment((self._row(r, rows) + w * rows) * pitch + at, shape.a, pitch)
                    for at in words
                ]
                for r in range(len(weight))
            ]
            for w, weight in enumerate(sums)
        ]
        scales = [
            [self._scales(reader, w, r, rows, run) for r in range(len(weight))]
            for w, (reader, weight) in enumerate(zip(readers, sums, strict=True))
        ]
        for n in range(len(sums[0][0])):
            token = (self._token(n) + self.schedule.rows) * pitch
            right = [self.halves.load_fragment(token + at, shape.b, pitch, "column") for at in words]
            total_x = self._column_sums(n, run) if self.summed else None
            for w, weight in enumerate(sums):
                for r, fragments in enumerate(weight):
                    scale, minimum = scales[w][r]
                    total = fragments[n].get()
                    product = total if scale is None else b.fragment_zero(shape.sum)
                    for k in steps:
                        product = b.fragment_mma(left[w][r][k], right[k], product)
                    total = product if scale is None else b.fragment_fma(scale, product, total)
                    if minimum is not None and total_x is not None:
                        total = b.fragment_fma(minimum, total_x, total)
                    fragments[n].set(total)

    def _scales(self, reader: BlockReader, w: int, r: int, rows: int, run: int) -> tuple[Handle | None, Handle | None]:
        """Scale and minimum of each row of a fragment, in all its columns."""
        if not reader.scaled:
            return None, None
        at = self._row(r, rows) + self._scale_place(w, rows, run)
        scale = self.floats.load_fragment(at, self.shape.sum, 0, "column")
        if not reader.has_minimum:
            return scale, None
        return scale, self.floats.load_fragment(at + self._minima, self.shape.sum, 0, "column")

    def _column_sums(self, n: int, run: int) -> Handle:
        """Σ x of the run of each column of a fragment, in all its rows."""
        at = self._token(n) + (2 * self._minima + run * self.schedule.tokens)
        return self.floats.load_fragment(at, self.shape.sum, 0, "row")

    def _scale_place(self, w: int, rows: int, run: int) -> int:
        return run * self.schedule.rows + w * rows

    @property
    def _minima(self) -> int:
        """Where minima begin, and how many words scales take."""
        return self.schedule.runs * self.schedule.rows

    # Into shared memory

    def _stage_weight(
        self, reader: BlockReader, w: int, rows: int, first: Handle, row: Callable[[Handle], Handle]
    ) -> None:
        """The chunk's columns of each row as halves, and each run's scale and minimum. Neighbouring threads take
        neighbouring pieces of a row."""
        b, schedule = self.b, self.schedule
        pieces = schedule.chunk // reader.columns * reader.pieces
        with b.range(b.thread_id(), rows * pieces, schedule.threads, name="item") as item:
            place, local = item // pieces, item % pieces
            block, piece = local // reader.pieces, local % reader.pieces
            words = reader.words(row(place), first // reader.columns + block, piece)
            start = (place + w * rows) * schedule.pitch + block * (reader.columns // 2)
            for r, run_start in enumerate(reader.starts):
                halves = self._weight_halves(reader, words, r)
                self._store(start + piece * (reader.run // 2) + run_start // 2, halves)
        if not reader.scaled:
            return
        with b.range(b.thread_id(), rows * schedule.runs, schedule.threads, name="item") as item:
            place, run = (item, b.const(0, DType.I32)) if schedule.runs == 1 else (item % rows, item // rows)
            scale, minimum = reader.scales(row(place), first // RUN + run)
            at = run * schedule.rows + place + w * rows
            self.floats[at] = scale
            if minimum is not None:
                self.floats[at + self._minima] = minimum

    def _weight_halves(self, reader: BlockReader, words: Sequence[Handle], run: int) -> list[Handle]:
        """Words of two halves of a run of a piece, in the order of the columns. Quants are exact in either half."""
        if not reader.scaled:
            return list(words)
        values = [reader.value(words, run, column) for column in range(reader.run)]
        return [self._exact(low, high) for low, high in zip(values[::2], values[1::2], strict=True)]

    def _exact(self, low: Handle, high: Handle) -> Handle:
        """A word of two f32 that are halves."""
        b = self.b
        if self.shape.element is DType.F16:
            return b.pack_half2(low, high)
        return (b.bitcast(low, DType.U32) >> 16) | (b.bitcast(high, DType.U32) & TOP)

    def _store(self, at: Handle, words: Sequence[Handle]) -> None:
        """Neighbouring words, as vectors."""
        width = next(n for n in (4, 2, 1) if len(words) % n == 0)
        for i in range(0, len(words), width):
            self.halves[at + i] = words[i] if width == 1 else self.b.vector(*words[i : i + width])

    def _stage_activations(self, first: Handle, token: Callable[[Handle], Handle]) -> None:
        """The chunk's columns of each token as halves, and the sum of each run. Every thread goes round as often."""
        b, schedule = self.b, self.schedule
        each = schedule.chunk // EIGHT
        with b.range(0, schedule.tokens * each // schedule.threads, name="round") as turn:
            item = turn * schedule.threads + b.thread_id()
            m, eight = item // each, item % each
            at = (m + schedule.rows) * schedule.pitch + eight * (EIGHT // 2)
            if self.copied:
                source = self.frame.buffers[self.left][0]
                word = (token(m) * self.left.shape[1] + first) // 2 + eight * (EIGHT // 2)
                self.halves[at] = source.load_words(word, VECTOR)
            else:
                values = self._values(token(m), first + eight * EIGHT)
                pairs = zip(values[::2], values[1::2], strict=True)
                self.halves[at] = b.vector(*(self._exact(low, high) for low, high in pairs))
                if self.summed:
                    self._store_sum(values, m, eight)

    def _values(self, token: Handle, column: Handle) -> list[Handle]:
        """Eight activations, rounded as the graph says."""
        values: list[Handle] = []
        for start in (0, VECTOR):
            vector = self.frame.emission.vector(self.left, (token, column + start), 1)
            values += [vector] * VECTOR if vector.width == 1 else [vector[i] for i in range(VECTOR)]
        return values

    def _store_sum(self, values: Sequence[Handle], m: Handle, eight: Handle) -> None:
        """The sum of a run, of which four neighbouring threads have eight each."""
        b = self.b
        total = values[0]
        for value in values[1:]:
            total = total + value
        for mask in (1, 2):
            total = total + b.subgroup_shuffle_xor(total, mask)
        four = RUN // EIGHT
        with b.if_(eight % four == 0):
            self.floats[eight // four * self.schedule.tokens + m + 2 * self._minima] = total
