"""Steps in flight: submitted, not collected yet, in order; and the time that passes around them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter

from poot_executor.engine.entry import Entry, Lane
from poot_executor.engine.executable import Executable
from poot_executor.errors import CallOrder, NeedsReset
from poot_executor.executor import StepId
from poot_executor.stats import Counters

MOST_IN_FLIGHT = 2
"""The step that is waited for, and one submitted ahead."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A submitted step. `entered` is when `submit` was entered (seconds of perf_counter)."""

    id: StepId
    executable: Executable
    entry: Entry
    lane: Lane
    entered: float


class Flight:
    """The queue of submitted steps, and those that were lost before they could be collected."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._steps: deque[Step] = deque()
        self._lost: dict[StepId, tuple[Executable, str]] = {}
        self._idle_since: float | None = None

    @property
    def count(self) -> int:
        """Steps in flight."""
        return len(self._steps)

    def count_of(self, executable: Executable) -> int:
        """Steps of an executable in flight."""
        return sum(step.executable is executable for step in self._steps)

    def executables(self) -> list[Executable]:
        """The executable of each step in flight."""
        return [step.executable for step in self._steps]

    def uses(self, lane: Lane) -> bool:
        """Whether a step in flight runs over the lane."""
        return any(step.lane is lane for step in self._steps)

    def require_room(self) -> None:
        """Raise CallOrder where no further step may be submitted."""
        if len(self._steps) == MOST_IN_FLIGHT:
            raise CallOrder(f"{MOST_IN_FLIGHT} steps are submitted: collect step {self._steps[0].id} first")

    def oldest(self, id: StepId) -> Step:
        """The step that `id` names, which must be the oldest. Raises NeedsReset for a lost one."""
        if id in self._lost:
            executable, reason = self._lost.pop(id)
            raise NeedsReset(f"step {id} was discarded ({reason}): reset_state executable {executable.id}")
        if not self._steps or self._steps[0].id != id:
            state = f"step {self._steps[0].id} is the oldest" if self._steps else "none is in flight"
            raise CallOrder(f"step {id} cannot be collected now: {state}")
        return self._steps[0]

    def submitted(self, step: Step, now: float) -> None:
        """Its replay returned at `now`."""
        if not self._steps:
            self._counters.exposed_host_time += now - step.entered
            if self._idle_since is not None:
                self._counters.between_time += step.entered - self._idle_since
        self._idle_since = None
        self._steps.append(step)

    def collected(self, step: Step, waited: float, device_time: float | None) -> None:
        """The oldest step is done. The wait for it returned at `waited`."""
        self._steps.popleft()
        now = perf_counter()
        counters = self._counters
        if not self._steps:
            counters.exposed_host_time += now - waited
            self._idle_since = now
        counters.steps += 1
        counters.step_time += now - step.entered
        if device_time is None:
            counters.device_time = None
        elif counters.device_time is not None:
            counters.device_time += device_time

    def lose(self, reason: str, of: Executable | None = None) -> int:
        """Drop the steps of an executable, or all; collecting one says why. Returns how many."""
        dropped = [step for step in self._steps if of is None or step.executable is of]
        for step in dropped:
            self._steps.remove(step)
            self._lost[step.id] = (step.executable, reason)
        self._idle_since = None
        return len(dropped)

    def discard(self) -> int:
        """Drop every step for good. Returns how many."""
        dropped = len(self._steps)
        self._steps.clear()
        self._lost.clear()
        return dropped

    def forget(self, executable: Executable) -> None:
        """Drop what is remembered of an executable's lost steps."""
        self._lost = {i: lost for i, lost in self._lost.items() if lost[0] is not executable}
