"""Steps of sequences: grouped, submitted, one of them ahead, and what each gave."""

from __future__ import annotations

from collections.abc import Sequence as Items
from time import perf_counter

import numpy as np

from poot_executor.errors import PootError, RequestError
from poot_llm.blocks.step import FROM_STATE, LAST, POS, SPARE, TOKEN
from poot_llm.driver.choice import RowWork
from poot_llm.driver.entries import PreparedStep
from poot_llm.driver.flights import Flights
from poot_llm.driver.grouping import Grouping, needed_suffix
from poot_llm.driver.guesses import Guesser
from poot_llm.driver.inputs import SlotArrays, supplied_slots
from poot_llm.driver.kv import KvLayout, Placed
from poot_llm.driver.runs import Member, Run
from poot_llm.driver.sequence import FinishReason, NonFiniteLogits, NoRoom, Sequence, StepResult
from poot_llm.sampling import SamplerRow, Suffix, TokenLogprobs


class Stepper:
    """Advances sequences of one driver. `widths` are the inputs that the model declares."""

    def __init__(
        self,
        flights: Flights,
        kv: KvLayout,
        grouping: Grouping,
        guesser: Guesser | None,
        widths: dict[str, int],
        ahead: bool,
    ) -> None:
        self._flights = flights
        self._kv = kv
        self._grouping = grouping
        self._guesser = guesser
        self._widths = widths
        self._ahead = ahead

    def lacking(self, sequences: Items[Sequence]) -> list[Sequence]:
        """Take blocks for the next step of each; those that find none."""
        return [s for s in sequences if s.lease is None or not self._kv.extend(s.lease, len(s))]

    def step(self, sequences: Items[Sequence]) -> list[StepResult]:
        """See `Driver.step`."""
        started = perf_counter()
        runs, fresh = self._under_way(sequences)
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
            for s in members:
                results[s] = self._result(run, s)
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
                runs.setdefault(ahead, []).append(s)
            else:
                s.repeat()
                fresh.append(s)
        return runs, fresh

    def _count(self, runs: dict[Run, list[Sequence]], results: dict[Sequence, StepResult], seconds: float) -> None:
        for run, members in runs.items():
            for s in members:
                if not run.flight.lost:
                    s.count(len(results[s].given) if run.key.shape.window else run.members[s].count, seconds)
            if self._guesser is not None:
                self._guesser.took(run.key.shape, seconds if len(runs) == 1 else None)

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
            if found and s.lease is not None and self._kv.extend(s.lease, len(s) + len(found)):
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
        if any(run.members[s].start + run.members[s].count != len(s) for s in members):
            return None
        going = [s for s in members if len(s.tokens) + 1 < s.limit]
        # What a guide allows, and what is guessed, depends on the token that is not known yet.
        if not going or self._guesser is not None or any(s.guide is not None for s in going):
            return None
        suffix = needed_suffix(going)
        step = self._grouping.choose([RowWork(run.members[s].row, len(s), 1) for s in going], suffix)
        if step is None or step.key.shape.tokens != 1:
            return None
        if len(going) < step.key.shape.rows:
            packed = self._grouping.rows(going)
            least = self._grouping.choose([RowWork(packed[s], len(s), 1) for s in going], suffix)
            if least is None or least.key.shape.rows < step.key.shape.rows:
                return None
        following = {}
        for s in going:
            if s.lease is None or not self._kv.extend(s.lease, len(s) + 1):
                return None
            following[s] = Member(s.lease, run.members[s].row, len(s), 1)
        return self._submit(step, following, ahead=True)

    def _submit(self, prepared: PreparedStep, members: dict[Sequence, Member], ahead: bool = False) -> Run:
        key = prepared.key
        shape = key.shape
        tokens = np.zeros((shape.rows, shape.tokens), np.int32)
        position = np.zeros(shape.rows, np.int32)
        last = np.full(shape.rows, SPARE, np.int32)
        drawing: dict[int, SamplerRow] = {}
        for s, m in members.items():
            known = m.count - len(m.guesses)
            if ahead:
                tokens[m.row, 0] = FROM_STATE
            else:
                tokens[m.row, :known] = s.ids(m.start, m.start + known)
                if m.guesses:
                    tokens[m.row, known : m.count] = m.guesses
            position[m.row], last[m.row] = m.start, m.count - 1
            if key.suffix is Suffix.GREEDY:
                continue
            if shape.window:
                row = s.sampler_row()
                drawing |= {m.row * shape.tokens + place: row for place in range(m.count)}
            elif ahead or m.start + m.count == len(s):
                drawing[m.row] = s.sampler_row(ahead)
        inputs: SlotArrays = {TOKEN: tokens, POS: position, LAST: last}
        inputs |= self._kv.slots(shape, [Placed(m.lease, m.row, m.start, m.count) for m in members.values()])
        inputs |= prepared.sampler.fill(drawing)
        if key.inputs:
            widths = {name: self._widths[name] for name in key.inputs}
            inputs |= supplied_slots(shape, widths, [(m.row, m.start, m.count, s.inputs) for s, m in members.items()])
        resets = self._flights.resets
        return Run(key, self._flights.submit(prepared.entry, inputs, prepared.lanes), members, resets)

    # Results

    def _result(self, run: Run, s: Sequence) -> StepResult:
        flight, member = run.flight, run.members[s]
        if flight.lost:
            # A step before it failed: the sequence computes its state again.
            return StepResult(s, None)
        if flight.outputs is None:
            assert flight.error is not None
            return fail(s, flight.error)
        if run.key.shape.window:
            return self._checked(run, s, member)
        end, finite = member.start + member.count, not flight.outputs["non_finite"][member.row]
        kept = run.resets == self._flights.resets
        if kept:
            s.cached = end
        if end < len(s):
            if kept and finite:
                self._computed(s)
            elif s.lease is not None:
                s.lease.shared = min(s.lease.shared, member.start)
            return StepResult(s, None)
        if not finite:
            return fail(s, NonFiniteLogits(end - 1))
        if kept:
            self._computed(s)
        token = int(flight.outputs["token"][member.row])
        s.drawn = [token]
        return StepResult(s, token, logprobs=self._logprobs(run, s, [member.row]))

    def _checked(self, run: Run, s: Sequence, member: Member) -> StepResult:
        """What a window gave: tokens up to the first that was guessed wrong. Each is the one that would have been drawn
        without guessing, since it is drawn at its own position after the same ids.
        """
        assert run.flight.outputs is not None
        first = member.row * run.key.shape.tokens
        tokens, non_finite = run.flight.outputs["token"], run.flight.outputs["non_finite"]
        if non_finite[first]:
            return fail(s, NonFiniteLogits(member.start))
        given: list[int] = []
        for place in range(member.count):
            if non_finite[first + place]:
                break
            given.append(int(tokens[first + place]))
            if place == len(member.guesses) or given[-1] != member.guesses[place]:
                break
        if run.resets == self._flights.resets:
            s.cached = member.start + len(given)
            self._computed(s)
        s.drawn = list(given)
        s.timings.guessed_tokens += len(member.guesses)
        s.timings.accepted_tokens += len(given) - 1
        if self._guesser is not None:
            self._guesser.checked(s, len(member.guesses), len(given) - 1)
        logprobs = self._logprobs(run, s, range(first, first + len(given)))
        return StepResult(s, given[0], more=tuple(given[1:]), logprobs=logprobs)

    def _computed(self, s: Sequence) -> None:
        assert s.lease is not None
        # Guesses that turned out right are computed and not committed: they are no ids of the sequence yet.
        self._kv.computed(s.lease, s.ids, min(s.cached, len(s)))

    @staticmethod
    def _logprobs(run: Run, s: Sequence, rows: Items[int]) -> tuple[TokenLogprobs, ...]:
        count = s.params.logprobs
        if count is None:
            return ()
        assert run.flight.outputs is not None
        return tuple(TokenLogprobs.read(run.flight.outputs, row, count) for row in rows)


def fail(sequence: Sequence, failure: PootError) -> StepResult:
    """End a sequence with an error."""
    sequence.finish_reason = FinishReason.ERROR
    sequence.failure = failure
    return StepResult(sequence, None, failure)
