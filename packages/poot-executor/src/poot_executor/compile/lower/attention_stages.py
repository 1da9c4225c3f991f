"""Tiles of K and V in shared memory, and the fragments that lanes take from them.

A line of halves is a position. Four lanes take neighbouring vectors of a line of K, so that a lane has the columns of
two products: which columns those are is free, as long as queries come in the same order (`DEPTH_ORDER`). Of V a lane
takes the same columns of two neighbouring positions, and puts the halves of each column together; which columns lanes
have is free too, so that a lane's sums are of neighbouring ones.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.half_words import EIGHT, WORDS
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder, Var
from poot_executor.kernel.handle import Handle

LOW, HIGH = 0x0000FFFF, 0xFFFF0000


class Stage:
    """Lines of one tile, `words` each, `pitch` apart. `load(line, eight)` gives eight halves of a line."""

    def __init__(
        self, frame: Frame, name: str, lines: int, words: int, pitch: int, threads: int,
        load: Callable[[Handle, Handle, Handle], list[Handle]],
    ) -> None:  # fmt: skip
        self._b: KernelBuilder = frame.b
        self._lines, self._vectors, self._pitch, self._threads, self._load = lines, words // WORDS, pitch, threads, load
        self.shared = frame.b.shared(name, DType.U32, lines * pitch)

    @property
    def _turns(self) -> int:
        return -(-self._lines * self._vectors // self._threads)

    def _item(self, turn: int) -> tuple[Handle, Handle, Handle]:
        """A thread's item at a turn, its line and its vector."""
        b, count, vectors, thread = self._b, self._lines * self._vectors, self._vectors, self._b.thread_id()
        item = thread + turn * self._threads
        if self._threads % vectors == 0 and count % self._threads == 0:
            # The same vector of every so many lines: places that differ by what is known.
            return item, thread // vectors + turn * (self._threads // vectors), thread % vectors
        inside = item if count % self._threads == 0 else b.min(item, count - 1)
        return item, inside // vectors, inside % vectors

    def fetch(self, first: Handle) -> list[Handle]:
        """Send for the tile whose first position is `first`: a thread's vectors."""
        b, found = self._b, []
        for turn in range(self._turns):
            _, line, vector = self._item(turn)
            found.append(b.vector(*self._load(first, line, vector * EIGHT)))
        return found

    def wait(self, fetched: list[Handle]) -> list[Var]:
        """What was sent for, as what a loop carries."""
        return [self._b.var(vector, name="ahead") for vector in fetched]

    def put(self, fetched: list[Handle]) -> None:
        """Into shared memory, where a barrier comes before and after."""
        b, count = self._b, self._lines * self._vectors
        for turn, words in enumerate(fetched):
            item, line, vector = self._item(turn)
            place = line * self._pitch + vector * WORDS
            if (turn + 1) * self._threads <= count:
                self.shared[place] = words
            else:
                with b.if_(item < count):
                    self.shared[place] = words

    def key_words(self, line: Handle, pair: int, lane: Handle) -> Handle:
        """Lane t's vector of a line for the products 2 · `pair` and the next."""
        return self.shared.load(line * self._pitch + lane * WORDS + pair * WORDS * WORDS, WORDS)

    def value_words(self, line: Handle, word: Handle, count: int) -> list[Handle]:
        """`count` words of a line."""
        at = line * self._pitch + word
        if count == 1:
            return [self.shared[at]]
        words = self.shared.load(at, count)
        return [words[i] for i in range(count)]


def columns_together(one: Handle, other: Handle) -> tuple[Handle, Handle]:
    """Two words of two positions, each with two columns, as words of a column each, the first position lowest."""
    return (one & LOW) | (other << 16), (one >> 16) | (other & HIGH)
