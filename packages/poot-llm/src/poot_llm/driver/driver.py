"""`Driver`: one model on one executor. It never learns which device that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from types import MappingProxyType
from typing import Self

from poot_executor.errors import BindError, Poisoned, PootError, RequestError, Unsupported
from poot_executor.executor import Executor
from poot_llm.driver.decoding import Decoding, DecodingPlan
from poot_llm.driver.encoding import Encoding
from poot_llm.driver.entry_budget import EntryBudget
from poot_llm.driver.facts import DriverFacts
from poot_llm.driver.flights import Flights
from poot_llm.driver.inputs import InputRows
from poot_llm.driver.loaded import LoadedModel
from poot_llm.driver.options import DriverOptions
from poot_llm.driver.sequence import FinishReason, Guide, Sequence, StepResult
from poot_llm.driver.tokens import TokenStream
from poot_llm.driver.whole_texts import WholeTexts
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams, Suffix

NO_INPUTS: Mapping[str, InputRows] = MappingProxyType({})


class Driver(DriverFacts, WholeTexts):
    """Runs a model: weights loaded once, a finite set of steps prepared up front.

    A model that generates: `open` takes room for a prompt, `step` computes, `commit` accepts a token, `release` gives
    the room back; `generate` is that driven for one sequence. `encode` runs passes over whole texts: embeddings, scores
    of pairs, hidden states, also of a model that generates. What a model does not do is Unsupported by name. Calls come
    from one thread.
    """

    def __init__(self, handle: ModelHandle, executor: Executor, options: DriverOptions | None = None) -> None:
        """Load the weights. Nothing is compiled or uploaded yet.

        Raises SettingsError for options that the model or the executor does not allow, or that the device's memory does
        not hold.
        """
        self.handle = handle
        self.options = options = DriverOptions() if options is None else options
        if len(executor.target_set) != 1:
            raise Unsupported(f"{len(executor.target_set)} targets", "a driver has one")
        plan = DecodingPlan.of(handle, executor, options) if handle.generates else None
        self._executor = executor
        self._executable = executor.load_weights(handle.store, handle.weight_map)
        self._flights = flights = Flights(executor, self._executable, self._recover)
        budget = EntryBudget(options.max_entries, options.max_entry_bytes)
        model = LoadedModel(handle, executor, self._executable, options, flights, budget)
        self._encoding = Encoding(model, handle.limit if plan is None else min(handle.limit, plan.steps.capacity))
        self._generating: Decoding | None = None if plan is None else Decoding.of(plan, model)
        self._closed = False

    # Preparation

    def prepare(self, suffixes: Iterable[Suffix] = tuple(Suffix)) -> None:
        """Compile every step of the finite set, for these suffixes. A later one serves what an earlier one does.

        Raises Unsupported or CompileLimit by name, and OutOfMemory where the device is too small.
        """
        self._require_open()
        if self._decoding.copies is not None:
            self._decoding.copies.prepare()
        self._decoding.preparation.all(suffixes)

    def prepare_for(
        self, prompt_tokens: int, params: SamplingParams, inputs: Mapping[str, InputRows] = NO_INPUTS
    ) -> None:
        """Compile the steps that a request of that length would take alone. `open` does this for itself."""
        self._require_open()
        self._decoding.preparation.alone(None, prompt_tokens, params, inputs)

    def prepare_batch(self, rows: int, suffix: Suffix) -> None:
        """Compile the decoding steps in which so many sequences run together, and of a quarter of them, and so on."""
        self._require_open()
        self._decoding.preparation.batch(rows, suffix)

    # Sequences

    def open(
        self,
        prompt_ids: Items[int],
        params: SamplingParams | None = None,
        *,
        inputs: Mapping[str, InputRows] = NO_INPUTS,
        guide: Guide | None = None,
        reserve: bool = True,
    ) -> Sequence | None:
        """Take room for a prompt; None where there is none. Compiles what it will need.

        With `reserve` there is room for the whole answer from now on; without it blocks are taken as it grows, and
        `grow` says when there are none left.

        Raises RequestError for a prompt that is empty, holds what is no token id, or leaves no room
        for one more token (with both numbers), and for parameters or inputs that do not fit the model.
        """
        self._require_open()
        params = SamplingParams() if params is None else params
        parts = self._decoding
        sequence = parts.requests.sequence(prompt_ids, params, inputs, guide, reserve)
        if parts.copies is not None:
            parts.copies.prepare()
        if not parts.sequences.seat(sequence):
            return None
        lease = sequence.lease
        assert lease is not None
        try:
            parts.preparation.alone(lease.row, len(sequence.prompt_ids), params, sequence.inputs)
        except BaseException:
            parts.kv.give_back(lease)
            raise
        parts.sequences.add(sequence)
        return sequence

    def check(
        self,
        prompt_ids: Items[int],
        params: SamplingParams,
        *,
        inputs: Mapping[str, InputRows] = NO_INPUTS,
    ) -> tuple[int, ...]:
        """The prompt's ids, where `open` would take the request, its structure apart. Raises what it would."""
        self._require_open()
        return self._decoding.requests.check(prompt_ids, params, inputs)

    def guide(self, params: SamplingParams) -> Guide | None:
        """What keeps an answer to its `structured_outputs`, from the beginning; None where it has none. It compiles in
        other threads and waits: pass `open` one that is compiled already where nothing may wait.

        Raises RequestError for a constraint that cannot be compiled, or not within the limits.
        """
        return self._decoding.requests.guide(params)

    def step(self, sequences: Items[Sequence]) -> list[StepResult]:
        """Advance sequences, each by a chunk of what it has pending. Those that read prompts may take steps of their
        own.

        A sequence whose ids are all cached afterwards gets a token. A row whose logits are not
        finite fails alone. Where the step itself fails, its sequences fail, the state is reset and
        the other sequences compute theirs again. Raises BindError for a sequence that is finished,
        released, preempted or given twice, NoRoom where the pool is used up, before anything is computed, and
        DeviceError where the device cannot go on.
        """
        self._require_open()
        self._decoding.sequences.require(sequences)
        for sequence in sequences:
            if sequence.lease is None:
                raise BindError("a preempted sequence cannot step: resume it first")
        return self._decoding.stepper.step(sequences)

    def grow(self, sequences: Items[Sequence]) -> list[Sequence]:
        """Take the blocks that the next step of each needs; those that find none, for which others must be preempted
        or released.
        """
        self._require_open()
        self._decoding.sequences.require(sequences)
        return self._decoding.stepper.lacking(sequences)

    def commit(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Make a token part of the answer; the reason where that ends it.

        Raises BindError where the sequence is finished or still has ids pending, and for what is no
        token id.
        """
        self._require_open()
        return self._decoding.sequences.commit(sequence, token)

    def commit_given(self, results: Items[StepResult]) -> list[tuple[tuple[int, ...], PootError | None]]:
        """Commit what a step gave: of each result the tokens up to the one that ends the answer, with the failure that
        the result has, or that of a guide which refused the next token. The reason of an end is the sequence's.

        Raises BindError for a result of a sequence that was finished or released meanwhile.
        """
        self._require_open()
        return self._decoding.sequences.commit_given(results)

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence from outside: a stop string was found, say. It keeps its room."""
        if sequence.finish_reason is None:
            sequence.finish_reason = reason

    def preempt(self, sequence: Sequence) -> None:
        """Give a sequence's room to others; it keeps its answer so far, and `resume` computes again what is not found.

        Raises BindError for one that is not open.
        """
        self._require_open()
        self._decoding.sequences.preempt(sequence)

    def resume(self, sequence: Sequence) -> bool:
        """Take room for a preempted sequence; False where there is none. Its next token is the one that it would have
        got.
        """
        self._require_open()
        return self._decoding.sequences.resume(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's room back; idempotent."""
        self._decoding.sequences.release(sequence)

    # Generation

    def generate(
        self, prompt_ids: Items[int], params: SamplingParams | None = None, *, guide: Guide | None = None
    ) -> TokenStream:
        """The tokens of one answer, one by one; its room is released at the end.

        Raises RequestError as `open` does, and where all rows are taken.
        """
        return self.generate_with_inputs(prompt_ids, NO_INPUTS, params, guide=guide)

    def generate_with_inputs(
        self,
        prompt_ids: Items[int],
        inputs: Mapping[str, InputRows],
        params: SamplingParams | None = None,
        *,
        guide: Guide | None = None,
    ) -> TokenStream:
        """As `generate`, with values for inputs that the model declares: embedding rows in place of some tokens', say.
        They are bound by value.

        Raises BindError naming an input that it does not declare, and RequestError as `open` does.
        """
        sequence = self.open(prompt_ids, params, inputs=inputs, guide=guide)
        if sequence is None:
            use = self.use()
            if use.rows_taken < use.rows:
                raise RequestError(f"no room: {use.blocks_held} of the pool's {use.blocks} blocks are held")
            raise RequestError(f"no room: all {use.rows} rows are taken")
        return TokenStream(self, sequence)

    # Life

    def _recover(self) -> None:
        """After a failed step: every state is zero."""
        self._executor.reset_state(self._executable)
        if self._generating is not None:
            self._generating.sequences.forget()

    def _require_open(self) -> None:
        if self._closed:
            raise BindError("the driver is closed")

    def close(self) -> None:
        """Give weights, entries and rows back; idempotent. The executor stays open."""
        if self._closed:
            return
        self._closed = True
        if self._generating is not None:
            self._generating.sequences.release_all()
            self._generating.requests.close()
        try:
            self._executor.unload(self._executable)
        except Poisoned:
            # Nothing can be given back to a device that is lost.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
