"""Bounded waits. The library's calls have no bound, so a thread of the device's own makes them and the caller waits
for the thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

Work = Callable[[], int]
Answer = int | BaseException


class Worker:
    """One thread that makes calls which may block, in order. A call that outlasts its bound leaves the thread inside
    it: the worker is then of no further use."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Work, SimpleQueue[Answer]] | None] = SimpleQueue()
        # A daemon: a hung device must not keep the process from ending.
        self._thread = Thread(target=_serve, args=(self._asked,), name="poot-wgpu", daemon=True)
        self._thread.start()

    def call(self, work: Work, seconds: float) -> int | None:
        """What the call gives; None where it did not return within the bound. Raises what it raises.

        Where the waiting is interrupted, the call goes on and its answer is nobody's.
        """
        # A queue of its own: after an interrupt the next call must not take the answer of this one for its own.
        answers: SimpleQueue[Answer] = SimpleQueue()
        self._asked.put((work, answers))
        try:
            answer = answers.get(timeout=seconds)
        except Empty:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop(self) -> None:
        """End the thread. No call may be under way."""
        self._asked.put(None)
        self._thread.join(timeout=1.0)


def _serve(asked: SimpleQueue[tuple[Work, SimpleQueue[Answer]] | None]) -> None:
    while (item := asked.get()) is not None:
        work, answers = item
        try:
            answers.put(work())
        except BaseException as error:  # noqa: BLE001 (it is raised in the caller's thread)
            answers.put(error)
