"""Replays that were submitted and not taken yet, oldest first: which signals end them, who waits for which."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from poot_executor.device import Buffer
from poot_executor.errors import KernelFault
from poot_rocm_device.queue import PacketQueue
from poot_rocm_device.recording import RocmRecording


@dataclass(slots=True, eq=False)
class Flight:
    """A replay that `synchronize` did not report yet. `end` is counted down when all of it is done, `start` at the end
    of its first packet; None where there are none. `done`: it was waited for."""

    recording: RocmRecording
    start: int | None
    end: int | None
    done: bool = False


class Flights:
    """The replays in one queue. Every wait is bounded by the queue's timeout, and raises what the queue's does."""

    def __init__(self, queue: PacketQueue) -> None:
        self._queue = queue
        self._flights: deque[Flight] = deque()
        self._timed: tuple[int, int] | None = None

    def submit(self, recording: RocmRecording) -> None:
        """Copy a recording's packets into the ring; wait, bounded, where the ring has no room. Raises DeviceLost where
        the queue has failed already."""
        queue, count = self._queue, len(recording.packets)
        queue.latch.check()
        flight = Flight(recording, None, None, done=not count)
        if count:
            flight.end = queue.take_signal()
            if count > 1:
                flight.start = recording.completions[0] = queue.take_signal()
            recording.completions[-1] = flight.end
            queue.expect(flight.end)
        self._flights.append(flight)
        recording.in_flight += 1
        if count:
            queue.submit(recording.packets, "replay")

    def take(self) -> None:
        """Wait for the oldest one, which then is no longer one of them. At once where there is none."""
        if not self._flights:
            return
        flight = self._flights[0]
        self._wait(flight, "replay")
        self._flights.popleft()
        self._land(flight)

    def take_all_of(self, recording: RocmRecording, what: str) -> None:
        """Wait for those of one recording, which then are no longer among them."""
        for flight in [flight for flight in self._flights if flight.recording is recording]:
            self._wait(flight, what)
            self._flights.remove(flight)
            self._land(flight)

    def wait_for_users(self, buffer: Buffer, what: str) -> None:
        """Wait for those that touch a buffer. They stay to be taken."""
        for flight in self._flights:
            if buffer in flight.recording.buffers:
                self._wait(flight, what)

    def wait_for_all(self, what: str) -> None:
        """Wait for every one. They stay to be taken."""
        for flight in self._flights:
            self._wait(flight, what)

    def seconds(self) -> float | None:
        """From the first packet's begin to the last one's end, of the replay that was last taken."""
        return self._queue.seconds(*self._timed) if self._timed is not None else None

    def fault(self) -> KernelFault | None:
        """The fault of a kernel's check that one of them left behind."""
        for flight in self._flights:
            memory = flight.recording.fault
            word = 0 if memory is None else int(memory.view[:4].view("<u4")[0])
            if word:
                return KernelFault(flight.recording.names.get(word >> 8, "unknown"), word & 0xFF)
        return None

    def forget(self) -> None:
        """Leave every one to the lost device, with its signals."""
        self._flights.clear()

    def close(self) -> None:
        """Give the queue every signal back. All of them were waited for."""
        while self._flights:
            self._land(self._flights.popleft())
        for signal in set(self._timed or ()):
            self._queue.give_signal(signal)
        self._timed = None

    def _wait(self, flight: Flight, what: str) -> None:
        if not flight.done:
            assert flight.end is not None
            self._queue.wait(flight.end, what)
            flight.done = True

    def _land(self, flight: Flight) -> None:
        """The flight is over. Its signals keep their times until the next one is over."""
        flight.recording.in_flight -= 1
        if flight.end is None:
            return
        if self._timed is not None:
            for signal in set(self._timed):
                self._queue.give_signal(signal)
        self._timed = (flight.end if flight.start is None else flight.start, flight.end)
