"""What an engine counts. Times in seconds, sizes in bytes; unknown is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.device import MemoryInfo


@dataclass(frozen=True, slots=True)
class EngineStats:
    """An engine's counters since it was made.

    Work: `recordings` (programs lowered, re-recordings too), `replays`, `steps` (collected with
    success), `failures` (steps that failed once they had replayed), `uploads` and `uploaded_bytes`
    (weights, as stored), `allocations` (device buffers the engine asked for, one an upload too),
    `input_writes`, `input_bytes` and `unchanged_inputs` (steps whose inputs equalled those already
    on the device, so that nothing was written), `output_reads`.

    `memory` is the device's own count, None once the engine is poisoned: it is not asked then.
    `poisoned` says why the engine refuses all work.

    Time, over the steps collected with success:

    - `step_time`: wall time from the entry of `submit` to the return of `collect`.
    - `device_time`: what the device reports after each wait; None where it does not say.
    - `exposed_host_time`: wall time inside `submit` and `collect` while the engine knew of no
      submitted replay: from the entry of `submit` to the return of `replay`, where nothing was
      submitted before it, and from the return of the `synchronize` that left nothing submitted to
      the return of `collect`. It is a lower bound of the device's idle time: a device that is done
      before the host waits for it has been idle unseen.
    - `between_time`: wall time from the return of a `collect` that left nothing submitted to the
      entry of the next `submit`: the caller's own work, and its waiting.

    With one step submitted ahead, the last two stay near zero.
    """

    executables: int
    entries: int
    recordings: int
    replays: int
    steps: int
    failures: int
    uploads: int
    uploaded_bytes: int
    allocations: int
    input_writes: int
    input_bytes: int
    unchanged_inputs: int
    output_reads: int
    step_time: float
    device_time: float | None
    exposed_host_time: float
    between_time: float
    memory: MemoryInfo | None
    poisoned: str | None


@dataclass(slots=True)
class Counters:
    """The running counts behind `EngineStats`, which says what each one means."""

    recordings: int = 0
    replays: int = 0
    steps: int = 0
    failures: int = 0
    uploads: int = 0
    uploaded_bytes: int = 0
    allocations: int = 0
    input_writes: int = 0
    input_bytes: int = 0
    unchanged_inputs: int = 0
    output_reads: int = 0
    step_time: float = 0.0
    device_time: float | None = 0.0
    exposed_host_time: float = 0.0
    between_time: float = 0.0

    def freeze(self, executables: int, entries: int, memory: MemoryInfo | None, poisoned: str | None) -> EngineStats:
        """A snapshot. The device's time is unknown before the first step."""
        return EngineStats(
            executables=executables,
            entries=entries,
            recordings=self.recordings,
            replays=self.replays,
            steps=self.steps,
            failures=self.failures,
            uploads=self.uploads,
            uploaded_bytes=self.uploaded_bytes,
            allocations=self.allocations,
            input_writes=self.input_writes,
            input_bytes=self.input_bytes,
            unchanged_inputs=self.unchanged_inputs,
            output_reads=self.output_reads,
            step_time=self.step_time,
            device_time=self.device_time if self.steps else None,
            exposed_host_time=self.exposed_host_time,
            between_time=self.between_time,
            memory=memory,
            poisoned=poisoned,
        )
