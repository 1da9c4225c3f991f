"""Activations as matrix fragments: from an expression or a stored value into shared memory, and from there to lanes.

Shared memory has `halves` [pass, column, pitch], two a word, in the order in which lanes hold weights, and `sums`
[column, run] of the activations of each block, where a format has minima. Where the input is stored as the halves that
fragments take, its words are copied as they are, and those of the next chunk are on their way while this one is
multiplied.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.fragment_weights import apart, by_bytes, fours
from poot_executor.compile.lower.projection import supply_totals
from poot_executor.compile.lower.thirds import cut, run_total, without_top
from poot_executor.compile.region import Projection
from poot_executor.compile.schedule_fragments import COLUMNS, DEPTH, PARTS, FragmentSchedule
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle
from poot_executor.layout import LANES, WeightLayout

Waiting = list[list[Var]]
"""Words that were loaded for the next chunk, by turn of the thread."""

UNROLL = 4
"""Rounds of staging whose loads are on their way together."""


class Activations:
    """The activation rows of one group. `layouts` are those of every weight that meets them."""

    def __init__(
        self, frame: Frame, projection: Projection, schedule: FragmentSchedule, layouts: list[WeightLayout]
    ) -> None:
        self.frame, self.b, self.projection, self.schedule = frame, frame.b, projection, schedule
        self.count, self.depth = projection.left.shape
        self.summed = any(field.name == "minimum" for layout in layouts for field in layout.format.fields)
        left, stored = projection.left, frame.scene.stored
        self.copied = left in stored and left.dtype is schedule.half and not self.summed
        self._source = self._rounded()

    def _rounded(self) -> Value:
        """What is rounded to halves: the input, or what the input is rounded from, since staging rounds the same."""
        left, scene = self.projection.left, self.frame.scene
        made = scene.graph.equation(left)
        if self.summed or left in scene.stored or left.dtype is not self.schedule.half or made is None:
            return left  # Sums are of rounded activations.
        return made.inputs[0] if made.op == "cast" and made.inputs[0].dtype is DType.F32 else left

    def declare(self, first: Handle) -> None:
        """Shared memory; the group's rows begin at `first`."""
        b, schedule = self.b, self.schedule
        self._first = first
        self._halves_at = b.shared("halves", DType.U32, schedule.staged)
        runs = schedule.chunk // DEPTH
        self._sums_at = b.shared("sums", DType.F32, schedule.used * runs) if self.summed else None

    # Into shared memory

    def ahead(self, layout: WeightLayout) -> Waiting:
        """The first chunk's words, on their way; nothing where activations are computed."""
        if not self.copied:
            return []
        loaded = [self._load(layout, self.b.const(0, DType.I32), turn) for turn in range(self._turns)]
        return [[self.b.var(word, name="word") for word in words] for words in loaded]

    def stage(self, layout: WeightLayout, chunk: Handle, totals: list[list[Handle]], waiting: Waiting) -> None:
        """Columns from chunk · `chunk` on: what waited, or computed now, normed by each row's totals."""
        b, schedule = self.b, self.schedule
        each = schedule.chunk // 8
        if self.copied:
            for turn, words in enumerate(waiting):
                item, m, eight = self._item(turn)
                with b.if_(item < each * schedule.tokens):
                    self._halves_at[self._place(m, eight)] = b.vector(*(word.get() for word in words))
            return
        if self.projection.prologue is None:
            self._compute(layout, chunk, each * schedule.tokens, lambda item: (item // each, item % each))
            return
        for m in range(schedule.tokens):
            supply_totals(self.frame, self.projection, totals[m])
            row = b.const(m, DType.I32)
            self._compute(layout, chunk, each, lambda item, row=row: (row, item))

    def fetch(self, layout: WeightLayout, chunk: Handle, waiting: Waiting) -> None:
        """Send for a chunk's words. What waited was staged."""
        for turn, words in enumerate(waiting):
            for word, loaded in zip(words, self._load(layout, chunk, turn), strict=True):
                word.set(loaded)

    @property
    def _turns(self) -> int:
        return -(-self.schedule.chunk // 8 * self.schedule.tokens // self.schedule.threads)

    def _item(self, turn: Handle | int) -> tuple[Handle, Handle, Handle]:
        """A thread's item at a turn, with its row and its eight columns."""
        each = self.schedule.chunk // 8
        item = turn * self.schedule.threads + self.b.thread_id()
        last = each * self.schedule.tokens - 1
        inside = item if (last + 1) % self.schedule.threads == 0 else self.b.min(item, last)
        return item, inside // each, inside % each

    def _load(self, layout: WeightLayout, chunk: Handle, turn: int) -> list[Handle]:
        """Eight halves as they are stored, in the order of the lane that takes them: four words."""
        source = self.frame.buffers[self.projection.left][0]
        _, m, eight = self._item(turn)
        low, high = fours(layout, eight % LANES)
        word = (self._token(m) * self.depth + chunk * self.schedule.chunk + eight // LANES * DEPTH) // 2
        if not apart(layout):
            words = source.load_words(word + low // 2, LANES)
            return [words[i] for i in range(LANES)]
        pairs = [source.load_words(word + start // 2, 2) for start in (low, high)]
        return [pair[i] for pair in pairs for i in (0, 1)]

    def _token(self, m: Handle) -> Handle:
        """The row of the whole input; beyond it the last one, which nobody looks at."""
        token = self._first + m
        return self.b.min(token, self.count - 1) if self.count % self.schedule.tokens else token

    def _place(self, column: Handle, eight: Handle, part: int = 0) -> Handle:
        schedule = self.schedule
        at = column * schedule.pitch + eight // LANES * (DEPTH // 2) + eight % LANES * LANES
        return at + part * (schedule.used * schedule.pitch)

    def _compute(
        self, layout: WeightLayout, chunk: Handle, items: int, place: Callable[[Handle], tuple[Handle, Handle]]
    ) -> None:
        b, schedule = self.b, self.schedule
        # Every thread goes round as often, since lanes sum together.
        with b.range(0, -(-items // schedule.threads), unroll=UNROLL, name="round") as turn:
            item = turn * schedule.threads + b.thread_id()
            m, eight = place(item if items % schedule.threads == 0 else b.min(item, items - 1))
            values = self._values(layout, chunk * schedule.chunk, self._token(m), eight)
            total = run_total(b, values) if self.summed else None
            with b.if_(item < items):
                self._store(values, total, m, eight)

    def _values(self, layout: WeightLayout, first: Handle, token: Handle, eight: Handle) -> list[Handle]:
        """The eight activations that a lane's halves meet, in their order."""
        values: list[Handle] = []
        for start in fours(layout, eight % LANES):
            column = first + (eight // LANES * DEPTH + start)
            vector = self.frame.emission.vector(self._source, (token, column), 1)
            four = [vector] * LANES if vector.width == 1 else [vector[i] for i in range(LANES)]
            values += by_bytes(layout, four)
        return values

    def _store(self, values: list[Handle], total: Handle | None, m: Handle, eight: Handle) -> None:
        b, schedule = self.b, self.schedule
        for part, words in enumerate(self._halves(values)):
            at = self._place(m * PARTS + part, eight) if schedule.spread else self._place(m, eight, part)
            self._halves_at[at] = b.vector(*words)
        if total is None or self._sums_at is None:
            return
        # The sum belongs to the first third alone.
        run, lane, runs = eight // LANES, eight % LANES, schedule.chunk // DEPTH
        thirds = PARTS if schedule.spread else 1
        with b.if_(lane < thirds):
            self._sums_at[(m * thirds + lane) * runs + run] = b.select(lane == 0, total, 0.0)

    def _halves(self, values: list[Handle]) -> list[list[Handle]]:
        """Words of two halves each: the rounded values, or their thirds, whose sum is exact."""
        b, schedule = self.b, self.schedule
        pairs = list(zip(values[::2], values[1::2], strict=True))
        if schedule.half is DType.F16:
            return [[b.pack_half2(*pair) for pair in pairs]]
        if not schedule.thirds:
            return [[b.pack_bf16(*pair) for pair in pairs]]
        parts: list[list[Handle]] = []
        for _ in range(PARTS):
            parts.append([cut(b, low, high) for low, high in zip(values[::2], values[1::2], strict=True)])
            values = [without_top(b, value) for value in values]
        return parts

    # To the lanes

    def read(self, run: Handle, lane: Handle, column: Handle) -> list[list[Handle]]:
        """The halves of a run for lane `lane` of four and a column of eight: by fragment of columns and pass.

        What no activation row has, nobody looks at.
        """
        b, schedule = self.b, self.schedule
        found: list[list[Handle]] = []
        for n in range(schedule.columns):
            at = column + n * COLUMNS
            if (n + 1) * COLUMNS > schedule.used:
                at = b.min(at, schedule.used - 1)
            place = self._place(at, run * LANES + lane)
            size = schedule.used * schedule.pitch
            found.append([self._halves_at.load(place + p * size, LANES) for p in range(schedule.passes)])
        return found

    def sums(self, run: Handle, column: Handle) -> list[Handle]:
        """Σ of a run's activations, of a column and the next."""
        assert self._sums_at is not None
        runs, last = self.schedule.chunk // DEPTH, self.schedule.used - 1
        return [self._sums_at[self.b.min(column + k, last) * runs + run] for k in (0, 1)]
