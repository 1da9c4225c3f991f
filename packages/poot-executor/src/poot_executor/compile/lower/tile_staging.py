"""What a tile of fragments has in shared memory: weights and activations as halves, and beside them scales, minima and
sums of activations.

`halves` has a line of a chunk's columns for each weight row, then one for each token, or where activations are f32 one
for each third: an f32 is the exact sum of three bf16. `floats` has, each [run, row or token], scales, minima and sums;
products take its place in the end. Words of the next chunk are on their way in registers while this one is multiplied;
activations that are computed are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.thirds import cut, run_total, without_top
from poot_executor.compile.schedule_tile import RUN, VECTOR, TileSchedule
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle
from poot_executor.layout import WeightLayout

EIGHT = 8
"""Activations that a thread stages at a time: a vector of words."""
Place = Callable[[Handle], Handle]
"""The weight row, or the activation row, of a place in the tile."""


def piece_words(layout: WeightLayout) -> int | None:
    """Quant words that a thread stages at a time: eight columns of a block; None for dense weights, whose blocks are a
    vector of words."""
    if not layout.format.is_packed:
        return None
    return 2 if layout.format.name == "q8_0" else 1


class Staging:
    """The shared memory of one group. `half` is what factors are, `summed` says that a weight has minima."""

    def __init__(self, frame: Frame, left: Value, schedule: TileSchedule, half: DType, summed: bool) -> None:
        self.frame, self.b, self.left, self.schedule, self.half = frame, frame.b, left, schedule, half
        self.summed, self.stored = summed, left in frame.scene.stored
        self.halves = self.b.shared("halves", DType.U32, schedule.lines * schedule.pitch)
        self.floats = self.b.shared("floats", DType.F32, schedule.float_words)

    # Places

    def weight_line(self, w: int, place: Handle, rows: int) -> Handle:
        """Where the line of a row of a weight begins."""
        return (place + w * rows) * self.schedule.pitch

    def token_line(self, token: Handle, part: int = 0) -> Handle:
        """Where the line of a token, or of a third of it, begins."""
        return (token + (self.schedule.rows + part * self.schedule.tokens)) * self.schedule.pitch

    def scale_place(self, w: int, place: Handle, rows: int, run: Handle | int) -> Handle:
        """Where the scale of a row's run is."""
        return place + run * self.schedule.rows + w * rows

    @property
    def minima(self) -> int:
        """How far behind its scale a minimum is."""
        return self.schedule.runs * self.schedule.rows

    def sum_place(self, token: Handle, run: Handle | int) -> Handle:
        """Where the sum of a token's run is."""
        return token + run * self.schedule.tokens + 2 * self.minima

    # The chunk

    def ahead(self, readers: Sequence[BlockReader], rows: int, row: Place, token: Place) -> list[list[Var]]:
        """The first chunk's words, on their way."""
        loaded = self._load(readers, rows, self.b.const(0, DType.I32), row, token)
        return [[self.b.var(word, name="word") for word in words] for words in loaded]

    def fetch(
        self,
        waiting: list[list[Var]],
        readers: Sequence[BlockReader],
        rows: int,
        first: Handle,
        row: Place,
        token: Place,
    ) -> None:
        """Send for the words of the chunk that begins at a column. What waited was staged."""
        for variables, words in zip(waiting, self._load(readers, rows, first, row, token), strict=True):
            for variable, word in zip(variables, words, strict=True):
                variable.set(word)

    def stage(
        self, waiting: list[list[Var]], readers: Sequence[BlockReader], rows: int, first: Handle, token: Place
    ) -> None:
        """Put the chunk that begins at a column into shared memory: what waited, and activations that are computed."""
        words = iter([[variable.get() for variable in variables] for variables in waiting])
        for w, reader in enumerate(readers):
            for turn in range(self._turns(rows * self._pieces(reader))):
                self._store_weight(reader, w, rows, turn, next(words))
            if reader.scaled:
                for turn in range(self._turns(rows * self.schedule.runs)):
                    self._store_scales(reader, w, rows, turn, next(words), first)
        each = self.schedule.chunk // EIGHT
        items = self.schedule.tokens * each
        if self.stored:
            for turn in range(self._turns(items)):
                _, m, eight = self._item(turn, items, each)
                self._store_activations(next(words), m, eight)
            return
        # Every thread goes round as often, since lanes sum together.
        with self.b.range(0, self._turns(items), name="round") as turn:
            _, m, eight = self._item(turn, items, each)
            column = first + eight * EIGHT
            vectors = [self.frame.emission.vector(self.left, (token(m), column + start), 1) for start in (0, VECTOR)]
            self._store_values([value for vector in vectors for value in apart(vector)], m, eight)

    def ones(self, w: int, rows: int) -> None:
        """Scales of a weight that has none, where products start from nothing: put there once."""
        with self.b.range(self.b.thread_id(), rows * self.schedule.runs, self.schedule.threads, name="item") as item:
            self.floats[self.scale_place(w, item % rows, rows, item // rows)] = self.b.const(1.0, DType.F32)

    def _load(
        self, readers: Sequence[BlockReader], rows: int, first: Handle, row: Place, token: Place
    ) -> list[list[Handle]]:
        """The thread's words of a chunk, in the order in which they are staged."""
        loaded: list[list[Handle]] = []
        for reader in readers:
            pieces = self._pieces(reader)
            for turn in range(self._turns(rows * pieces)):
                _, place, local = self._item(turn, rows * pieces, pieces)
                block = first // reader.columns + local // reader.pieces
                loaded.append(reader.words(row(place), block, local % reader.pieces))
            if reader.scaled:
                for turn in range(self._turns(rows * self.schedule.runs)):
                    _, place, run = self._item(turn, rows * self.schedule.runs, self.schedule.runs)
                    loaded.append([reader.scale_word(row(place), first // RUN + run)])
        if self.stored:
            each = self.schedule.chunk // EIGHT
            items = self.schedule.tokens * each
            for turn in range(self._turns(items)):
                _, m, eight = self._item(turn, items, each)
                loaded.append(self._load_activations(token(m) * self.left.shape[1] + first + eight * EIGHT))
        return loaded

    def _turns(self, items: int) -> int:
        return -(-items // self.schedule.threads)

    def _item(self, turn: Handle | int, items: int, each: int) -> tuple[Handle, Handle, Handle]:
        """A thread's item at a turn, its line and its place in the line, of which each has so many. Neighbouring
        threads have neighbouring places. Where there is none, the last one is seen."""
        item = turn * self.schedule.threads + self.b.thread_id()
        inside = item if items % self.schedule.threads == 0 else self.b.min(item, items - 1)
        return item, inside // each, inside % each

    def _pieces(self, reader: BlockReader) -> int:
        return self.schedule.chunk // reader.columns * reader.pieces

    # Weights

    def _store_weight(self, reader: BlockReader, w: int, rows: int, turn: int, words: Sequence[Handle]) -> None:
        """A piece of a row as halves, in the order of the columns. Quants are exact in either half."""
        b, pieces = self.b, self._pieces(reader)
        item, place, local = self._item(turn, rows * pieces, pieces)
        block, piece = local // reader.pieces, local % reader.pieces
        start = self.weight_line(w, place, rows) + block * (reader.columns // 2) + piece * (reader.run // 2)
        with b.if_(item < rows * pieces):
            for run, run_start in enumerate(reader.starts):
                halves = list(words)
                if reader.scaled:
                    values = [reader.value(words, run, column) for column in range(reader.run)]
                    halves = [self._exact(low, high) for low, high in zip(values[::2], values[1::2], strict=True)]
                self._store(start + run_start // 2, halves)

    def _store_scales(
        self, reader: BlockReader, w: int, rows: int, turn: int, words: Sequence[Handle], first: Handle
    ) -> None:
        """Scale and minimum of a row's run."""
        runs = self.schedule.runs
        item, place, run = self._item(turn, rows * runs, runs)
        at = self.scale_place(w, place, rows, run)
        scale, minimum = reader.scales_in(words[0], first // RUN + run)
        with self.b.if_(item < rows * runs):
            self.floats[at] = scale
            if minimum is not None:
                self.floats[at + self.minima] = minimum

    def _exact(self, low: Handle, high: Handle) -> Handle:
        """A word of two f32 that are halves."""
        return self.b.pack_half2(low, high) if self.half is DType.F16 else cut(self.b, low, high)

    def _store(self, at: Handle, words: Sequence[Handle]) -> None:
        """Neighbouring words, as vectors."""
        width = next(n for n in (4, 2, 1) if len(words) % n == 0)
        for i in range(0, len(words), width):
            self.halves[at + i] = words[i] if width == 1 else self.b.vector(*words[i : i + width])

    # Activations

    def _load_activations(self, at: Handle) -> list[Handle]:
        """Eight of them as they are stored: four words of halves, or two vectors of f32."""
        source = self.frame.buffers[self.left][0]
        if self.left.dtype is DType.F32:
            return [source.load(at + start, VECTOR) for start in (0, VECTOR)]
        return apart(source.load_words(at // 2, VECTOR))

    def _store_activations(self, loaded: Sequence[Handle], m: Handle, eight: Handle) -> None:
        """What was loaded, as halves."""
        if self.left.dtype is DType.F32:
            self._store_values([value for vector in loaded for value in apart(vector)], m, eight)
            return
        self._store(self.token_line(m) + eight * (EIGHT // 2), loaded)
        if self.summed:
            unpack = self.b.unpack_half2 if self.half is DType.F16 else self.b.unpack_bf16x2
            self._store_sum([part for word in loaded for part in unpack(word)], m, eight)

    def _store_values(self, values: list[Handle], m: Handle, eight: Handle) -> None:
        """Eight activations, rounded as the graph says, as halves or as thirds."""
        rest = values
        for part in range(self.schedule.parts):
            # A third is cut off; what is a half already is that half.
            pairs = zip(rest[::2], rest[1::2], strict=True)
            halves = [self._exact(low, high) for low, high in pairs]
            self._store(self.token_line(m, part) + eight * (EIGHT // 2), halves)
            rest = [without_top(self.b, value) for value in rest]
        if self.summed:
            self._store_sum(values, m, eight)

    def _store_sum(self, values: Sequence[Handle], m: Handle, eight: Handle) -> None:
        """The sum of a run, of which four neighbouring threads have eight each."""
        b, total = self.b, run_total(self.b, values)
        four = RUN // EIGHT
        with b.if_(eight % four == 0):
            self.floats[self.sum_place(m, eight // four)] = total


def apart(vector: Handle) -> list[Handle]:
    """Four elements; a scalar is all of them."""
    return [vector] * VECTOR if vector.width == 1 else [vector[i] for i in range(VECTOR)]
