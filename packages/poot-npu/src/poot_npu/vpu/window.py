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
    width].

    A `scratch` window hides what no token of one step sees, and is given up behind it: the state's own memory stays the
    truth.
    """

    array: Floats
    capacity: int
    scratch: bool = False

    @property
    def rows(self) -> int:
        """Rows, from the first."""
        return self.array.shape[0]

    @property
    def length(self) -> int:
        """Positions of each row."""
        return self.array.shape[2]

    def serves(self, use: WindowUse, first: int) -> bool:
        """Whether it has the rows of a use, from the `first` on."""
        rows, heads, _, width = self.array.shape
        return not self.scratch and rows >= first + use.rows and (self.capacity, heads, width) == _kind(use)


def window_of(memory: Memory, use: WindowUse, first: int = 0) -> Window | None:
    """The state's window, where it serves a use of the rows from `first` on."""
    window = memory.window
    return window if isinstance(window, Window) and window.serves(use, first) else None


def flush(memory: Memory) -> None:
    """Bring a state's own memory up to date."""
    window = memory.window
    if isinstance(window, Window) and not window.scratch:
        rows, heads, length, width = window.array.shape
        _own(memory, window.capacity, heads, width)[:rows, :length] = window.array.transpose(0, 2, 1, 3)


def drop(memory: Memory) -> None:
    """Bring it up to date, and forget the window."""
    flush(memory)
    memory.window = None


def fitted(memory: Memory, use: WindowUse, length: int, lasts: Sequence[int], first: int = 0) -> Window:
    """The state's window, of that length and of the rows of the use or more; `lasts` are the last positions that the
    step sees in each row, from the `first` on.

    A weight of 0 times what is not finite is not 0. Where the state holds it, what is behind the last is hidden.
    """
    window = window_of(memory, use, first)
    if window is not None and memory.finite and window.length == length:
        return window
    flush(memory)
    held = window_of(memory, use)
    rows = max(first + use.rows, 0 if held is None else held.rows)
    array = np.empty((rows, use.heads, length, use.width), np.float32)
    array[:] = _own(memory, *_kind(use))[:rows, :length].transpose(0, 2, 1, 3)
    memory.finite = memory.finite and bool(np.isfinite(array).all())
    if not memory.finite:
        for row, last in enumerate(lasts, first):
            array[row, :, last + 1 :] = 0
    memory.window = Window(array, use.capacity, not memory.finite)
    return memory.window


def put(memory: Memory, places: list[int], new: Floats) -> None:
    """Write rows f32[m, heads, width] at places, each row · capacity + position; a negative one drops its row."""
    window = memory.window
    heads, width = new.shape[1:]
    kept = [n for n, place in enumerate(places) if place >= 0]
    if isinstance(window, Window) and not window.scratch:
        if not kept:
            return
        first, count = places[kept[0]], len(kept)
        row, position = divmod(first, window.capacity)
        if row < window.rows and position + count <= window.length and places[:count] == [*range(first, first + count)]:
            # A prompt's tokens lie one behind another.
            window.array[row, :, position : position + count] = new[:count].transpose(1, 0, 2)
            return
        rows, positions = zip(*(divmod(places[n], window.capacity) for n in kept), strict=True)
        if max(rows) < window.rows and max(positions) < window.length:
            window.array[list(rows), :, list(positions)] = new[kept]
            return
    drop(memory)
    own = _own(memory, 1, heads, width)
    for n in kept:
        own[places[n]] = new[n]


def _kind(use: WindowUse) -> tuple[int, int, int]:
    return use.capacity, use.heads, use.width


def _own(memory: Memory, capacity: int, heads: int, width: int) -> Floats:
    """A state's own memory, f32[rows, capacity, heads, width]."""
    size = 4 * capacity * heads * width
    return memory.data[: memory.data.size // size * size].view(np.float32).reshape(-1, capacity, heads, width)
