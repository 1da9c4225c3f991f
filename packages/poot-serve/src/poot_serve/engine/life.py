"""The engine's life as its server sees it: one process after another, started, heard, watched, ended."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic

from poot_serve.engine.errors import EngineLost, NotReady
from poot_serve.engine.messages import EngineFacts, Lost, Message, Ready, Tokens
from poot_serve.engine.process import EngineProcess
from poot_serve.engine.requests import Requests
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


class EngineLife:
    """Starts the engine's process, hears it, and starts another one where it is lost. `requests` are those that it has:
    all of them end with the process.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Nothing is started yet."""
        self.requests = Requests(self.send, settings.buffer_tokens)
        self.state = EngineState(Phase.STARTING, "the engine was not started")
        """Where the engine is, and why."""
        self.facts: EngineFacts | None = None
        """What it serves with; None before it was ready once."""
        self.losses = 0
        """Engines that were lost so far."""
        self._settings = settings
        self._changed = asyncio.Event()
        self._current = EngineStats()
        self._before = EngineStats()
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._heard = 0.0
        self._stalled: str | None = None

    @property
    def stats(self) -> EngineStats:
        """Counts after the last turn of its loop that said them, those of engines that were lost included."""
        return self._current.after(self._before)

    @property
    def pid(self) -> int | None:
        """The engine's process id; None where there is none."""
        return None if self._process is None else self._process.pid

    async def ready(self) -> EngineFacts:
        """Wait until it is ready. Raises NotReady with the reason where it never will be."""
        while not self.state.ready:
            if self.state.over or self.state.phase is Phase.DRAINING:
                raise NotReady(self.state.reason, None)
            await self._changed.wait()
        assert self.facts is not None
        return self.facts

    async def ended(self) -> EngineState:
        """Wait until it is FAILED or CLOSED: the server has nothing more to do then."""
        while not self.state.over:
            await self._changed.wait()
        return self.state

    def send(self, message: Message) -> None:
        """Tell the engine something; where there is none, nothing waits for it either."""
        if self._process is not None:
            self._process.send(message)

    def start(self) -> None:
        """Start the process; it loads from now on, and `state` says how that went. Idempotent."""
        if self._task is None:
            self._become(Phase.STARTING, "the model is being loaded")
            self._task = asyncio.create_task(self._live(), name="poot-engine")

    def drain(self) -> None:
        """No more requests are to come."""
        if not self.state.over:
            self._become(Phase.DRAINING, "the server ends")

    async def close(self) -> None:
        """End the process, within a few seconds. Idempotent."""
        self._closing = True
        if self._process is not None:
            if self.state.phase in (Phase.READY, Phase.DRAINING):
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
        if self.state.phase is not Phase.FAILED:
            self._become(Phase.CLOSED, "the server has ended")

    def _become(self, phase: Phase, reason: str = "") -> None:
        self.state = EngineState(phase, reason)
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
                if self.state.phase is Phase.DRAINING:
                    return
                if loss.refused:
                    self._become(Phase.FAILED, loss.reason)
                    return
                now = monotonic()
                if last is not None and (not was_ready or now - last < self._settings.loss_seconds):
                    self._become(Phase.FAILED, f"the engine was lost again {now - last:.0f} s later: {loss.reason}")
                    return
                last = now
                self._become(Phase.RESTARTING, f"the engine was lost, another one loads: {loss.reason}")
                await asyncio.sleep(max(0.0, RESTART_SECONDS - (now - started)))
        except Exception as error:  # noqa: BLE001 - nobody waits for this task: what it raises is said here
            reason = f"the engine's client failed: {type(error).__name__}: {error}"
            _LOG.exception(reason)
            self.requests.fail_all(lambda: EngineLost(reason))
            self._become(Phase.FAILED, reason)
            if self._process is not None:
                self._process.end()

    def _lost(self, loss: _Loss) -> None:
        _LOG.error("the engine %s: %s", "did not open" if loss.refused else "was lost", loss.reason)
        self.losses += 1
        self._before = self._current.ended().after(self._before)
        self._current = EngineStats()
        self.requests.fail_all(lambda: EngineLost(f"the engine was lost: {loss.reason}"))

    async def _serve(self) -> tuple[_Loss, bool]:
        """The life of one process: how it ended, and whether it was ever ready."""
        try:
            process = self._process = await EngineProcess.start(self._settings)
        except OSError as error:
            return _Loss(f"no process can be started: {error}"), False
        self._heard, self._stalled = monotonic(), None
        watch = asyncio.create_task(self._watch(process))
        was_ready = False
        lost: Lost | None = None
        try:
            while lost is None:
                report = await process.next_report()
                self._heard = monotonic()
                if report.stats is not None:
                    self._current = report.stats
                for id, choice, tokens in report.tokens:
                    self.requests.handle(Tokens(id, choice, tokens))
                for event in report.events:
                    if isinstance(event, Ready):
                        was_ready = True
                        self._is_ready(event)
                    elif isinstance(event, Lost):
                        lost = event
                    else:
                        self.requests.handle(event)
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
        self.facts = event.facts
        if self._closing:
            assert self._process is not None
            self._process.finish()
        elif self.state.phase is not Phase.DRAINING:
            _LOG.info("ready", extra={"fields": _told(event.facts)})
            self._become(Phase.READY)

    async def _watch(self, process: EngineProcess) -> None:
        """End a process that says nothing for too long."""
        settings, started = self._settings, monotonic()
        if self._closing:
            process.end()
        while True:
            await asyncio.sleep(min(1.0, settings.stall_seconds / 4, settings.start_seconds / 4))
            now = monotonic()
            if self._current.steps == 0 and self._heard <= started and now - started > settings.start_seconds:
                self._stalled = f"it did not load within {settings.start_seconds:g} s"
            elif self._heard > started and len(self.requests):
                silent = now - max(self._heard, self.requests.busy_since)
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
