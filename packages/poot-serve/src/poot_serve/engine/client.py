"""`EngineClient`: the process of the engine as the server sees it. One asyncio loop calls it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Self

import numpy as np
from numpy.typing import NDArray

from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams
from poot_serve.engine.checking import check_request, check_texts
from poot_serve.engine.errors import Draining, EngineLost, NotReady
from poot_serve.engine.generation import Generation
from poot_serve.engine.messages import EngineFacts, Generate, Lost, Message, Ready, Tokens
from poot_serve.engine.process import EngineProcess
from poot_serve.engine.requests import LONGEST_RETRY, Requests
from poot_serve.engine.settings import EngineSettings
from poot_serve.engine.stats import EngineStats

CLOSE_SECONDS = 10.0
"""How long an engine may take to give its device back."""
RESTART_SECONDS = 0.2
"""Between the end of a process and the start of the next."""
_LOG = logging.getLogger("poot.serve")


class Phase(Enum):
    """Where an engine is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EngineState:
    """`reason` says why it is not READY; "" where it is. FAILED and CLOSED are for good."""

    phase: Phase
    reason: str = ""

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self.phase is Phase.READY

    @property
    def over(self) -> bool:
        """Whether nothing will ever change again."""
        return self.phase in (Phase.FAILED, Phase.CLOSED)


@dataclass(frozen=True, slots=True)
class _Loss:
    """How an engine process ended that was not told to. `refused`: another one would find the same."""

    reason: str
    refused: bool = False


class EngineClient:
    """Starts the engine, hands requests to it, starts another one where it is lost.

    `handle` is the checkpoint as far as this process needs it: tokenizer, chat template, configuration.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Opens the checkpoint's light parts. Raises what opening it raises."""
        self.settings = settings
        self.handle: ModelHandle = Models().open(settings.model)
        self._state = EngineState(Phase.STARTING, "the engine was not started")
        self._changed = asyncio.Event()
        self._facts: EngineFacts | None = None
        self._current = EngineStats()
        self._before = EngineStats()
        self._losses = 0
        self._process: EngineProcess | None = None
        self._requests = Requests(self._send, settings.buffer_tokens)
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._heard = 0.0
        self._stalled: str | None = None

    # What is known

    @property
    def state(self) -> EngineState:
        """Where the engine is, and why."""
        return self._state

    @property
    def facts(self) -> EngineFacts | None:
        """What it serves with; None before it was ready once."""
        return self._facts

    @property
    def stats(self) -> EngineStats:
        """Its counts after the last turn of its loop, those of engines that were lost included."""
        return self._current.after(self._before)

    @property
    def open_requests(self) -> int:
        """Requests that were handed in and have not ended."""
        return len(self._requests)

    @property
    def losses(self) -> int:
        """Engines that were lost so far."""
        return self._losses

    @property
    def pid(self) -> int | None:
        """The engine's process id; None where there is none."""
        return None if self._process is None else self._process.pid

    async def ready(self) -> EngineFacts:
        """Wait until it is ready. Raises NotReady with the reason where it never will be."""
        while not self._state.ready:
            if self._state.over or self._state.phase is Phase.DRAINING:
                raise NotReady(self._state.reason, None)
            await self._changed.wait()
        assert self._facts is not None
        return self._facts

    async def ended(self) -> EngineState:
        """Wait until it is FAILED or CLOSED: the server has nothing more to do then."""
        while not self._state.over:
            await self._changed.wait()
        return self._state

    # Requests

    def check(self, prompt_ids: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        """The prompt's ids, where the engine would take the request, its structure apart.

        Raises RequestError naming the field, ContextExceeded with both numbers, and NotReady before the engine's first
        READY, as only it knows how much fits.
        """
        return check_request(prompt_ids, params, self._known(), self.handle)

    async def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seconds: float | None = None
    ) -> Generation:
        """Hand in a request of `params.n` answers. When this returns, nothing of it can be refused any more.

        Raises as `check`, RequestError for a structure that cannot be compiled, Overloaded, NotReady, Draining, and
        EngineLost or DeadlineExceeded where those came first. `seconds` bound it from now on, and so do those of the
        settings.
        """
        ids = self.check(prompt_ids, params)
        self._admit()
        if params.structured_outputs is not None:
            self._requests.admit_structure(self.settings.guides.pending)
        generation = self._requests.generation(ids, params, self.handle.tokenizer, self._limit(seconds))
        self._send(Generate(generation.id, ids, params))
        if params.structured_outputs is not None:
            await generation.accepted()
        return generation

    async def encode(
        self, items: Sequence[tuple[Sequence[int], int]], *, seconds: float | None = None
    ) -> NDArray[np.float32]:
        """f32[items, columns] of texts as `Encoder.tokenize` gives them (ids, second). Raises as `submit`."""
        checked = check_texts(items, self._known())
        self._admit()
        return await self._requests.vectors(checked, self._limit(seconds))

    def _limit(self, seconds: float | None) -> float:
        """How long a request may take that names so many seconds, or none."""
        most = self.settings.request_seconds
        return most if seconds is None else min(seconds, most)

    def _known(self) -> EngineFacts:
        if self._facts is None:
            raise self._not_ready()
        return self._facts

    def _admit(self) -> None:
        """Raises where no request is taken now."""
        if self._state.phase is Phase.DRAINING:
            raise Draining(self._state.reason)
        if not self._state.ready:
            raise self._not_ready()
        self._requests.admit(self._known().rows + self.settings.queue)

    def _not_ready(self) -> NotReady:
        if self._state.over or self._state.phase is Phase.DRAINING:
            return NotReady(self._state.reason, None)
        # A new process takes about as long as the last one did.
        took = 5.0 if self._facts is None else self._facts.load_seconds
        return NotReady(self._state.reason, max(1, min(LONGEST_RETRY, math.ceil(took))))

    def _send(self, message: Message) -> None:
        if self._process is not None:
            self._process.send(message)

    # Life

    async def start(self) -> None:
        """Start the engine's process; it loads from now on, and `state` says how that went."""
        if self._task is None:
            self._become(Phase.STARTING, "the model is being loaded")
            self._task = asyncio.create_task(self._live(), name="poot-engine")

    async def drain(self, seconds: float) -> int:
        """Take no more requests, wait for those that are open, and give up those that are not done by then: how many
        that were. Idempotent: a later call may shorten the time.
        """
        if not self._state.over:
            self._become(Phase.DRAINING, "the server ends")
        try:
            async with asyncio.timeout(seconds):
                await self._requests.none_left()
        except TimeoutError:
            return self._requests.give_up_all(lambda: Draining("the server ends, and the time to finish is over"))
        return 0

    async def close(self) -> None:
        """End the engine's process, within a few seconds; requests that are open end with Draining. Idempotent."""
        self._closing = True
        self._requests.give_up_all(lambda: Draining("the server ends"))
        if self._process is not None:
            if self._state.phase in (Phase.READY, Phase.DRAINING):
                self._process.finish()
            else:
                self._process.end()
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            if not done and self._process is not None:
                self._process.end()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._task
        if self._state.phase is not Phase.FAILED:
            self._become(Phase.CLOSED, "the server has ended")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _become(self, phase: Phase, reason: str = "") -> None:
        self._state = EngineState(phase, reason)
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def _live(self) -> None:
        """One engine process after another, until there is to be none."""
        try:
            last: float | None = None
            while not self._closing:
                started = monotonic()
                loss, was_ready = await self._serve()
                if self._closing:
                    return
                self._lost(loss)
                if self._state.phase is Phase.DRAINING:
                    return
                if loss.refused:
                    self._become(Phase.FAILED, loss.reason)
                    return
                now = monotonic()
                if last is not None and (not was_ready or now - last < self.settings.loss_seconds):
                    self._become(Phase.FAILED, f"the engine was lost again {now - last:.0f} s later: {loss.reason}")
                    return
                last = now
                self._become(Phase.RESTARTING, f"the engine was lost, another one loads: {loss.reason}")
                await asyncio.sleep(max(0.0, RESTART_SECONDS - (now - started)))
        except Exception as error:  # noqa: BLE001 - nobody waits for this task: what it raises is said here
            reason = f"the engine's client failed: {type(error).__name__}: {error}"
            _LOG.exception(reason)
            self._requests.fail_all(lambda: EngineLost(reason))
            self._become(Phase.FAILED, reason)
            if self._process is not None:
                self._process.end()

    def _lost(self, loss: _Loss) -> None:
        _LOG.error("the engine %s: %s", "did not open" if loss.refused else "was lost", loss.reason)
        self._losses += 1
        self._before = self._current.ended().after(self._before)
        self._current = EngineStats()
        self._requests.fail_all(lambda: EngineLost(f"the engine was lost: {loss.reason}"))

    async def _serve(self) -> tuple[_Loss, bool]:
        """The life of one process: how it ended, and whether it was ever ready."""
        try:
            process = self._process = await EngineProcess.start(self.settings)
        except OSError as error:
            return _Loss(f"no process can be started: {error}"), False
        self._heard, self._stalled = monotonic(), None
        watch = asyncio.create_task(self._watch(process))
        was_ready = False
        lost: Lost | None = None
        try:
            while lost is None:
                report = await process.next_report()
                self._heard, self._current = monotonic(), report.stats
                for id, choice, tokens in report.tokens:
                    self._requests.handle(Tokens(id, choice, tokens))
                for event in report.events:
                    if isinstance(event, Ready):
                        was_ready = True
                        self._is_ready(event)
                    elif isinstance(event, Lost):
                        lost = event
                    else:
                        self._requests.handle(event)
        except (EOFError, OSError):
            how = await process.ended(CLOSE_SECONDS)
        else:
            how = await process.kill()
        finally:
            watch.cancel()
            process.end()
            self._process = None
        if lost is not None:
            return _Loss(f"{lost.kind}: {lost.reason}", lost.refused), was_ready
        return _Loss(self._stalled or how), was_ready

    def _is_ready(self, event: Ready) -> None:
        self._facts = event.facts
        if self._closing:
            assert self._process is not None
            self._process.finish()
        elif self._state.phase is not Phase.DRAINING:
            _LOG.info("ready", extra={"fields": _told(event.facts)})
            self._become(Phase.READY)

    async def _watch(self, process: EngineProcess) -> None:
        """End a process that says nothing for too long."""
        settings, started = self.settings, monotonic()
        if self._closing:
            process.end()
        while True:
            await asyncio.sleep(min(1.0, settings.stall_seconds / 4, settings.start_seconds / 4))
            now = monotonic()
            if self._current.steps == 0 and self._heard <= started and now - started > settings.start_seconds:
                self._stalled = f"it did not load within {settings.start_seconds:g} s"
            elif self._heard > started and len(self._requests):
                silent = now - max(self._heard, self._requests.busy_since)
                if silent > settings.stall_seconds:
                    self._stalled = f"it said nothing for {silent:.0f} s, and had requests"
            if self._stalled is not None:
                process.end()
                return


def _told(facts: EngineFacts) -> dict[str, object]:
    """What a log says of an engine that is ready."""
    told: dict[str, object] = {
        "device": facts.device, "rows": facts.rows, "context": facts.capacity, "steps": facts.steps,
        "weight_bytes": facts.weight_bytes, "kv_bytes": facts.kv_bytes, "seconds": round(facts.load_seconds, 1),
    }  # fmt: skip
    return told | ({"note": facts.note} if facts.note else {})
