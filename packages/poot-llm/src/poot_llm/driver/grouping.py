"""Which sequences run together in a step, and in which of the prepared ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from poot_executor.errors import BindError
from poot_llm.driver.choice import RowWork, choose_shape, holds
from poot_llm.driver.entries import Entries, PreparedStep
from poot_llm.driver.options import EntryKey
from poot_llm.driver.sequence import Sequence
from poot_llm.sampling import Suffix

PROGRAM = "decoder"
"""The one program of a decoder: its prefill and decode steps differ in shape alone."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of one step with their rows in it."""

    step: PreparedStep
    rows: Mapping[Sequence, int]


class Grouping:
    """`fixed_rows`: a sequence's row is that of its lease, but in a step of one row among several; otherwise any row
    will do. `together`: all sequences run in one step; otherwise those that read prompts run apart from those that
    decode, `prefill_rows` at a time.
    """

    def __init__(self, entries: Entries, fixed_rows: bool, together: bool, prefill_rows: int) -> None:
        self._entries = entries
        self.fixed_rows = fixed_rows
        self._together = together
        self._prefill_rows = prefill_rows

    def groups(self, sequences: Items[Sequence]) -> list[Group]:
        """Every sequence in one group. Raises BindError where no prepared step serves one."""
        found: list[Group] = []
        for inputs, members in _by_inputs(sequences).items():
            if self._together:
                found.append(self._required(members, inputs))
                continue
            decoding = [s for s in members if s.pending == 1]
            reading = sorted((s for s in members if s.pending != 1), key=lambda s: s.pending)
            found += self._split(decoding, inputs, len(decoding))
            found += self._split(reading, inputs, self._prefill_rows)
        return found

    def group(self, sequences: Items[Sequence], inputs: tuple[str, ...] = ()) -> Group | None:
        """All of them in one step, None where none is prepared that holds them."""
        rows, suffix = self.rows(sequences), needed_suffix(sequences)
        if all(s.pending == 1 for s in sequences):
            end = max(s.length for s in sequences)
            step = self.decoding(max(rows.values()) + 1, len(sequences), end, suffix, inputs)
        else:
            work = [RowWork(rows[s], s.cached, s.pending) for s in sequences]
            prepared = self._entries.shapes(suffix, inputs)
            shape = choose_shape((s for s in prepared if not s.window), work)
            step = None if shape is None else self._entries[EntryKey(PROGRAM, shape, prepared[shape], inputs)]
        if step is None:
            return None
        return Group(step, rows if step.key.shape.among is None else {s: 0 for s in sequences})

    def rows(self, sequences: Items[Sequence]) -> dict[Sequence, int]:
        """The row of each in a step of theirs that is not among rows."""
        if not self.fixed_rows:
            return {s: place for place, s in enumerate(sequences)}
        rows = {}
        for s in sequences:
            assert s.lease is not None
            rows[s] = s.lease.row
        return rows

    def decoding(
        self, rows: int, count: int, end: int, suffix: Suffix, inputs: tuple[str, ...] = ()
    ) -> PreparedStep | None:
        """The step for `count` of so many rows, of one id each, after which none has more than `end` positions, among
        those that are prepared: what `choose_shape` would choose.
        """
        for step in self._entries.decoding(suffix, inputs):
            if holds(step.key.shape, rows, count) and step.key.shape.span >= end:
                return step
        return None

    def reading(self, s: Sequence, count: int) -> PreparedStep | None:
        """The step that would read so many ids of one sequence, after those that are cached."""
        suffix, row = s.suffix, 0 if s.lease is None or not self.fixed_rows else s.lease.row
        prepared = self._entries.shapes(suffix)
        shape = choose_shape((p for p in prepared if not p.window), [RowWork(row, s.cached, count)])
        return None if shape is None else self._entries[EntryKey(PROGRAM, shape, prepared[shape])]

    def window(self, sequences: Items[Sequence], ends: Items[int]) -> Group | None:
        """A step that checks guesses, after which row i would have `ends[i]` positions."""
        rows = self.rows(sequences)
        needed, most = max(rows.values()) + 1, max(ends)
        prepared = self._entries.shapes(needed_suffix(sequences))
        fits = [s for s in prepared if s.window and s.rows >= needed and s.span >= most]
        if not fits:
            return None
        shape = min(fits, key=lambda s: s.size)
        return Group(self._entries[EntryKey(PROGRAM, shape, prepared[shape])], rows)

    def _required(self, sequences: Items[Sequence], inputs: tuple[str, ...]) -> Group:
        group = self.group(sequences, inputs)
        if group is None:
            rows, suffix = max(self.rows(sequences).values()) + 1, needed_suffix(sequences)
            with_inputs = f" and inputs {', '.join(inputs)}" if inputs else ""
            raise BindError(f"no step of {rows} rows with suffix {suffix.value}{with_inputs} is prepared")
        return group

    def _split(self, sequences: Items[Sequence], inputs: tuple[str, ...], most: int) -> list[Group]:
        """Groups of up to `most`, fewer where no step of so many rows is prepared."""
        groups: list[Group] = []
        start = 0
        while start < len(sequences):
            count = min(most, len(sequences) - start)
            group = self.group(sequences[start : start + count], inputs)
            while group is None and count > 1:
                count = -(-count // 2)
                group = self.group(sequences[start : start + count], inputs)
            groups.append(self._required(sequences[start : start + count], inputs) if group is None else group)
            start += count
        return groups


def needed_suffix(sequences: Iterable[Sequence]) -> Suffix:
    """The least suffix that serves all."""
    least = Suffix.GREEDY
    for sequence in sequences:
        if sequence.suffix is not least and not least.serves(sequence.suffix):
            least = sequence.suffix
    return least


def _by_inputs(sequences: Iterable[Sequence]) -> dict[tuple[str, ...], list[Sequence]]:
    """Sequences by the inputs that lie in what they have pending."""
    by_inputs: dict[tuple[str, ...], list[Sequence]] = {}
    for sequence in sequences:
        names: tuple[str, ...] = ()
        if sequence.inputs:
            names = tuple(sorted(name for name, item in sequence.inputs.items() if item.at[-1] >= sequence.cached))
        by_inputs.setdefault(names, []).append(sequence)
    return by_inputs
