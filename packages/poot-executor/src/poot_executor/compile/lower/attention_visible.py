"""The run of positions that a group's rows see, and where all of them see everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot_executor.compile.indexing import Index
from poot_executor.compile.lower.attention_rows import AttentionRows
from poot_executor.compile.mask_bounds import Bound, MaskBounds
from poot_executor.dtype import DType
from poot_executor.kernel.handle import Handle


@dataclass(frozen=True, slots=True)
class Visible:
    """Positions from `low` on below `end` are seen by some row; those from `all_low` on below `all_end` by every one,
    where that is known without asking at each of them."""

    low: Handle
    end: Handle
    all_low: Handle
    all_end: Handle


class VisibleRows:
    """What a mask says of the rows of one group, `count` from `first` on; rows beyond the last are as the last."""

    def __init__(
        self, kernel: AttentionRows, bounds: MaskBounds, batch: Index, first: Handle, count: int, threads: int
    ) -> None:
        self._kernel, self._bounds, self._batch, self._first = kernel, bounds, batch, first
        self._count, self._threads = count, threads

    @property
    def whole(self) -> bool:
        """Whether the ends of a row's run are all that its mask says."""
        return self._bounds.whole

    def inside(self, row: Handle) -> Handle:
        """A row of the group that the mask may be asked about: itself, or the last."""
        kernel, b = self._kernel, self._kernel.frame.b
        return row if kernel.rows % self._count == 0 else b.min(row, kernel.rows - 1)

    def ends(self, row: Handle) -> tuple[Handle | None, Handle]:
        """The first position that a row may see, None where that is 0, and one past the last."""
        kernel, frame, b = self._kernel, self._kernel.frame, self._kernel.frame.b
        asked: dict[Bound, Index] = {}

        def answer(bound: Bound) -> Callable[[Index], Handle]:
            def give(index: Index) -> Handle:
                asked[bound] = index
                return b.const(True, DType.BOOL)

            return give

        for bound in self._bounds.bounds:
            frame.supply(bound.comparison, answer(bound))
        kernel.sees(self._batch, row, b.const(0, DType.I32))
        for bound in self._bounds.bounds:
            del frame.emission.supplied[bound.comparison]
        frame.emission.forget()
        low: Handle | None = None
        end = b.const(kernel.span, DType.I32)
        for bound, index in asked.items():
            number = frame.element(bound.number, index) + bound.more
            if bound.upper:
                end = b.min(end, number)
            else:
                low = b.max(number if low is None else low, 0 if low is None else number)
        return low, end

    def run(self) -> Visible:
        """Of the group, by all its threads together."""
        kernel, b = self._kernel, self._kernel.frame.b
        zero, span = b.const(0, DType.I32), b.const(kernel.span, DType.I32)
        if kernel.attention.mask is None:
            return Visible(zero, span, zero, span)
        if not self._bounds.bounds:
            low, end = self._asked()
            return Visible(low, end, span, zero)
        low_var, end_var = b.var(kernel.span, DType.I32, name="low"), b.var(0, DType.I32, name="end")
        all_low, all_end = b.var(0, DType.I32, name="all_low"), b.var(kernel.span, DType.I32, name="all_end")
        with b.range(b.thread_id(), self._count, self._threads, name="row") as place:
            low, end = self.ends(self.inside(self._first + place))
            low = zero if low is None else low
            low_var.set(b.min(low_var.get(), low))
            end_var.set(b.max(end_var.get(), end))
            all_low.set(b.max(all_low.get(), low))
            all_end.set(b.min(all_end.get(), end))
        first = b.group_min(low_var.get()) if any(not bound.upper for bound in self._bounds.bounds) else zero
        last = b.group_max(end_var.get())
        if not self.whole:
            return Visible(first, last, span, zero)
        every = b.group_max(all_low.get()) if first is not zero else zero
        return Visible(first, last, every, b.group_min(all_end.get()))

    def _asked(self) -> tuple[Handle, Handle]:
        """Ends of a mask that compares nothing: every row is asked at every position once, before any score."""
        kernel, b = self._kernel, self._kernel.frame.b
        low, end = b.var(kernel.span, DType.I32, name="low"), b.var(0, DType.I32, name="end")
        with b.range(b.thread_id(), kernel.span, self._threads, name="place") as place:
            some = b.var(False, DType.BOOL, name="some")
            with b.range(0, self._count, name="row") as m:
                some.set(some.get() | kernel.sees(self._batch, self.inside(self._first + m), place))
            low.set(b.select(some.get(), b.min(low.get(), place), low.get()))
            end.set(b.select(some.get(), place + 1, end.get()))
        return b.group_min(low.get()), b.group_max(end.get())
