"""Reports on their way to the server: written by a thread of their own, so that the loop waits for no reader."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

from poot_serve.engine.errors import EngineError
from poot_serve.engine.frames import write_frame
from poot_serve.engine.messages import Report

MOST_WAITING = 100_000
"""Reports that may wait: a server that has not read for so many steps will not read again."""


class Outbox:
    """Takes reports in order, one frame each. A write that fails means that the server has gone."""

    def __init__(self, file: int) -> None:
        """`file` is the descriptor that reports are written to."""
        self._file = file
        self._queue: SimpleQueue[Report | None] = SimpleQueue()
        self._gone = False
        self._thread = Thread(target=self._write, name="poot-outbox", daemon=True)
        self._thread.start()

    def send(self, report: Report) -> None:
        """Hand in a report; returns at once. Raises EngineError where the server has gone or does not read."""
        if self._gone or self._queue.qsize() >= MOST_WAITING:
            raise EngineError("the server has gone, or does not read what it is told")
        self._queue.put(report)

    def close(self, seconds: float) -> None:
        """Wait until what was handed in is written, at most so long."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _write(self) -> None:
        while (report := self._queue.get()) is not None:
            try:
                write_frame(self._file, report)
            except OSError:
                self._gone = True
                return
