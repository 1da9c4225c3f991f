"""Submitted steps: at most one ahead of another, collected in the order they were submitted in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, thread_time

from poot_executor.errors import BindError, CallOrder, DeviceError
from poot_executor.executor import (
    EntryId,
    ExecutableId,
    Executor,
    StepId,
    StepInputs,
    StepOutputs,
)


@dataclass(slots=True, eq=False)
class Flight:
    """A step. Once it is over, it has outputs, or an error, or it was lost with another step that
    failed. `step` is None until it is submitted.
    """

    step: StepId | None
    entry: EntryId
    outputs: StepOutputs | None = None
    error: DeviceError | None = None
    lost: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.outputs is not None or self.error is not None or self.lost


class Flights:
    """The steps of one executable that are under way.

    `recover` is called after a step failed: it resets the state, or raises where that is impossible.
    """

    def __init__(self, executor: Executor, executable: ExecutableId, recover: Callable[[], None]) -> None:
        self._executor = executor
        self._executable = executable
        self._recover = recover
        self._queue: deque[Flight] = deque()
        self.resets = 0
        """How often the state was reset after a failure."""
        self.waited = 0.0
        """Seconds in which steps were waited for."""
        self.used = 0.0
        """Seconds of the processor that this thread spent inside the executor: to begin steps, and to end them."""
        self.newest: Flight | None = None
        """The flight that was submitted last."""

    def submit(self, entry: EntryId, inputs: StepInputs, lanes: int = 2) -> Flight:
        """Start a step, at once or when the older of two is over, and when no more than `lanes` of its entry are under
        way with it. One that the device refuses is over with its error, every other step under way is lost with it, and
        the state was reset. Where an older one fails meanwhile, this one is lost too: its inputs are for a state that
        is gone.

        Raises BindError for inputs that do not fit the entry, and DeviceError only where the device
        cannot go on.
        """
        resets = self.resets
        while len(self._queue) > 1 or sum(flight.entry == entry for flight in self._queue) >= lanes:
            self._collect_oldest()
        flight = Flight(None, entry, lost=self.resets != resets)
        if flight.lost:
            return flight
        used = thread_time()
        try:
            flight.step = self._executor.submit(self._executable, entry, inputs)
            self._queue.append(flight)
            self.newest = flight
        except (BindError, CallOrder):
            raise
        except DeviceError as error:
            flight.error = error
            self._reset_after(error)
        except BaseException as error:
            # Whether it was submitted is not known: the reset discards it where it was.
            self._reset_after(error)
            raise
        finally:
            self.used += thread_time() - used
        return flight

    def finish(self, flight: Flight) -> None:
        """Wait until a flight is over; older ones are collected on the way, and keep their outcome.

        Raises DeviceError only where the device cannot go on.
        """
        while not flight.over:
            self._collect_oldest()

    def drain(self) -> None:
        """Wait until nothing is under way. Raises as `finish` does."""
        while self._queue:
            self._collect_oldest()

    def _collect_oldest(self) -> None:
        flight = self._queue[0]
        assert flight.step is not None
        started, used = perf_counter(), thread_time()
        try:
            flight.outputs = self._executor.collect(flight.step)
            self._queue.popleft()
        except DeviceError as error:
            flight.error = error
            self._reset_after(error)
        except BaseException as error:
            # An interrupted wait, say: the step is no failure of its request.
            self._reset_after(error)
            raise
        finally:
            self.waited += perf_counter() - started
            self.used += thread_time() - used

    def _reset_after(self, error: BaseException) -> None:
        """What is under way is lost with the step that failed. Raises `error` where the device
        cannot go on.
        """
        for flight in self._queue:
            flight.lost = flight.error is None
        self._queue.clear()
        self.resets += 1
        try:
            self._recover()
        except DeviceError as second:
            raise error from second
