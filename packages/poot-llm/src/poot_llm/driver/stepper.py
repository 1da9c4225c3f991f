"""Steps of sequences: grouped, submitted, one of them ahead, and what each gave."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from time import perf_counter

import numpy as np

from poot_executor.errors import RequestError
from poot_llm.blocks.step import FROM_STATE, LAST, POS, SPARE, TOKEN
from poot_llm.driver.entries import PreparedStep
from poot_llm.driver.flights import Flights
from poot_llm.driver.forced import Forcing
from poot_llm.driver.grouping import Grouping, needed_suffix
from poot_llm.driver.guesses import Guesser
from poot_llm.driver.inputs import SlotArrays, supplied_slots
from poot_llm.driver.kv import KvLayout, Placement
from poot_llm.driver.outcomes import Outcomes, fail
from poot_llm.driver.row_copies import RowCopies
from poot_llm.driver.runs import Member, Run
from poot_llm.driver.sequence import NoRoom, Sequence, StepResult
from poot_llm.sampling import SamplerRow, Suffix


class Stepper:
    """Advances sequences of one driver. `widths` are the inputs that the model declares."""

    def __init__(
        self,
        flights: Flights,
        kv: KvLayout,
        grouping: Grouping,
        guesser: Guesser | None,
        forcing: Forcing | None,
        copies: RowCopies | None,
        widths: dict[str, int],
        ahead: bool,
    ) -> None:
        self._flights = flights
        self._kv = kv
        self._grouping = grouping
        self._guesser = guesser
        self._forcing = forcing
        self._copies = copies
        self._outcomes = Outcomes(flights, kv, guesser, forcing)
        self._widths = widths
        self._ahead = ahead

    def lacking(self, sequences: Items[Sequence]) -> list[Sequence]:
        """Take blocks for the next step of each; those that find none."""
        return [s for s in sequences if s.lease is None or not self._reaches(s, s.length)]

    def _reaches(self, s: Sequence, positions: int) -> bool:
        """Room for as many positions of a sequence, or False with nothing changed."""
        lease = s.lease
        return lease is not None and (positions <= lease.room or self._kv.extend(lease, positions))

    def step(self, sequences: Items[Sequence]) -> list[StepResult]:
        """See `Driver.step`."""
        started = perf_counter()
        runs, fresh = self._under_way(sequences)
        results: dict[Sequence, StepResult] = {}
        if fresh:
            results = self._unguided(fresh)
            fresh = [s for s in fresh if s not in results]
            if lacking := self.lacking(fresh):
                blocks = self._kv.use().blocks
                assert blocks is not None
                raise NoRoom(len(lacking), blocks)
            for run in self._start(fresh):
                runs[run] = list(run.members)
        following = self._follow(*next(iter(runs.items()))) if len(runs) == 1 else None
        for run, members in runs.items():
            self._flights.finish(run.flight)
            self._outcomes.read(run, members, results, len(sequences) == 1)
        if following is not None:
            for s, member in following.members.items():
                if (token := results[s].token) is not None:
                    s.ahead, member.expects = following, token
        self._count(runs, results, perf_counter() - started)
        return [results[s] for s in sequences]

    @staticmethod
    def _unguided(sequences: Items[Sequence]) -> dict[Sequence, StepResult]:
        """Those whose guide cannot say what may come next: they fail alone."""
        failed = {}
        for s in sequences:
            if s.guide is not None:
                try:
                    s.guide.mask()
                except RequestError as error:
                    failed[s] = fail(s, error)
        return failed

    @staticmethod
    def _under_way(sequences: Items[Sequence]) -> tuple[dict[Run, list[Sequence]], list[Sequence]]:
        """The steps that were submitted ahead, with the sequences that they serve; and the other sequences."""
        runs: dict[Run, list[Sequence]] = {}
        fresh: list[Sequence] = []
        for s in sequences:
            ahead, s.ahead = s.ahead, None
            if ahead is not None and ahead.serves(s):
                if (members := runs.get(ahead)) is None:
                    members = runs[ahead] = []
                members.append(s)
            else:
                s.repeat()
                fresh.append(s)
        return runs, fresh

    def _count(self, runs: dict[Run, list[Sequence]], results: dict[Sequence, StepResult], seconds: float) -> None:
        for run, members in runs.items():
            if not run.flight.lost:
                window, placed = run.key.shape.window, run.members
                for s in members:
                    s.count(len(results[s].given) if window else placed[s].count, seconds)
            known = seconds if len(runs) == 1 else None
            if self._guesser is not None:
                self._guesser.took(run.key.shape, known)
            if self._copies is not None and known is not None:
                self._copies.took(run.key.shape, known)
            if self._forcing is not None and known is not None and any(s.guide is not None for s in members):
                self._forcing.took(run.key.shape, known)

    # Submitting

    def _start(self, sequences: Items[Sequence]) -> list[Run]:
        """Submit a step for each group."""
        runs: list[Run] = []
        plain = list(sequences)
        if self._guesser is not None:
            window = self._window(plain)
            if window is not None:
                runs.append(window)
                plain = [s for s in plain if s not in window.members]
        for group in self._grouping.groups(plain) if plain else ():
            members = {}
            for s, row in group.rows.items():
                assert s.lease is not None
                members[s] = Member(s.lease, row, s.cached, min(s.pending, group.step.key.shape.tokens))
            runs.append(self._submit(group.step, members))
        return runs

    def _window(self, sequences: Items[Sequence]) -> Run | None:
        """Submit a step that checks guesses of those sequences that have some."""
        assert self._guesser is not None
        guesses: dict[Sequence, tuple[int, ...]] = {}
        for s in sequences:
            found = self._guesser.guess(s)
            if found and self._reaches(s, s.length + len(found)):
                guesses[s] = found
        if not guesses:
            return None
        guessing = list(guesses)
        group = self._grouping.window(guessing, [len(s) + len(guesses[s]) for s in guessing])
        if group is None:
            return None
        members = {}
        for s, row in group.rows.items():
            assert s.lease is not None
            members[s] = Member(s.lease, row, s.cached, 1 + len(guesses[s]), guesses[s])
        return self._submit(group.step, members)

    def _follow(self, run: Run, members: Items[Sequence]) -> Run | None:
        """Submit the step after one that is under way, if there will be one: its tokens come from the state, so nothing
        has to be known of them. The state must still be what that step leaves, and its rows the same.
        """
        if not self._ahead or run.flight.over or self._flights.newest is not run.flight or run.key.shape.window:
            return None
        # What is guessed, and what a guide allows, depends on the token that is not known yet.
        if self._guesser is not None:
            return None
        following = self._going_on(run, members)
        if not following:
            return None
        among, count = run.key.shape.among, len(following)
        if among is not None and run.key.shape.tokens > 1 and self._kv.use().rows_taken > count:
            return None  # it decodes together with the others
        rows = max([m.row if among is None else m.lease.row for m in following.values()]) + 1
        end = max([m.start for m in following.values()]) + 1
        suffix = needed_suffix(following)
        step = self._grouping.decoding(rows, count, end, suffix)
        if step is None or step.key.shape.tokens != 1:
            return None
        if step.key.shape.among != among:
            return None  # in a step of the other kind its row is another one
        if count < step.key.shape.rows:
            packed = max(self._grouping.rows(list(following)).values()) + 1
            least = self._grouping.decoding(packed, count, end, suffix)
            if least is None or least.key.shape.rows < step.key.shape.rows:
                return None
        for s, m in following.items():
            if m.start >= m.lease.room and not self._kv.extend(m.lease, s.length + 1):
                return None
        if count < len(run.members):
            return self._submit(step, following, ahead=True)
        return self._submit(step, following, run.placement.following(), run.drawing, ahead=True)

    @staticmethod
    def _going_on(run: Run, members: Items[Sequence]) -> dict[Sequence, Member]:
        """Those whose answer goes on after a step that is under way, each with its part of the next one; none where
        the next one cannot be submitted yet.
        """
        following: dict[Sequence, Member] = {}
        for s in members:
            member, length, lease = run.members[s], s.length, s.lease
            if member.start + member.count != length:
                return {}
            if len(s.tokens) + 1 >= s.limit:
                continue
            if lease is None or s.guide is not None:
                return {}
            following[s] = Member(lease, member.row, length, 1)
        return following

    def _submit(
        self,
        prepared: PreparedStep,
        members: dict[Sequence, Member],
        placement: Placement | None = None,
        drawing: Mapping[int, SamplerRow] | None = None,
        ahead: bool = False,
    ) -> Run:
        """`placement` of the members, and `drawing` by what their rows are drawn: where it is known already."""
        key = prepared.key
        shape = key.shape
        tokens = np.zeros((shape.rows, shape.tokens), np.int32)
        position = np.zeros(shape.rows, np.int32)
        last = np.full(shape.rows, SPARE, np.int32)
        if placement is None:
            placement = Placement.of(members.values())
        rows = placement.rows
        position[rows], last[rows] = placement.start, placement.count - 1
        if ahead:
            tokens[rows, 0] = FROM_STATE
        elif shape.tokens == 1:
            tokens[rows, 0] = [s.at(m.start) for s, m in members.items()]
        else:
            for s, m in members.items():
                known = m.count - len(m.guesses)
                tokens[m.row, :known] = s.ids(m.start, m.start + known)
                if m.guesses:
                    tokens[m.row, known : m.count] = m.guesses
        inputs: SlotArrays = {TOKEN: tokens, POS: position, LAST: last}
        inputs |= self._kv.slots(shape, placement)
        again = drawing
        if drawing is None:
            drawing = self._drawing(prepared, members, ahead)
            again = drawing if ahead and all(s.steady for s in members) else None
        inputs |= prepared.sampler.fill(drawing)
        if key.inputs:
            widths = {name: self._widths[name] for name in key.inputs}
            inputs |= supplied_slots(shape, widths, [(m.row, m.start, m.count, s.inputs) for s, m in members.items()])
        resets = self._flights.resets
        flight = self._flights.submit(prepared.entry, inputs, prepared.lanes)
        return Run(key, flight, members, placement, again, resets)

    @staticmethod
    def _drawing(prepared: PreparedStep, members: dict[Sequence, Member], ahead: bool) -> dict[int, SamplerRow]:
        """The rows of logits that a token is drawn from, and by what."""
        key = prepared.key
        drawing: dict[int, SamplerRow] = {}
        if key.suffix is Suffix.GREEDY:
            return drawing
        if ahead:
            return {m.row: s.sampler_row(ahead) for s, m in members.items()}
        window = key.shape.window
        for s, m in members.items():
            if window:
                row = s.sampler_row()
                drawing |= {m.row * key.shape.tokens + place: row for place in range(m.count)}
            elif m.start + m.count == s.length:
                drawing[m.row] = s.sampler_row()
        return drawing
