"""Bounded waits. The library's calls have no bound, so a thread of the device's own makes them and the caller waits
for the thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

Work = Callable[[], int]
Answer = int | BaseException


class Worker:
    """One thread that makes calls which may block. A call that outlasts its bound leaves the thread inside it: the
    worker is then of no further use."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Work | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        # A daemon: a hung device must not keep the process from ending.
        self._thread = Thread(target=_serve, args=(self._asked, self._answers), name="poot-wgpu", daemon=True)
        self._thread.start()

    def call(self, work: Work, seconds: float) -> int | None:
        """What the call gives; None where it did not return within the bound. Raises what it raises."""
        self._asked.put(work)
        try:
            answer = self._answers.get(timeout=seconds)
        except Empty:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop(self) -> None:
        """End the thread. No call may be under way."""
        self._asked.put(None)
        self._thread.join(timeout=1.0)


def _serve(asked: SimpleQueue[Work | None], answers: SimpleQueue[Answer]) -> None:
    while (work := asked.get()) is not None:
        try:
            answers.put(work())
        except BaseException as error:  # noqa: BLE001 (it is raised in the caller's thread)
            answers.put(error)
