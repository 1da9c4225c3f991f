"""The finite set of step shapes that follows from a driver's options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poot_executor.errors import SettingsError
from poot_llm.blocks.step import BLOCK, StepShape
from poot_llm.driver.options import DEFAULT_CAPACITY, DriverOptions

SHORT = 8
"""Where programs are dear: as many times fewer tokens than a whole chunk has the step for what is short."""


@dataclass(frozen=True, slots=True)
class StepSet:
    """Every step shape that a driver can run, each list ascending. Rows and tokens are powers of two up to their most,
    and their most. `blocks` is that of the pool, None where KV is contiguous.

    Contiguous rows lie where they lie, so a prompt may need any number of rows; with paged KV any row will do, and
    steps of several tokens have `prefill_rows` alone. With `single`, steps of several tokens have one row, whichever it
    is, and so has the step of one row and one token: a prompt is read in whole chunks beside those that decode.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    spans: tuple[int, ...]
    capacity: int
    blocks: int | None = None
    prefill_rows: tuple[int, ...] = (1,)
    window: int | None = None
    single: bool = False

    @classmethod
    def of(
        cls,
        options: DriverOptions,
        context: int,
        blocks: int | None = None,
        capacity: int | None = None,
        few: bool = False,
    ) -> StepSet:
        """`capacity` takes the place of the options'. `few`: steps of 1 token and of a whole chunk alone, of several
        rows also of an eighth of it, and rows in powers of 4, as programs are dear. Raises SettingsError for a capacity
        above the model's context, with both numbers.
        """
        if capacity is None:
            capacity = wanted_capacity(options, context)
        if any(span >= capacity for span in options.spans):
            raise SettingsError(f"spans are {options.spans}: below the capacity {capacity}")
        spans = {*options.spans, capacity}
        if blocks is not None:
            spans = {-(-span // BLOCK) * BLOCK for span in spans}
        tokens = tuple(_powers(min(options.chunk, *spans)))
        single = few and blocks is None and options.rows > 1
        if few:
            short = max(tokens[-1] // SHORT, 1) if single else 1
            tokens = tuple(dict.fromkeys((1, short, tokens[-1])))
        rows = tuple(sorted({*_powers(options.rows, 4 if few else 2), options.rows}))
        wide = rows if blocks is None else tuple(n for n in rows if n <= options.prefill_rows)
        window = options.window
        if window is not None and window > min(spans):
            raise SettingsError(f"window is {window}: at most the shortest span, {min(spans)}")
        return cls(rows, tokens, tuple(sorted(spans)), capacity, blocks, (1,) if single else wide, window, single)

    def shapes(self) -> Iterator[StepShape]:
        """All of them, windows last."""
        for rows in self.rows:
            for tokens in self.tokens:
                if tokens == 1 or rows in self.prefill_rows:
                    yield from self._over_spans(rows, tokens)
        if self.window is not None:
            for rows in self.rows:
                yield from self._over_spans(rows, self.window, window=True)

    def largest(self) -> StepShape:
        """The one whose states hold those of all others."""
        rows, last = self.rows[-1], self.spans[-1]
        seen = max(self.capacity, last)
        if self.window is None:
            return StepShape(rows, 1, seen, last, self.blocks)
        return StepShape(rows, self.window, seen, last, self.blocks, window=True)

    def _over_spans(self, rows: int, tokens: int, window: bool = False) -> Iterator[StepShape]:
        seen = max(self.capacity, self.spans[-1])
        among = self.rows[-1] if self.single and rows == 1 and not window else None
        for span in self.spans:
            yield StepShape(rows, tokens, seen, span, self.blocks, window, among)


def wanted_capacity(options: DriverOptions, context: int) -> int:
    """The options' capacity, or what it is where they name none. Raises SettingsError above the context."""
    capacity = min(context, DEFAULT_CAPACITY) if options.capacity is None else options.capacity
    if capacity > context:
        raise SettingsError(f"capacity is {capacity}, the model's context is {context}")
    return capacity


def _powers(most: int, base: int = 2) -> Iterator[int]:
    """1, base, base^2 ... up to `most`."""
    power = 1
    while power <= most:
        yield power
        power *= base
