"""What a step that is over gave each of its sequences."""

from __future__ import annotations

from collections.abc import Sequence as Items

from poot_executor.errors import PootError
from poot_executor.executor import StepOutputs
from poot_llm.driver.flights import Flights
from poot_llm.driver.forced import Forcing
from poot_llm.driver.guesses import Guesser
from poot_llm.driver.kv import KvLayout
from poot_llm.driver.runs import Member, Run
from poot_llm.driver.sequence import FinishReason, NonFiniteLogits, Sequence, StepResult
from poot_llm.sampling import Suffix, TokenLogprobs, read_logprobs


class Outcomes:
    """Reads the outputs of steps, tells the layout of KV what is computed, and the guesser what was right."""

    def __init__(self, flights: Flights, kv: KvLayout, guesser: Guesser | None, forcing: Forcing | None) -> None:
        self._flights = flights
        self._kv = kv
        self._guesser = guesser
        self._forcing = forcing

    def read(self, run: Run, members: Items[Sequence], results: dict[Sequence, StepResult], alone: bool) -> None:
        """Put the result of each of these sequences, which are in the step, into `results`. `alone`: nothing else
        steps.
        """
        flight = run.flight
        if flight.outputs is None:
            for s in members:
                # Lost: a step before it failed, and the sequence computes its state again.
                results[s] = StepResult(s, None) if flight.error is None else fail(s, flight.error)
            return
        kept = run.resets == self._flights.resets
        tokens, wrong = flight.outputs["token"].tolist(), flight.outputs["non_finite"].tolist()
        if run.key.shape.window:
            for s in members:
                results[s] = self._checked(run, s, flight.outputs, tokens, wrong, kept)
            return
        placed, more = run.members, ()
        logprobs: dict[int, TokenLogprobs] = {}
        if run.key.suffix is Suffix.FULL:
            wanted = {placed[s].row: count for s in members if (count := s.params.logprobs) is not None}
            if wanted:
                logprobs = read_logprobs(flight.outputs, wanted)
        for s in members:
            member, lease = placed[s], s.lease
            row, end = member.row, member.start + member.count
            if kept:
                s.cached = end
            if wrong[row] or end < s.length:
                results[s] = self._unfinished(s, member, bool(wrong[row]), kept)
                continue
            if kept and lease is not None and end >= lease.due:
                self._kv.computed(lease, s.ids, end)
            token = tokens[row]
            if alone and s.forcing is not None and self._forcing is not None:
                more = self._forcing.after(s, token)
            s.drawn = [token, *more] if more else [token]
            found = (logprobs[row],) if row in logprobs else ()
            results[s] = StepResult(s, token, None, more, found)

    def _unfinished(self, s: Sequence, member: Member, wrong: bool, kept: bool) -> StepResult:
        """Of a sequence that has more to read, or whose row is not finite."""
        end = member.start + member.count
        if end == s.length:
            return fail(s, NonFiniteLogits(end - 1))
        if s.lease is not None:
            if wrong:
                s.lease.shared = min(s.lease.shared, member.start)
            elif kept:
                self._kv.computed(s.lease, s.ids, end)
        return StepResult(s, None)

    def _checked(
        self, run: Run, s: Sequence, outputs: StepOutputs, tokens: Items[int], wrong: Items[int], kept: bool
    ) -> StepResult:
        """What a window gave: tokens up to the first that was guessed wrong. Each is the one that would have been drawn
        without guessing, since it is drawn at its own position after the same ids.
        """
        member = run.members[s]
        first = member.row * run.key.shape.tokens
        if wrong[first]:
            return fail(s, NonFiniteLogits(member.start))
        given: list[int] = []
        for place in range(member.count):
            if wrong[first + place]:
                break
            given.append(tokens[first + place])
            if place == len(member.guesses) or given[-1] != member.guesses[place]:
                break
        if kept:
            s.cached = member.start + len(given)
            assert s.lease is not None
            # Guesses that turned out right are computed and not committed: they are no ids of the sequence yet.
            self._kv.computed(s.lease, s.ids, min(s.cached, s.length))
        s.drawn = list(given)
        s.timings.guessed_tokens += len(member.guesses)
        s.timings.accepted_tokens += len(given) - 1
        if self._guesser is not None:
            self._guesser.checked(s, len(member.guesses), len(given) - 1)
        count = s.params.logprobs
        found: tuple[TokenLogprobs, ...] = ()
        if count is not None:
            found = tuple(read_logprobs(outputs, dict.fromkeys(range(first, first + len(given)), count)).values())
        return StepResult(s, given[0], None, tuple(given[1:]), found)


def fail(sequence: Sequence, failure: PootError) -> StepResult:
    """End a sequence with an error."""
    sequence.finish_reason = FinishReason.ERROR
    sequence.failure = failure
    return StepResult(sequence, None, failure)
