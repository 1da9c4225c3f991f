"""Bounded waits: the driver's own ones have no bound, so events are asked until a deadline."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

SPIN_SECONDS = 0.02
"""For so long the host asks without a pause: a step takes milliseconds, and a pause would be added to it."""

LONGEST_PAUSE = 1e-3


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Whether `done` became true within the bound. It is asked at least once."""
    if done():
        return True
    start = monotonic()
    pause = 5e-5
    while not done():
        waited = monotonic() - start
        if waited > seconds:
            return False
        if waited > SPIN_SECONDS:
            sleep(min(pause, seconds - waited))
            pause = min(2 * pause, LONGEST_PAUSE)
    return True
