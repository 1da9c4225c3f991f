"""Which steps of the finite set a driver compiles, and when: all of them, or those that requests will take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from poot_llm.driver.choice import shapes_for
from poot_llm.driver.entries import Entries
from poot_llm.driver.forced import FORCED_STEPS
from poot_llm.driver.grouping import PROGRAM
from poot_llm.driver.inputs import InputRows
from poot_llm.driver.kv import KvLayout
from poot_llm.driver.options import EntryKey
from poot_llm.driver.step_set import StepSet
from poot_llm.sampling import SamplingParams, Suffix


class Preparation:
    """Adds entries where there are none yet."""

    def __init__(self, steps: StepSet, kv: KvLayout, entries: Entries, jump_ahead: bool) -> None:
        self._steps = steps
        self._shapes = tuple(steps.shapes())
        self._kv = kv
        self._entries = entries
        self._jump_ahead = jump_ahead

    def all(self, suffixes: Iterable[Suffix]) -> None:
        """Every step, for these suffixes."""
        self._entries.ensure([EntryKey(PROGRAM, shape, s) for s in suffixes for shape in self._shapes])

    def batch(self, rows: int, suffix: Suffix) -> None:
        """The decoding steps in which so many sequences run together, and of a quarter of them, and so on."""
        if self._kv.fixed_rows:
            return
        covering = next((n for n in self._steps.rows if n >= rows), self._steps.rows[-1])
        wanted = {
            covering,
            *(n for n in self._steps.rows if n < covering and covering.bit_length() % 2 == n.bit_length() % 2),
        }
        prepared = self._entries.shapes(suffix)
        shapes = [s for s in self._shapes if s.rows in wanted and (s.window or s.tokens == 1) and s not in prepared]
        self._entries.ensure([EntryKey(PROGRAM, shape, suffix) for shape in shapes])

    def alone(
        self, row: int | None, prompt_tokens: int, params: SamplingParams, inputs: Mapping[str, InputRows]
    ) -> None:
        """The steps that a request of that length takes alone, in its row; None for the next one that is free."""
        if row is None or not self._kv.fixed_rows:
            row = self._kv.next_row() if self._kv.fixed_rows else 0
        end = self._steps.capacity
        if params.max_tokens is not None:
            end = min(end, prompt_tokens + params.max_tokens)
        # The last token's own K and V are never needed.
        last = max(end - 1, prompt_tokens)
        plain = [shape for shape in self._shapes if not shape.window]
        shapes = shapes_for(plain, row, 0, prompt_tokens, last)
        if self._steps.single and row > 0 and prompt_tokens < last:
            # It decodes with others too, in steps that hold its row.
            many = [shape for shape in plain if shape.among is None]
            shapes += shapes_for(many, row, prompt_tokens, 1, last)
        if params.structured_outputs is not None and self._jump_ahead:
            shapes += [s for s in plain if s.tokens in FORCED_STEPS and s.rows == row + 1 and s not in shapes]
        prepared = self._entries.shapes(params.suffix)
        keys = [EntryKey(PROGRAM, shape, params.suffix) for shape in shapes if shape not in prepared]
        windows = [shape for shape in self._shapes if shape.window and shape.rows == row + 1]
        keys += [EntryKey(PROGRAM, s, params.suffix) for s in windows if s not in prepared]
        # Which inputs lie in what is pending changes from chunk to chunk.
        for start in sorted({0, *(item.at[-1] + 1 for item in inputs.values())})[:-1]:
            names = tuple(sorted(name for name, item in inputs.items() if item.at[-1] >= start))
            known = self._entries.shapes(params.suffix, names)
            keys += [EntryKey(PROGRAM, s, params.suffix, names) for s in shapes if s not in known]
        self._entries.ensure(keys)
