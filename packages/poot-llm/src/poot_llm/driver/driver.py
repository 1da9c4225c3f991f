"""`Driver`: sequences of one model on one executor. It never learns which device that is."""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from time import perf_counter
from typing import Any, Self

from numpy.typing import NDArray

from poot_executor.errors import BindError, Poisoned, PootError, RequestError, Unsupported
from poot_executor.executor import Executor
from poot_llm.blocks.step import StepShape
from poot_llm.driver.choice import RowWork, choose_shape, shapes_for
from poot_llm.driver.entries import Entries
from poot_llm.driver.flights import Flight, Flights
from poot_llm.driver.inputs import checked_prompt, following_inputs, step_inputs
from poot_llm.driver.options import DriverOptions, EntryKey, StepSet
from poot_llm.driver.sequence import FinishReason, NonFiniteLogits, Sequence, StepResult
from poot_llm.driver.tokens import TokenStream
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams, Suffix

PROGRAM = "decoder"
"""The one program of a decoder: its prefill and decode steps differ in shape alone."""


class Driver:
    """Runs a model: weights loaded once, a finite set of steps prepared up front.

    `open` takes a row for a prompt, `step` computes, `commit` accepts a token, `release` gives the
    row back; `generate` is that driven for one sequence. Calls come from one thread.
    """

    def __init__(self, handle: ModelHandle, executor: Executor, options: DriverOptions | None = None) -> None:
        """Load the weights. Nothing is compiled or uploaded yet.

        Raises SettingsError for options that the model or the executor does not allow.
        """
        self.handle = handle
        self.options = DriverOptions() if options is None else options
        self.steps = StepSet.of(self.options, handle.config.context)
        if len(executor.target_set) != 1:
            raise Unsupported(f"{len(executor.target_set)} targets", "a driver has one")
        self._executor = executor
        self._executable = executor.load_weights(handle.store, handle.weight_map)
        self._shapes = tuple(self.steps.shapes())
        largest = StepShape(self.options.rows, 1, self.capacity, self.capacity)
        key = EntryKey(PROGRAM, largest, Suffix.GREEDY)
        self._entries = Entries(handle, executor, self._executable, self.options, key)
        self._flights = Flights(executor, self._executable, self._recover)
        self._free = list(range(self.options.rows))
        self._open: set[Sequence] = set()
        self._closed = False

    @property
    def capacity(self) -> int:
        """Ids of prompt and answer that a sequence can hold."""
        return self.steps.capacity

    @property
    def prepare_seconds(self) -> float:
        """Wall time spent so far on compiling and adding entries."""
        return self._entries.seconds

    @property
    def prepared(self) -> tuple[EntryKey, ...]:
        """The steps that can run without compiling anything."""
        return self._entries.keys()

    # Preparation

    def prepare(self, suffixes: Iterable[Suffix] = tuple(Suffix)) -> None:
        """Compile every step of the finite set, for these suffixes. SAMPLED alone serves all.

        Raises Unsupported or CompileLimit by name, and OutOfMemory where the device is too small.
        """
        self._require_open()
        self._flights.drain()
        wanted = [EntryKey(PROGRAM, shape, s) for s in suffixes for shape in self._shapes]
        self._entries.ensure(wanted)

    def prepare_for(self, prompt_tokens: int, params: SamplingParams) -> None:
        """Compile the steps that a request of that length would take in the row that is free next.
        `open` does this for itself.
        """
        self._require_open()
        self._prepare_row(self._free[0] if self._free else 0, prompt_tokens, params)

    def _prepare_row(self, row: int, prompt_tokens: int, params: SamplingParams) -> None:
        end = self.capacity
        if params.max_tokens is not None:
            end = min(end, prompt_tokens + params.max_tokens)
        # The last token's own K and V are never needed.
        shapes = shapes_for(self._shapes, row, 0, prompt_tokens, max(end - 1, prompt_tokens))
        prepared = self._entries.shapes(params.suffix)
        keys = [EntryKey(PROGRAM, shape, params.suffix) for shape in shapes if shape not in prepared]
        if self._entries.missing(keys):
            self._flights.drain()
            self._entries.ensure(keys)

    # Sequences

    def open(self, prompt_ids: Items[int], params: SamplingParams | None = None) -> Sequence | None:
        """Take a row for a prompt; None where all rows are taken. Compiles what it will need.

        Raises RequestError for a prompt that is empty, holds what is no token id, or leaves no room
        for one more token (with both numbers).
        """
        self._require_open()
        params = SamplingParams() if params is None else params
        ids = checked_prompt(prompt_ids, self.capacity, self.handle.config.vocabulary)
        if not self._free:
            return None
        self._prepare_row(self._free[0], len(ids), params)
        own = frozenset() if params.ignore_eos else self.handle.tokenizer.eos_ids
        limit = self.capacity - len(ids)
        sequence = Sequence(
            row=heapq.heappop(self._free),
            prompt_ids=ids,
            params=params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            stop_ids=own | frozenset(params.stop_token_ids),
            limit=limit if params.max_tokens is None else min(limit, params.max_tokens),
        )
        self._open.add(sequence)
        return sequence

    def step(self, sequences: Items[Sequence]) -> list[StepResult]:
        """Advance sequences, each by a chunk of what it has pending, in one step.

        A sequence whose ids are all cached afterwards gets a token. A row whose logits are not
        finite fails alone. Where the step itself fails, its sequences fail, the state is reset and
        the other sequences compute theirs again. Raises BindError for a sequence that is finished,
        released or given twice, and DeviceError where the device cannot go on.
        """
        self._check_sequences(sequences)
        self._flights.drain()
        self._repeat_uncommitted(sequences)
        started = perf_counter()
        shape, suffix = self._choice(sequences)
        taken = {s: min(s.pending, shape.tokens) for s in sequences}
        flight = self._submit(sequences, shape, suffix)
        self._flights.finish(flight)
        results = self._results(sequences, flight, taken)
        seconds = perf_counter() - started
        for sequence, count in taken.items():
            sequence.count(count, seconds)
        return results

    def commit(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Make a token part of the answer; the reason where that ends it.

        Raises BindError where the sequence is finished or still has ids pending, and for what is no
        token id.
        """
        self._check_sequences([sequence])
        if sequence.pending:
            raise BindError(f"{sequence.pending} ids are pending: step until a token is given")
        vocabulary = self.handle.config.vocabulary
        if not 0 <= token < vocabulary:
            raise BindError(f"token {token} is none: ids are 0 to {vocabulary - 1}")
        sequence.tokens.append(token)
        if token in sequence.stop_ids:
            sequence.finish_reason = FinishReason.STOP
        elif len(sequence.tokens) >= sequence.limit:
            sequence.finish_reason = FinishReason.LENGTH
        return sequence.finish_reason

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence from outside: a stop string was found, say. It keeps its row."""
        if sequence.finish_reason is None:
            sequence.finish_reason = reason

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's row back; idempotent."""
        if sequence not in self._open:
            return
        self._open.remove(sequence)
        sequence.released = True
        heapq.heappush(self._free, sequence.row)

    def _check_sequences(self, sequences: Items[Sequence]) -> None:
        self._require_open()
        if not sequences or len(set(sequences)) != len(sequences):
            raise BindError("a step takes sequences, at least one and each once")
        for sequence in sequences:
            if sequence not in self._open:
                raise BindError(f"the sequence of row {sequence.row} is not open in this driver")
            if sequence.finish_reason is not None:
                reason = sequence.finish_reason.value
                raise BindError(f"the sequence of row {sequence.row} is finished ({reason})")

    # Generation

    def generate(self, prompt_ids: Items[int], params: SamplingParams | None = None) -> TokenStream:
        """The tokens of one answer, one by one; its row is released at the end.

        Raises RequestError as `open` does, and where all rows are taken.
        """
        sequence = self.open(prompt_ids, params)
        if sequence is None:
            raise RequestError(f"no room: all {self.options.rows} rows are taken")
        return TokenStream(self, sequence)

    def generate_with_inputs(
        self,
        prompt_ids: Items[int],
        inputs: Mapping[str, NDArray[Any]],
        params: SamplingParams | None = None,
    ) -> TokenStream:
        """As `generate`, with values for inputs that the model declares.

        Raises BindError naming an input that it does not declare.
        """
        declared = self.handle.family.inputs
        for name in inputs:
            if name not in declared:
                known = ", ".join(declared) or "none"
                raise BindError(f"family {self.handle.family.name} declares no input {name!r}: its inputs are {known}")
        if declared:
            raise Unsupported(f"inputs {', '.join(declared)}", "the driver binds none yet")
        return self.generate(prompt_ids, params)

    def advance(self, sequence: Sequence, ahead: Flight | None) -> tuple[StepResult, Flight | None]:
        """One step of one sequence, for `TokenStream`. `ahead` is the step that was submitted for it
        before; another one may come back, for the position after.
        """
        self._check_sequences([sequence])
        started = perf_counter()
        flight, taken = ahead, {sequence: 1}
        if flight is None or flight.lost or sequence.pending != 1:
            if flight is not None:
                self._flights.finish(flight)
            self._repeat_uncommitted([sequence])
            shape, suffix = self._choice([sequence])
            taken = {sequence: min(sequence.pending, shape.tokens)}
            flight = self._submit([sequence], shape, suffix)
        following = self._submit_following(sequence, taken[sequence], flight)
        self._flights.finish(flight)
        if flight.lost:
            # An older step of another sequence failed: this one computes its state again.
            return StepResult(sequence, None), None
        (result,) = self._results([sequence], flight, taken)
        sequence.count(taken[sequence], perf_counter() - started)
        return result, following

    def _submit_following(self, sequence: Sequence, taken: int, flight: Flight) -> Flight | None:
        """Submit the step after the one that is under way, if there will be one: its token comes
        from the state, so nothing has to be known of it.
        """
        if not self.options.ahead or taken != sequence.pending or flight.over:
            return None
        if len(sequence.tokens) + 1 >= sequence.limit:
            return None
        work = RowWork(sequence.row, len(sequence), 1)
        found = self._choose([work], sequence.params.suffix)
        if found is None or found[0].tokens != 1:
            return None
        inputs = following_inputs(sequence, *found)
        return self._flights.submit(self._entries[EntryKey(PROGRAM, *found)], inputs)

    # Steps

    @staticmethod
    def _repeat_uncommitted(sequences: Items[Sequence]) -> None:
        """A token that was given and not committed is computed again, from the id before it."""
        for sequence in sequences:
            if sequence.pending == 0:
                sequence.cached -= 1

    def _choice(self, sequences: Items[Sequence]) -> tuple[StepShape, Suffix]:
        work = [RowWork(s.row, s.cached, s.pending) for s in sequences]
        sampled = any(not s.params.greedy for s in sequences)
        suffix = Suffix.SAMPLED if sampled else Suffix.GREEDY
        found = self._choose(work, suffix)
        if found is None:
            rows = max(s.row for s in sequences) + 1
            raise BindError(f"no step of {rows} rows with suffix {suffix.value} is prepared")
        return found

    def _choose(self, work: Items[RowWork], suffix: Suffix) -> tuple[StepShape, Suffix] | None:
        """Among what is prepared."""
        prepared = self._entries.shapes(suffix)
        shape = choose_shape(prepared, work)
        return None if shape is None else (shape, prepared[shape])

    def _submit(self, sequences: Items[Sequence], shape: StepShape, suffix: Suffix) -> Flight:
        inputs = step_inputs(sequences, shape, suffix)
        return self._flights.submit(self._entries[EntryKey(PROGRAM, shape, suffix)], inputs)

    def _results(self, sequences: Items[Sequence], flight: Flight, taken: Mapping[Sequence, int]) -> list[StepResult]:
        if flight.outputs is None:
            assert flight.error is not None
            return [self._fail(sequence, flight.error) for sequence in sequences]
        results = []
        for sequence in sequences:
            sequence.cached += taken[sequence]
            if sequence.pending:
                results.append(StepResult(sequence, None))
            elif flight.outputs["non_finite"][sequence.row]:
                results.append(self._fail(sequence, NonFiniteLogits(sequence.cached - 1)))
            else:
                token = int(flight.outputs["token"][sequence.row])
                results.append(StepResult(sequence, token))
        return results

    @staticmethod
    def _fail(sequence: Sequence, failure: PootError) -> StepResult:
        sequence.finish_reason = FinishReason.ERROR
        sequence.failure = failure
        return StepResult(sequence, None, failure)

    def _recover(self) -> None:
        """After a failed step: every state is zero, so every sequence computes its own again."""
        self._executor.reset_state(self._executable)
        for sequence in self._open:
            sequence.cached = 0

    # Life

    def _require_open(self) -> None:
        if self._closed:
            raise BindError("the driver is closed")

    def close(self) -> None:
        """Give weights, entries and rows back; idempotent. The executor stays open."""
        if self._closed:
            return
        self._closed = True
        for sequence in tuple(self._open):
            self.release(sequence)
        try:
            self._executor.unload(self._executable)
        except Poisoned:
            # Nothing can be given back to a device that is lost.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
