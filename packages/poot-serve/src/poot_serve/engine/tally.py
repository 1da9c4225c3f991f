"""The running counts behind `EngineStats`."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from time import monotonic

from poot_executor.stats import EngineStats as ExecutorStats
from poot_llm.driver import KvUse
from poot_serve.engine.clocks import Clocks
from poot_serve.engine.stats import HOST_SECONDS, STEP_SECONDS, EngineStats

LOOK_SECONDS = 1.0
"""How long what a device said of its memory is believed."""


@dataclass(slots=True)
class Tally:
    """Counts of one engine process; `EngineStats` says what each one means."""

    prompt_tokens: int = 0
    prefix_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    host_seconds: float = 0.0
    device_seconds: float = 0.0
    wait_seconds: float = 0.0
    queue_seconds: float = 0.0
    queued: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    step_buckets: list[int] = field(default_factory=lambda: [0] * (len(STEP_SECONDS) + 1))
    host_buckets: list[int] = field(default_factory=lambda: [0] * (len(HOST_SECONDS) + 1))
    _looked: float | None = None
    _bytes: int | None = None
    _free: int | None = None

    def step(self, spent: Clocks) -> None:
        """A turn of the loop, and what of it was whose."""
        seconds, host = spent.wall, max(spent.thread - spent.device, 0.0)
        self.steps += 1
        self.step_seconds += seconds
        self.wait_seconds += spent.waited
        self.device_seconds += spent.device
        self.host_seconds += host
        self.step_buckets[bisect_left(STEP_SECONDS, seconds)] += 1
        self.host_buckets[bisect_left(HOST_SECONDS, host)] += 1

    @property
    def wants_memory(self) -> bool:
        """Whether it is time to look at the device's memory."""
        return self._looked is None or monotonic() - self._looked >= LOOK_SECONDS

    def memory(self, stats: ExecutorStats) -> None:
        """What the device says of its memory now."""
        self._looked = monotonic()
        if stats.memory is not None:
            self._bytes, self._free = sum(stats.memory.used.values()), stats.memory.free

    def snapshot(self, *, waiting: int, running: int, compiling: int, preemptions: int, use: KvUse) -> EngineStats:
        """All of it, with how things are now."""
        return EngineStats(
            waiting=waiting,
            running=running,
            compiling=compiling,
            rows=use.rows,
            blocks_total=use.blocks,
            blocks_held=use.blocks_held,
            blocks_cached=use.blocks_cached,
            prompt_tokens=self.prompt_tokens,
            prefix_tokens=self.prefix_tokens,
            generated_tokens=self.generated_tokens,
            preemptions=preemptions,
            finished=self.finished,
            cancelled=self.cancelled,
            failed=self.failed,
            steps=self.steps,
            step_seconds=self.step_seconds,
            step_buckets=tuple(self.step_buckets),
            host_seconds=self.host_seconds,
            host_buckets=tuple(self.host_buckets),
            device_seconds=self.device_seconds,
            wait_seconds=self.wait_seconds,
            queue_seconds=self.queue_seconds,
            queued=self.queued,
            guessed_tokens=self.guessed_tokens,
            accepted_tokens=self.accepted_tokens,
            device_bytes=self._bytes,
            device_free=self._free,
        )
