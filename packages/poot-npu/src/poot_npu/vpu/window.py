"""Windows: a state's first positions as attention reads them, heads first, as many as steps can see.

A window is the truth about its positions while it is there; the state's own memory, in the order of its type, is
brought up to date when anything else reads or writes it. So a step of a long capacity
sweeps, and touches, what was written so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_executor.graph.keys import StateKey
from poot_npu.vpu.memory import Memory

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WindowUse:
    """A state f32[rows · capacity, heads, width] of which a model sweeps the first positions of each row. The buffer
    may hold more rows."""

    key: StateKey
    rows: int
    capacity: int
    heads: int
    width: int


@dataclass(slots=True, eq=False)
class Window:
    """`array` f32[rows, heads, length, width], the first positions of each row of a state f32[rows · capacity, heads,
    width]. It has all rows of the buffer: memory of those that nothing was written to is not touched.

    `ends`: at and behind them, there and in the state's own memory, a row holds zeros. Windows may share them, since a
    greater end is right too. A `scratch` window hides what no token of one step sees, and is given up behind it: the
    state's own memory stays the truth. `unused` are the steps in turn, of any program, that needed half of it or less.
    """

    array: Floats
    capacity: int
    ends: list[int]
    scratch: bool = False
    unused: int = 0

    @property
    def rows(self) -> int:
        """Rows, from the first."""
        return self.array.shape[0]

    @property
    def length(self) -> int:
        """Positions of each row."""
        return self.array.shape[2]

    def serves(self, use: WindowUse) -> bool:
        """Whether it is of the kind that a use has."""
        _, heads, _, width = self.array.shape
        return not self.scratch and (self.capacity, heads, width) == _kind(use)


def window_of(memory: Memory, use: WindowUse) -> Window | None:
    """The state's window, where it serves a use."""
    window = memory.window
    return window if isinstance(window, Window) and window.serves(use) else None


def flush(memory: Memory) -> None:
    """Bring a state's own memory up to date."""
    window = memory.window
    if isinstance(window, Window) and not window.scratch:
        _keep(memory, window, 0)


def drop(memory: Memory) -> None:
    """Bring it up to date, and forget the window, before something else writes to it."""
    flush(memory)
    memory.window = None
    memory.blank = False


Ends = dict[tuple[int, int], list[int]]
"""Those of windows that are made together, by (rows, capacity)."""


def fitted(memory: Memory, use: WindowUse, length: int, lasts: Sequence[int], first: int, ends: Ends) -> Window:
    """The state's window, of that length; `lasts` are the last positions that the step sees in each row, from the
    `first` on.

    A weight of 0 times what is not finite is not 0. Where the state holds it, what is behind the last is hidden.
    """
    window = window_of(memory, use)
    if window is not None and memory.finite and window.length != length:
        window = memory.window = _resized(memory, window, length)
    if window is not None and memory.finite:
        return window
    flush(memory)
    own = _own(memory, *_kind(use))
    rows = own.shape[0]
    if memory.blank and memory.finite:
        array = np.zeros((rows, use.heads, length, use.width), np.float32)
        memory.window = Window(array, use.capacity, ends.setdefault((rows, use.capacity), [0] * rows))
        return memory.window
    array = np.empty((rows, use.heads, length, use.width), np.float32)
    array[:] = own[:, :length].transpose(0, 2, 1, 3)
    memory.finite = memory.finite and bool(np.isfinite(array).all())
    if not memory.finite:
        for row, last in enumerate(lasts, first):
            array[row, :, last + 1 :] = 0
    memory.window = Window(array, use.capacity, [use.capacity] * rows, not memory.finite)
    return memory.window


def _resized(memory: Memory, window: Window, length: int) -> Window:
    """A window of another length. What lies behind its end goes to the state's own memory, and what lay behind the old
    one comes from there, where it may hold what is not finite.
    """
    rows, heads, old, width = window.array.shape
    own = _own(memory, window.capacity, heads, width)
    _keep(memory, window, length)
    array = np.zeros((rows, heads, length, width), np.float32)
    for row, end in enumerate(window.ends):
        both = min(end, old, length)
        array[row, :, :both] = window.array[row, :, :both]
        if min(end, length) > old:
            array[row, :, old:] = own[row, old:length].transpose(1, 0, 2)
            memory.finite = memory.finite and bool(np.isfinite(array[row, :, old:]).all())
    return Window(array, window.capacity, window.ends)


def _keep(memory: Memory, window: Window, start: int) -> None:
    """Write what a window holds from a position on to the state's own memory."""
    _, heads, length, width = window.array.shape
    own = _own(memory, window.capacity, heads, width)
    for row, end in enumerate(window.ends):
        if (stop := min(end, length)) > start:
            own[row, start:stop] = window.array[row, :, start:stop].transpose(1, 0, 2)
            memory.blank = False


class Places:
    """Where the new rows of a step go, in each of the states that have these rows: row · capacity + position of each,
    negative where it is dropped.
    """

    def __init__(self, places: list[int]) -> None:
        self.places = places
        self._kept = [n for n, place in enumerate(places) if place >= 0]
        self._spread: dict[tuple[int, ...], NDArray[np.intp] | None] = {}
        self._noted: list[int] | None = None

    def put(self, memory: Memory, new: Floats) -> None:
        """Write rows f32[m, heads, width]."""
        window = memory.window
        if isinstance(window, Window) and not window.scratch and self._into(window, new):
            return
        drop(memory)
        heads, width = new.shape[1:]
        own = _own(memory, 1, heads, width)
        for n in self._kept:
            own[self.places[n]] = new[n]

    def _into(self, window: Window, new: Floats) -> bool:
        """Write them to a window; False with nothing changed where it has no room for one."""
        kept = self._kept
        if not kept:
            return True
        rows, heads, length, width = window.array.shape
        first, count = self.places[kept[0]], len(kept)
        row, position = divmod(first, window.capacity)
        behind = self.places[kept[-1]] - first == count - 1 and kept[-1] == kept[0] + count - 1
        if count > 1 and behind and position + count <= length and row < rows and self._in_turn(first):
            # A prompt's tokens lie one behind another.
            self._note(window)
            window.array[row, :, position : position + count] = new[kept[0] : kept[0] + count].transpose(1, 0, 2)
            return True
        key = window.capacity, rows, heads, length
        if key not in self._spread:
            self._spread[key] = self._lines(*key)
        lines = self._spread[key]
        if lines is None:
            return False
        self._note(window)
        rows_new = new if count == len(self.places) else new[kept]
        window.array.reshape(-1, width)[lines] = rows_new.reshape(-1, width)
        return True

    def _in_turn(self, first: int) -> bool:
        return all(self.places[n] == first + at for at, n in enumerate(self._kept))

    def _lines(self, capacity: int, rows: int, heads: int, length: int) -> NDArray[np.intp] | None:
        """Of each head of each row that is kept: its line in an array [rows · heads · length, width]; None where it has
        none."""
        row, position = np.divmod(np.array([self.places[n] for n in self._kept], np.intp), capacity)
        if row.max() >= rows or position.max() >= length:
            return None
        lines = (row[:, None] * heads + np.arange(heads)) * length + position[:, None]
        return lines.reshape(-1)

    def _note(self, window: Window) -> None:
        """That rows hold something as far as it is written now."""
        ends = window.ends
        if self._noted is ends:
            return
        for n in self._kept:
            row, position = divmod(self.places[n], window.capacity)
            if ends[row] <= position:
                ends[row] = position + 1
        self._noted = ends


def _kind(use: WindowUse) -> tuple[int, int, int]:
    return use.capacity, use.heads, use.width


def _own(memory: Memory, capacity: int, heads: int, width: int) -> Floats:
    """A state's own memory, f32[rows, capacity, heads, width]."""
    size = 4 * capacity * heads * width
    return memory.data[: memory.data.size // size * size].view(np.float32).reshape(-1, capacity, heads, width)
