"""Bounded waits. The library's wait has no bound, so a thread of the device's own makes it and the caller waits for the thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread


class Waiter:
    """One thread that calls `poll(submission)` for whoever waits. A wait that outlasts its bound leaves the thread inside the call:
    the waiter is then of no further use."""

    def __init__(self, poll: Callable[[int], None]) -> None:
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        # A daemon: a hung device must not keep the process from ending.
        self._thread = Thread(target=_serve, args=(poll, self._asked, self._done), name="poot-wgpu-wait", daemon=True)
        self._thread.start()

    def wait(self, submission: int, seconds: float) -> bool:
        """Whether the submission was done within the bound."""
        self._asked.put(submission)
        try:
            self._done.get(timeout=seconds)
        except Empty:
            return False
        return True

    def stop(self) -> None:
        """End the thread, unless it hangs."""
        self._asked.put(None)
        self._thread.join(timeout=1.0)


def _serve(poll: Callable[[int], None], asked: SimpleQueue[int | None], done: SimpleQueue[None]) -> None:
    while (submission := asked.get()) is not None:
        poll(submission)
        done.put(None)
