"""Tiles of K and V in shared memory, and the fragments that lanes take from them.

A line of halves is a position. Four lanes take neighbouring vectors of a line of K, so that a lane has the columns of
two products: which columns those are is free, as long as queries come in the same order. Of V a lane
takes the same columns of two neighbouring positions, and puts the halves of each column together; which columns lanes
have is free too, so that a lane's sums are of neighbouring ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from poot_executor.compile.indexing import Index
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.half_words import EIGHT, WORDS, StoredHalves, half_words, stored_halves
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.buffers import SharedRef
from poot_executor.kernel.builder import KernelBuilder, Var
from poot_executor.kernel.handle import Handle

LOW, HIGH = 0x0000FFFF, 0xFFFF0000


@dataclass(frozen=True, slots=True)
class _Item:
    """A vector that a thread brings: whether there is one (None: surely), of which line, and where it goes."""

    inside: Handle | None
    line: Handle
    vector: Handle
    place: Handle


@dataclass(frozen=True, slots=True)
class Staged:
    """What a stage holds: eight elements of `value` in the direction of `axis` from `index(line, column)` on are a
    vector of a line."""

    value: Value
    axis: int
    index: Callable[[Handle, Handle], Index]


class Stage:
    """Lines of one tile as `half`, each of `vectors`, `pitch` words apart.

    A tile is sent for (`begin`), and lands before a barrier (`land`). What is stored as it is multiplied is copied
    behind the threads' backs, where the target `copies`; anything else waits in their registers.
    """

    def __init__(
        self, frame: Frame, name: str, staged: Staged, half: DType, lines: int, vectors: int, pitch: int, threads: int,
        *, copies: bool,
    ) -> None:  # fmt: skip
        self._frame, self._b, self._staged, self._half = frame, frame.b, staged, half
        self._lines, self._vectors, self._pitch, self._threads = lines, vectors, pitch, threads
        self._copies = copies
        self._waiting: list[Var] = []
        self.shared = frame.b.shared(name, DType.U32, lines * pitch)

    def begin(self, first: Handle) -> None:
        """Send for the tile whose first position is `first`."""
        b = self._b
        items = [self._item(turn) for turn in range(self._turns)]
        if self._copies:
            found = [self._stored(first, item) for item in items]
            self._copies = all(f is not None for f in found)
            if self._copies:
                for item, source in zip(items, found, strict=True):
                    assert source is not None
                    with self._guard(item):
                        self.shared.copy_from(item.place, source.buffer, source.word)
                b.copy_commit()
                return
        fetched = [b.vector(*half_words(self._frame, *self._at(first, item), self._half)) for item in items]
        if not self._waiting:
            self._waiting = [b.var(vector, name="ahead") for vector in fetched]
        for variable, vector in zip(self._waiting, fetched, strict=True):
            variable.set(vector)

    def land(self, first: Handle) -> None:
        """The tile that was sent for is there behind the next barrier; nobody reads the one before any more."""
        b = self._b
        items = [self._item(turn) for turn in range(self._turns)]
        if not self._copies:
            for item, variable in zip(items, self._waiting, strict=True):
                with self._guard(item):
                    self.shared[item.place] = variable.get()
            return
        b.copy_wait(0)
        for item in items:
            source = self._stored(first, item)
            assert source is not None
            if source.condition is not None:
                with self._guard(item), b.if_(~source.condition()):
                    self.shared[item.place] = b.vector(*(b.const(0, DType.U32) for _ in range(WORDS)))

    @property
    def _turns(self) -> int:
        return -(-self._lines * self._vectors // self._threads)

    def _item(self, turn: int) -> _Item:
        """A thread's vector at a turn."""
        b, count, vectors = self._b, self._lines * self._vectors, self._vectors
        number, apart = b.thread_id(), self._threads // vectors
        whole = count % self._threads == 0
        if whole and self._threads % vectors == 0:
            # The same vector of every so many lines: places that differ by what is known.
            line, vector = number // vectors, number % vectors
            place = line * self._pitch + vector * WORDS
            return _Item(None, line + turn * apart, vector, place + turn * apart * self._pitch)
        number = number + turn * self._threads
        inside = number if whole else b.min(number, count - 1)
        line, vector = inside // vectors, inside % vectors
        full = (turn + 1) * self._threads <= count
        return _Item(None if full else number < count, line, vector, line * self._pitch + vector * WORDS)

    def _guard(self, item: _Item) -> AbstractContextManager[None]:
        return nullcontext() if item.inside is None else self._b.if_(item.inside)

    def _at(self, first: Handle, item: _Item) -> tuple[Value, Index, int]:
        return self._staged.value, self._staged.index(first + item.line, item.vector * EIGHT), self._staged.axis

    def _stored(self, first: Handle, item: _Item) -> StoredHalves | None:
        return stored_halves(self._frame, *self._at(first, item), self._half)

    def key_place(self, line: Handle, lane: Handle) -> Handle:
        """Where a line has lane t's first vector."""
        return line * self._pitch + lane * WORDS

    def key_words(self, place: Handle, lines: int, pair: int) -> Handle:
        """The vector for the products 2 · `pair` and the next, so many lines further on."""
        return self.shared.load(place + (lines * self._pitch + pair * WORDS * WORDS), WORDS)

    def value_place(self, lane: Handle, word: Handle) -> Handle:
        """Where lane t's first line has a word."""
        return lane * (2 * self._pitch) + word

    def value_words(self, place: Handle, lines: int, words: int, count: int) -> list[Handle]:
        """`count` words, so many lines and words further on."""
        at = place + (lines * self._pitch + words)
        if count == 1:
            return [self.shared[at]]
        loaded = self.shared.load(at, count)
        return [loaded[i] for i in range(count)]


class Queries:
    """A lane's queries as left factors, `factors` by fragment of rows and product: in its registers, or `apart` in
    shared memory, where no other lane looks."""

    def __init__(self, b: KernelBuilder, factors: list[list[Handle]], threads: int, *, apart: bool) -> None:
        self._b, self._factors, self._threads, self._each = b, factors, threads, len(factors[0])
        self._shared: SharedRef | None = None
        if apart:
            self._shared = b.shared("queries", DType.U32, len(factors) * self._each * WORDS * threads)
            for r, several in enumerate(factors):
                for k, factor in enumerate(several):
                    self._shared[self._place(r, k)] = factor

    def _place(self, r: int, k: int) -> Handle:
        return self._b.thread_id() * WORDS + (r * self._each + k) * WORDS * self._threads

    def factor(self, r: int, k: int) -> Handle:
        """Of a fragment of rows, for product `k`."""
        return self._factors[r][k] if self._shared is None else self._shared.load(self._place(r, k), WORDS)


def columns_together(one: Handle, other: Handle) -> tuple[Handle, Handle]:
    """Two words of two positions, each with two columns, as words of a column each, the first position lowest."""
    return (one & LOW) | (other << 16), (one >> 16) | (other & HIGH)
