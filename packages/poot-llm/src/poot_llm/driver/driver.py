"""`Driver`: sequences of one model on one executor. It never learns which device that is."""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from poot_executor.compile.target import Granularity
from poot_executor.errors import BindError, Poisoned, RequestError, Unsupported
from poot_executor.executor import Executor
from poot_executor.stats import EngineStats
from poot_llm.driver.choice import shapes_for
from poot_llm.driver.contiguous_kv import ContiguousKv
from poot_llm.driver.entries import Entries
from poot_llm.driver.flights import Flights
from poot_llm.driver.grouping import PROGRAM, Grouping
from poot_llm.driver.guesses import Guesser
from poot_llm.driver.inputs import InputRows, checked_inputs, checked_prompt
from poot_llm.driver.kv import KvLayout, KvUse
from poot_llm.driver.kv_fit import KvPlan, fit
from poot_llm.driver.options import DriverOptions, EntryKey, Layout
from poot_llm.driver.paged_kv import PagedKv
from poot_llm.driver.sequence import FinishReason, Guide, Sequence, StepResult
from poot_llm.driver.step_set import StepSet
from poot_llm.driver.stepper import Stepper
from poot_llm.driver.tokens import TokenStream
from poot_llm.registry import ModelHandle
from poot_llm.sampling import History, SamplingParams, Suffix

if TYPE_CHECKING:
    from poot_llm.guided.compiler import GuideCompiler

NO_INPUTS: Mapping[str, InputRows] = MappingProxyType({})


class Driver:
    """Runs a model: weights loaded once, a finite set of steps prepared up front.

    `open` takes room for a prompt, `step` computes, `commit` accepts a token, `release` gives the
    room back; `generate` is that driven for one sequence. Calls come from one thread.
    """

    def __init__(self, handle: ModelHandle, executor: Executor, options: DriverOptions | None = None) -> None:
        """Load the weights. Nothing is compiled or uploaded yet.

        Raises SettingsError for options that the model or the executor does not allow, or that the device's memory does
        not hold.
        """
        self.handle = handle
        self.options = DriverOptions() if options is None else options
        if len(executor.target_set) != 1:
            raise Unsupported(f"{len(executor.target_set)} targets", "a driver has one")
        caps = executor.target_set[0].caps
        paged = self.options.layout is Layout.PAGED or (
            self.options.layout is Layout.AUTO and self.options.rows > 1 and caps.granularity is Granularity.KERNEL
        )
        limits = [n for n in (caps.max_binding_bytes, caps.max_buffer_bytes) if n is not None]
        self.plan: KvPlan = fit(handle, self.options, paged, executor.stats().memory, min(limits, default=None))
        """What there is room for, and what was given up for it."""
        sized = replace(self.options, rows=self.plan.rows)
        self.steps = StepSet.of(sized, handle.config.context, self.plan.blocks, self.plan.capacity, caps.few_programs)
        self.kv: KvLayout = self._layout(self.plan)
        self._executor = executor
        self._executable = executor.load_weights(handle.store, handle.weight_map)
        self._shapes = tuple(self.steps.shapes())
        largest = EntryKey(PROGRAM, self.steps.largest(), Suffix.GREEDY)
        self._entries = Entries(handle, executor, self._executable, self.options, largest)
        self._flights = Flights(executor, self._executable, self._recover)
        self._guesser = None if self.options.window is None else Guesser(self.options.window - 1)
        self._widths = {name: width(handle.config) for name, width in handle.family.inputs.items()}
        self._stepper = Stepper(
            self._flights,
            self.kv,
            Grouping(self._entries, self.kv.fixed_rows, self.options.prefill_rows),
            self._guesser,
            self._widths,
            self.options.ahead,
        )
        self._guides: GuideCompiler | None = None
        self._open: set[Sequence] = set()
        self._closed = False

    def _layout(self, plan: KvPlan) -> KvLayout:
        cache = self.options.prefix_cache
        if plan.blocks is None:
            return ContiguousKv(plan.rows, plan.capacity, cache is True)
        return PagedKv(plan.rows, plan.capacity, plan.blocks, cache is not False)

    @property
    def capacity(self) -> int:
        """Ids of prompt and answer that a sequence can hold."""
        return self.steps.capacity

    @property
    def rows(self) -> int:
        """Sequences that can be open at once."""
        return self.plan.rows

    @property
    def prepare_seconds(self) -> float:
        """Wall time spent so far on compiling and adding entries."""
        return self._entries.seconds

    @property
    def wait_seconds(self) -> float:
        """Wall time spent so far on waiting for submitted steps."""
        return self._flights.waited

    def stats(self) -> EngineStats:
        """What lies under it counts."""
        return self._executor.stats()

    @property
    def prepared(self) -> tuple[EntryKey, ...]:
        """The steps that can run without compiling anything."""
        return self._entries.keys()

    def use(self) -> KvUse:
        """Rows, blocks and reused positions, as they are now."""
        return self.kv.use()

    # Preparation

    def prepare(self, suffixes: Iterable[Suffix] = tuple(Suffix)) -> None:
        """Compile every step of the finite set, for these suffixes. A later one serves what an earlier one does.

        Raises Unsupported or CompileLimit by name, and OutOfMemory where the device is too small.
        """
        self._require_open()
        self._ensure([EntryKey(PROGRAM, shape, s) for s in suffixes for shape in self._shapes])

    def prepare_for(
        self, prompt_tokens: int, params: SamplingParams, inputs: Mapping[str, InputRows] = NO_INPUTS
    ) -> None:
        """Compile the steps that a request of that length would take alone. `open` does this for itself."""
        self._require_open()
        self._prepare_alone(self.kv.next_row() if self.kv.fixed_rows else 0, prompt_tokens, params, inputs)

    def prepare_batch(self, rows: int, suffix: Suffix) -> None:
        """Compile the decoding steps in which so many sequences run together, and of a quarter of them, and so on."""
        self._require_open()
        if self.kv.fixed_rows:
            return
        covering = next((n for n in self.steps.rows if n >= rows), self.steps.rows[-1])
        wanted = {
            covering,
            *(n for n in self.steps.rows if n < covering and covering.bit_length() % 2 == n.bit_length() % 2),
        }
        prepared = self._entries.shapes(suffix)
        shapes = [s for s in self._shapes if s.rows in wanted and (s.window or s.tokens == 1) and s not in prepared]
        self._ensure([EntryKey(PROGRAM, shape, suffix) for shape in shapes])

    def _prepare_alone(
        self, row: int, prompt_tokens: int, params: SamplingParams, inputs: Mapping[str, InputRows]
    ) -> None:
        end = self.capacity
        if params.max_tokens is not None:
            end = min(end, prompt_tokens + params.max_tokens)
        # The last token's own K and V are never needed.
        last = max(end - 1, prompt_tokens)
        plain = [shape for shape in self._shapes if not shape.window]
        shapes = shapes_for(plain, row, 0, prompt_tokens, last)
        prepared = self._entries.shapes(params.suffix)
        keys = [EntryKey(PROGRAM, shape, params.suffix) for shape in shapes if shape not in prepared]
        if self._guesser is not None:
            windows = [shape for shape in self._shapes if shape.window and shape.rows == row + 1]
            keys += [EntryKey(PROGRAM, s, params.suffix) for s in windows if s not in prepared]
        # Which inputs lie in what is pending changes from chunk to chunk.
        for start in sorted({0, *(item.at[-1] + 1 for item in inputs.values())})[:-1]:
            names = tuple(sorted(name for name, item in inputs.items() if item.at[-1] >= start))
            known = self._entries.shapes(params.suffix, names)
            keys += [EntryKey(PROGRAM, s, params.suffix, names) for s in shapes if s not in known]
        self._ensure(keys)

    def _ensure(self, keys: Iterable[EntryKey]) -> None:
        keys = list(keys)
        if self._entries.missing(keys):
            self._flights.drain()
            self._entries.ensure(keys)

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
        params = SamplingParams() if params is None else params
        ids = self.check(prompt_ids, params, inputs=inputs)
        guide = self.guide(params) if guide is None else guide
        checked = self._checked_inputs(inputs, len(ids))
        limit = self.capacity - len(ids)
        sequence = Sequence(
            prompt_ids=ids,
            params=params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            stop_ids=self._ends(params),
            limit=limit if params.max_tokens is None else min(limit, params.max_tokens),
            inputs=checked,
            guide=guide,
            history=History(ids) if params.penalizes else None,
            reserve=reserve,
        )
        if not self._seat(sequence):
            return None
        lease = sequence.lease
        assert lease is not None
        try:
            self._prepare_alone(lease.row if self.kv.fixed_rows else 0, len(ids), params, checked)
        except BaseException:
            self.kv.give_back(lease)
            raise
        self._open.add(sequence)
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
        vocabulary = self.handle.config.vocabulary
        ids = checked_prompt(prompt_ids, self.capacity, vocabulary)
        params.check_vocabulary(vocabulary)
        self._checked_inputs(inputs, len(ids))
        if params.min_tokens and params.allowed_token_ids is not None:
            ends = self._ends(params)
            if ends.issuperset(params.allowed_token_ids):
                raise RequestError("allowed_token_ids: all of them end the answer, and min_tokens forbids that")
        return ids

    def guide(self, params: SamplingParams) -> Guide | None:
        """What keeps an answer to its `structured_outputs`, from the beginning; None where it has none. It compiles in
        other threads and waits: pass `open` one that is compiled already where nothing may wait.

        Raises RequestError for a constraint that cannot be compiled, or not within the limits.
        """
        if params.structured_outputs is None:
            return None
        if self._guides is None:
            from poot_llm.guided.compiler import GuideCompiler

            self._guides = GuideCompiler(self.handle.tokenizer, self.handle.config.vocabulary)
        return self._guides.compile(params.structured_outputs)

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        """Ids that end an answer."""
        own = frozenset() if params.ignore_eos else self.handle.tokenizer.eos_ids
        return own | frozenset(params.stop_token_ids)

    def _checked_inputs(self, inputs: Mapping[str, InputRows], prompt: int) -> dict[str, InputRows]:
        family = self.handle.family
        return checked_inputs(inputs, family.inputs, self.handle.config, family.name, prompt)

    def _seat(self, sequence: Sequence) -> bool:
        """A row with room for what the sequence has, and for its answer where that is reserved."""
        ids = sequence.ids(0, len(sequence))
        end = len(sequence.prompt_ids) + sequence.limit if sequence.reserve else len(ids) + 1
        # What a prompt supplies is not among its ids.
        shared = min((item.at[0] for item in sequence.inputs.values()), default=self.capacity)
        sequence.lease = self.kv.take(ids, min(end, self.capacity), self._identity(), shared)
        if sequence.lease is None:
            return False
        sequence.cached = sequence.lease.kept
        sequence.timings.kept_tokens += sequence.lease.kept
        return True

    def _identity(self) -> Hashable:
        """What K and V depend on beside ids: weights, adapter, dtype."""
        return self.handle, None, self.options.activations

    def step(self, sequences: Items[Sequence]) -> list[StepResult]:
        """Advance sequences, each by a chunk of what it has pending. Those that read prompts may take steps of their
        own.

        A sequence whose ids are all cached afterwards gets a token. A row whose logits are not
        finite fails alone. Where the step itself fails, its sequences fail, the state is reset and
        the other sequences compute theirs again. Raises BindError for a sequence that is finished,
        released, preempted or given twice, NoRoom where the pool is used up, before anything is computed, and
        DeviceError where the device cannot go on.
        """
        self._check_sequences(sequences)
        for sequence in sequences:
            if sequence.lease is None:
                raise BindError("a preempted sequence cannot step: resume it first")
        return self._stepper.step(sequences)

    def grow(self, sequences: Items[Sequence]) -> list[Sequence]:
        """Take the blocks that the next step of each needs; those that find none, for which others must be preempted
        or released.
        """
        self._check_sequences(sequences)
        return self._stepper.lacking(sequences)

    def commit(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Make a token part of the answer; the reason where that ends it.

        Raises BindError where the sequence is finished or still has ids pending, and for what is no
        token id.
        """
        self._check_sequences([sequence])
        if sequence.pending > 0 and not sequence.drawn:
            raise BindError(f"{sequence.pending} ids are pending: step until a token is given")
        vocabulary = self.handle.config.vocabulary
        if not 0 <= token < vocabulary:
            raise BindError(f"token {token} is none: ids are 0 to {vocabulary - 1}")
        sequence.accept(token)
        if token in sequence.stop_ids:
            sequence.finish_reason = FinishReason.STOP
        elif len(sequence.tokens) >= sequence.limit:
            sequence.finish_reason = FinishReason.LENGTH
        return sequence.finish_reason

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence from outside: a stop string was found, say. It keeps its room."""
        if sequence.finish_reason is None:
            sequence.finish_reason = reason

    def preempt(self, sequence: Sequence) -> None:
        """Give a sequence's room to others; it keeps its answer so far, and `resume` computes again what is not found.

        Raises BindError for one that is not open.
        """
        self._check_sequences([sequence])
        if sequence.lease is not None:
            self.kv.give_back(sequence.lease)
        sequence.lease = sequence.ahead = None
        sequence.cached = 0
        sequence.drawn.clear()

    def resume(self, sequence: Sequence) -> bool:
        """Take room for a preempted sequence; False where there is none. Its next token is the one that it would have
        got.
        """
        self._check_sequences([sequence])
        return sequence.lease is not None or self._seat(sequence)

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's room back; idempotent."""
        if sequence not in self._open:
            return
        self._open.remove(sequence)
        sequence.released = True
        sequence.ahead = None
        if sequence.lease is not None:
            self.kv.give_back(sequence.lease)

    def _check_sequences(self, sequences: Items[Sequence]) -> None:
        self._require_open()
        if not sequences or len(set(sequences)) != len(sequences):
            raise BindError("a step takes sequences, at least one and each once")
        for sequence in sequences:
            if sequence not in self._open:
                raise BindError(f"{sequence.name} is not open in this driver")
            if sequence.finish_reason is not None:
                raise BindError(f"{sequence.name} is finished ({sequence.finish_reason.value})")

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
            use = self.kv.use()
            if use.rows_taken < use.rows:
                raise RequestError(f"no room: {use.blocks_held} of the pool's {use.blocks} blocks are held")
            raise RequestError(f"no room: all {use.rows} rows are taken")
        return TokenStream(self, sequence)

    # Life

    def _recover(self) -> None:
        """After a failed step: every state is zero, so every sequence computes its own again."""
        self._executor.reset_state(self._executable)
        self.kv.forget([s.lease for s in self._open if s.lease is not None])
        for sequence in self._open:
            sequence.cached = 0

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
        if self._guides is not None:
            self._guides.close()
        try:
            self._executor.unload(self._executable)
        except Poisoned:
            # Nothing can be given back to a device that is lost.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
