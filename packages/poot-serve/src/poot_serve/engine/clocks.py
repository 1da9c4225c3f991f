"""Whose time it is: the loop's own, the device's, and nobody's."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Self

from poot_llm.driver import Driver


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds since whenever: `wall` time, `waited` of it for steps of the driver; and of the processor those of the
    calling thread, `device` of them inside the executor, where a device begins and ends its steps.

    Where the device is the processor, the thread often does not run because the device does: that is wall time, and
    neither waiting nor work.
    """

    wall: float
    waited: float
    thread: float
    device: float

    @classmethod
    def read(cls, driver: Driver) -> Self:
        """As they are now."""
        return cls(perf_counter(), driver.wait_seconds, thread_time(), driver.device_seconds)

    def since(self, earlier: Clocks) -> Clocks:
        """What passed since then."""
        return Clocks(
            self.wall - earlier.wall,
            self.waited - earlier.waited,
            self.thread - earlier.thread,
            self.device - earlier.device,
        )
