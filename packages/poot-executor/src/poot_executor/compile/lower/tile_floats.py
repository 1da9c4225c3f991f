"""A tile of products summed in registers: weights and activations are staged as f32, and every thread has a square of
sums.

A quant times its scale is exact in f32 (a scale has 11 bits, a quant at most 8), and its minimum is added with one
rounding, so that a staged weight is what the format says it is to half a unit: the same as the oracle's, and as many
roundings a term as where blocks are summed before they are scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.epilogue import Products
from poot_executor.compile.lower.tile_staging import apart
from poot_executor.compile.schedule_tile import PAD, VECTOR, TileSchedule
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle

UNROLL = 4
"""Columns of a chunk that are multiplied in one round of a loop."""

Sums = list[list[list[Var]]]
"""By weight, vector of rows and token of the thread: vectors of sums of neighbouring rows."""


class FloatTile:
    """The tile of one group. `anchors` is the most weights that lie side by side."""

    def __init__(self, frame: Frame, left: Value, schedule: TileSchedule, anchors: int) -> None:
        self.frame, self.b, self.left, self.schedule = frame, frame.b, left, schedule
        words = max(schedule.words(a) for a in range(1, anchors + 1))
        self.memory = self.b.shared("tile", DType.F32, words)
        self.lane = self.b.thread_id() % schedule.lanes * VECTOR
        self.line = self.b.thread_id() // schedule.lanes * VECTOR

    def multiply(
        self, readers: list[BlockReader], row: Callable[[Handle], Handle], token: Callable[[Handle], Handle]
    ) -> Iterator[tuple[int, Products]]:
        """See `tile.Tile`."""
        b, schedule = self.b, self.schedule
        rows = schedule.rows_of(len(readers))
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(VECTOR)))
        vectors, tokens = rows // (schedule.lanes * VECTOR), self._tokens()
        sums: Sums = [[[b.var(zero, name="sums") for _ in tokens] for _ in range(vectors)] for _ in readers]
        with b.range(0, self.left.shape[1] // schedule.chunk, name="chunk") as chunk:
            first = chunk * schedule.chunk
            for w, reader in enumerate(readers):
                self._stage_weight(reader, w * self._weight_words(rows), rows, first, row)
            at = len(readers) * self._weight_words(rows)
            self._stage_activations(at, first, token)
            b.barrier()
            with b.range(schedule.chunk, unroll=UNROLL, name="k") as k:
                self._add(sums, rows, at, k)
            b.barrier()
        products = Products(self.memory, schedule.tokens, rows, len(readers))
        for w, weight in enumerate(sums):
            for j, vector in enumerate(weight):
                for m, total in zip(tokens, vector, strict=True):
                    self.memory[products.place(0, w, m, self.lane + j * schedule.lanes * VECTOR)] = total.get()
        b.barrier()
        yield 0, products

    def _weight_words(self, rows: int) -> int:
        return self.schedule.chunk * (rows + PAD)

    def _tokens(self) -> list[Handle]:
        """Places of the thread's tokens: vectors of neighbours, as far apart as all threads' are together."""
        across = self.schedule.threads // self.schedule.lanes * VECTOR
        return [self.line + (n * across + i) for n in range(self.schedule.tokens // across) for i in range(VECTOR)]

    def _stage_weight(
        self, reader: BlockReader, at: int, rows: int, first: Handle, row: Callable[[Handle], Handle]
    ) -> None:
        """The chunk's columns of each row, [column, row]. Neighbouring threads take neighbouring rows."""
        b, columns = self.b, reader.columns
        blocks, threads = self.schedule.chunk // columns, self.schedule.threads
        with b.range(b.thread_id(), rows * blocks, threads, name="item") as item:
            place, local = (item, b.const(0, DType.I32)) if blocks == 1 else (item % rows, item // rows)
            block = first // columns + local
            weight_row = row(place)
            words = reader.words(weight_row, block, 0)
            scale, minimum = reader.scales(weight_row, block) if reader.scaled else (None, None)
            start = local * (columns * (rows + PAD)) + place + at
            for column in range(columns):
                value = reader.value(words, 0, column)
                if scale is not None:
                    value = value * scale if minimum is None else b.fma(value, scale, minimum)
                self.memory[start + column * (rows + PAD)] = value

    def _stage_activations(self, at: int, first: Handle, token: Callable[[Handle], Handle]) -> None:
        """The chunk's columns of each token, [column, token]."""
        b, schedule = self.b, self.schedule
        fours, pitch = schedule.chunk // VECTOR, schedule.tokens + PAD
        with b.range(b.thread_id(), schedule.tokens * fours, schedule.threads, name="item") as item:
            m, column = item // fours, item % fours * VECTOR
            vector = self.frame.emission.vector(self.left, (token(m), first + column), 1)
            for i, value in enumerate(apart(vector)):
                self.memory[column * pitch + m + (i * pitch + at)] = value

    def _add(self, sums: Sums, rows: int, at: int, k: Handle) -> None:
        """A column's products of every row and token of the thread."""
        b, schedule = self.b, self.schedule
        pitch, lanes = schedule.tokens + PAD, schedule.lanes * VECTOR
        across = schedule.threads // schedule.lanes * VECTOR
        activations: list[Handle] = []
        for n in range(schedule.tokens // across):
            activations += apart(self.memory.load(k * pitch + self.line + (n * across + at), VECTOR))
        for w, weight in enumerate(sums):
            for j, vector in enumerate(weight):
                start = w * self._weight_words(rows) + j * lanes
                column = self.memory.load(k * (rows + PAD) + self.lane + start, VECTOR)
                for x, total in zip(activations, vector, strict=True):
                    total.set(b.fma(column, b.vector(x, x, x, x), total.get()))
