"""Many requests over one driver: who is admitted, who steps, who makes room. No device is touched here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from poot_executor.errors import CompileLimit, OutOfMemory, PootError, RequestError, Unsupported
from poot_llm.blocks.step import BLOCK
from poot_llm.driver.inputs import InputRows
from poot_llm.driver.sequence import FinishReason, Guide, Sequence
from poot_llm.sampling import SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from poot_llm.driver.driver import Driver

PREFILL_TOKENS = 512


@dataclass(slots=True, eq=False)
class Request:
    """One prompt with how it is answered. `sequence` is None until it is admitted. `added` and `admitted`, the first
    time, are seconds of `time.monotonic`.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    inputs: Mapping[str, InputRows]
    guide: Guide | None
    sequence: Sequence | None = None
    preemptions: int = 0
    added: float = field(default_factory=monotonic)
    admitted: float | None = None


@dataclass(slots=True, eq=False)  # not frozen: see StepResult
class Delivery:
    """What a step gave a request: committed tokens, with logprobs where it wants them. `finish_reason` is set on the
    last one; `failure` says why where that is ERROR.
    """

    request: Request
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    failure: PootError | None = None


@dataclass(slots=True)
class Scheduler:
    """Requests are admitted in the order in which they came, and preempted ones before new ones. A step decodes all
    that decode and reads about `prefill_tokens` of prompts beside them. Where a step of one row reads them, each gives
    its token as soon as it is read: a step here is then one of one prompt, until so many tokens were read, and then one
    of all that decode. Where the pool is used up, the one that was admitted last gives its room, so that the first ones
    always end. After an admission each that runs finds `spare` more blocks: otherwise the newcomer would be the next to
    give way. Of several with one prompt, the first reads it, where what it computes is shared: the others are admitted
    once it has.
    """

    driver: Driver
    prefill_tokens: int = PREFILL_TOKENS
    spare: int = 1
    preemptions: int = 0
    """How often a request gave its room to others."""
    _read: int = 0
    """Tokens of prompts that were read since those that decode stepped."""
    _waiting: deque[Request] = field(default_factory=deque)
    _running: list[Request] = field(default_factory=list)

    def add(
        self,
        prompt_ids: Items[int],
        params: SamplingParams,
        *,
        inputs: Mapping[str, InputRows] | None = None,
        guide: Guide | None = None,
    ) -> Request:
        """Queue a request. Raises RequestError as `Driver.open` does, now and not when it is admitted."""
        inputs = {} if inputs is None else inputs
        ids = self.driver.check(prompt_ids, params, inputs=inputs)
        guide = self.driver.guide(params) if guide is None else guide
        request = Request(ids, params, inputs, guide)
        self._waiting.append(request)
        return request

    @property
    def waiting(self) -> int:
        """Requests that have no room."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that have room."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._waiting or self._running)

    def finish(self, request: Request, reason: FinishReason = FinishReason.STOP) -> None:
        """End a request from outside, in whatever state it is; idempotent. Nothing more is delivered of it."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._running.remove(request)
        if request.sequence is not None:
            self.driver.finish(request.sequence, reason)
            self.driver.release(request.sequence)

    def step(self) -> list[Delivery]:
        """Admit what there is room for, advance, commit, deliver. Raises DeviceError where the device cannot go on."""
        deliveries = self._admit()
        requests = self._chosen()
        if not requests:
            return deliveries
        results = self.driver.step([r.sequence for r in requests if r.sequence is not None])
        # A result a sequence, in their order.
        for request, result, done in zip(requests, results, self.driver.commit_given(results), strict=True):
            tokens, failure = done
            sequence, logprobs = result.sequence, result.logprobs
            reason = sequence.finish_reason
            if reason is not None:
                self._running.remove(request)
                self.driver.release(sequence)
            elif not tokens:
                continue
            if len(logprobs) > len(tokens):
                logprobs = logprobs[: len(tokens)]
            deliveries.append(Delivery(request, tokens, logprobs, reason, failure))
        return deliveries

    def _admit(self) -> list[Delivery]:
        """Give room to those that wait, in their order. What the device cannot prepare a step for ends at once."""
        refused: list[Delivery] = []
        while (request := self._next()) is not None and self.driver.use().rows_taken < self.driver.rows:
            sequence = request.sequence
            if not self._leaves_room(len(request.prompt_ids) if sequence is None else len(sequence)):
                break
            if sequence is not None:
                if not self.driver.resume(sequence):
                    break
            else:
                try:
                    request.sequence = self.driver.open(
                        request.prompt_ids, request.params, inputs=request.inputs, guide=request.guide, reserve=False
                    )
                except (RequestError, Unsupported, CompileLimit, OutOfMemory) as error:
                    self._waiting.remove(request)
                    refused.append(Delivery(request, (), finish_reason=FinishReason.ERROR, failure=error))
                    continue
                if request.sequence is None:
                    break
                request.admitted = monotonic()
            self._waiting.remove(request)
            self._running.append(request)
        return refused

    def _next(self) -> Request | None:
        """The first that waits, those apart whose prompt is just being read by another one."""
        if not self._waiting or not self.driver.kv.shares:
            return self._waiting[0] if self._waiting else None
        reading = {r.prompt_ids for r in self._running if r.sequence is not None and r.sequence.pending > 1}
        for request in self._waiting:
            fresh = request.sequence is None and len(request.prompt_ids) > BLOCK and not request.inputs
            if not fresh or request.prompt_ids not in reading:
                return request
        return None

    def _leaves_room(self, ids: int) -> bool:
        """Whether each that runs finds spare blocks after the admission of so many ids."""
        free = self.driver.use().blocks_free
        return free is None or not self._running or free - (ids // BLOCK + 1) >= self.spare * len(self._running)

    def _chosen(self) -> list[Request]:
        """Who steps, with blocks for it: all that decode, and prompts up to the budget, the oldest first."""
        if self._running and self.driver.steps.single:
            return self._in_turn()
        chosen: list[Request] = []
        budget = self.prefill_tokens
        for request in self._running:
            assert request.sequence is not None
            pending = request.sequence.pending
            if pending > 1:
                if budget <= 0:
                    continue
                budget -= min(pending, self.driver.options.chunk)
            chosen.append(request)
        while chosen and self.driver.grow([r.sequence for r in chosen if r.sequence is not None]):
            victim = self._running[-1]
            self._preempt(victim)
            chosen = [r for r in chosen if r is not victim]
        return chosen

    def _in_turn(self) -> list[Request]:
        """The oldest that reads, or those that decode. Contiguous rows have room for all that they hold."""
        decoding: list[Request] = []
        reading: Request | None = None
        for request in self._running:
            assert request.sequence is not None
            if request.sequence.pending == 1:
                decoding.append(request)
            elif reading is None:
                reading = request
        if reading is None or (decoding and self._read >= self.prefill_tokens):
            self._read = 0
            return decoding
        assert reading.sequence is not None
        self._read += min(reading.sequence.pending, self.driver.options.chunk)
        return [reading]

    def _preempt(self, request: Request) -> None:
        assert request.sequence is not None
        self.driver.preempt(request.sequence)
        self._running.remove(request)
        self._waiting.appendleft(request)
        request.preemptions += 1
        self.preemptions += 1
