"""The windows of a recording's first model: made to fit before each step, and bound where they changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from poot_npu.vpu.memory import Memory
from poot_npu.vpu.sweep import Sweep, Swept
from poot_npu.vpu.window import Ends, Floats, Window, WindowUse, fitted, window_of

PATIENCE = 64
"""Steps in turn, of any program, that need half of a window of several rows or less: it becomes shorter then."""


class BoundWindows:
    """`memories` are those of the states that `uses` name; the request's inputs from `first` on are their windows, and
    behind them the positions. `rows` are the arrays that get the new rows of V."""

    def __init__(
        self,
        request: Any,
        uses: Sequence[WindowUse],
        memories: Sequence[Memory],
        first: int,
        sweep: Sweep,
        rows: Sequence[Floats],
    ) -> None:
        self._request = request
        self._uses = uses
        self._memories = memories
        self._first = first
        self._bound: list[Window | None] = [None] * len(uses)
        self._tensors: list[Any] = [None] * (len(uses) + 1)
        self._sweep = sweep
        self._columns = np.arange(sweep.capacity, dtype=np.int32)
        self._length = 0
        self._row = -1
        self._rows = rows

    def look(self) -> Swept:
        """What the step sees, of its inputs as they are."""
        return self._sweep.look()

    def fit(self, swept: Swept) -> None:
        """Sweep as many positions as the step sees, or as windows of several rows have."""
        row, pairs = swept.first, zip(self._memories, self._bound, strict=True)
        settled = all(memory.window is window and memory.finite for memory, window in pairs)
        length = self._lasting(swept.length, settled)
        if settled and length == self._length and row == self._row:
            return
        ends: Ends = {}
        for place, (use, memory) in enumerate(zip(self._uses, self._memories, strict=True)):
            window = fitted(memory, use, length, swept.lasts, row, ends)
            if self._bound[place] is not window or self._row != row:
                self._bound[place] = window
                rows = window.array[row : row + use.rows]
                self._bind(place, rows.reshape(use.rows * use.heads, length, use.width))
        self._row = row
        if length != self._length:
            self._length = length
            self._bind(len(self._uses), self._columns[:length])

    def check(self) -> None:
        """Remember where a state got what is not finite."""
        if not all(np.isfinite(rows).all() for rows in self._rows):
            for memory in self._memories:
                memory.finite = False

    def _lasting(self, needed: int, settled: bool) -> int:
        """Windows of several rows are large, and steps of a few rows come between those of many: such windows keep
        their length for a while. `settled`: they are those that are bound."""
        if settled:
            found: Iterable[Window | None] = self._bound
        else:
            found = (window_of(memory, use) for memory, use in zip(self._memories, self._uses, strict=True))
        several = [window for window in found if window is not None and window.rows > 1]
        if not several:
            return needed
        longest = max(several, key=lambda window: window.length)
        longest.unused = longest.unused + 1 if needed <= longest.length // 2 else 0
        return needed if needed >= longest.length or longest.unused >= PATIENCE else longest.length

    def _bind(self, place: int, array: NDArray[Any]) -> None:
        self._tensors[place] = openvino.Tensor(array, shared_memory=True)
        self._request.set_input_tensor(self._first + place, self._tensors[place])
