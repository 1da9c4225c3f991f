"""The loop over one encoder: texts of all requests share passes, and no request waits for the whole of another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import (
    BindError,
    CheckFailed,
    CompileLimit,
    KernelFault,
    OutOfMemory,
    PootError,
    RequestError,
    Unsupported,
)
from poot_llm.driver import Driver, Encoded, KvUse, NonFiniteEmbedding
from poot_llm.encoders import TextEncoder
from poot_serve.engine.clocks import Clocks
from poot_serve.engine.messages import Cancel, Close, Encode, Event, Failed, Generate, Message, Report, Vectors
from poot_serve.engine.tally import Tally

OWN = (RequestError, BindError, NonFiniteEmbedding, CheckFailed, KernelFault, Unsupported, CompileLimit, OutOfMemory)
"""What ends the requests of a pass and not the engine: the device stays usable."""


@dataclass(slots=True, eq=False)
class Texts:
    """A request with the rows of its texts so far."""

    id: int
    items: list[Encoded]
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    added: float = field(default_factory=monotonic)


class EncodeLoop:
    """Runs until it is told to close. Each turn encodes as many texts as a pass has rows, taken from the requests in
    turn, so that one of many texts does not hold up the others.
    """

    def __init__(self, driver: Driver, inbox: SimpleQueue[Message], send: Callable[[Report], None]) -> None:
        self._driver = driver
        self._encoder = TextEncoder(driver)
        self._inbox = inbox
        self._send = send
        self._queue: deque[Texts] = deque()
        self._events: list[Event] = []
        self._tally = Tally()

    def run(self, *events: Event) -> None:
        """Until a Close comes; `events` are said first. Raises DeviceError where the device cannot go on."""
        self._events += events
        self._report()
        while self.turn():
            pass

    def turn(self) -> bool:
        """Read, encode, report; False once a Close came. Where there is nothing to do it waits for a message."""
        if not self._read():
            return False
        if self._queue:
            self._encode()
        self._report()
        return True

    def _report(self) -> None:
        if self._tally.wants_memory:
            self._tally.memory(self._driver.stats())
        rows = self._driver.options.encode_rows
        use = KvUse(rows, 0, None, None, None, None, 0, 0)
        waiting = sum(len(texts.items) - len(texts.rows) for texts in self._queue)
        stats = self._tally.snapshot(waiting=waiting, running=0, compiling=0, preemptions=0, use=use)
        self._send(Report(tuple(self._events), stats))
        self._events.clear()

    def _read(self) -> bool:
        wait = not self._queue
        while True:
            try:
                item = self._inbox.get() if wait else self._inbox.get_nowait()
            except Empty:
                return True
            wait = False
            match item:
                case Close():
                    return False
                case Encode():
                    self._open(item)
                case Cancel(id):
                    self._drop(id)
                case Generate(id):
                    self._events.append(Failed(id, "RequestError", "this model encodes texts: it generates none"))

    def _open(self, message: Encode) -> None:
        if message.items:
            self._queue.append(Texts(message.id, [Encoded(ids, second) for ids, second in message.items]))
        else:
            self._events.append(Failed(message.id, "RequestError", "input: it is empty, at least one text is needed"))

    def _drop(self, id: int) -> None:
        for texts in [texts for texts in self._queue if texts.id == id]:
            self._queue.remove(texts)
            self._tally.cancelled += len(texts.items)

    def _encode(self) -> None:
        started = Clocks.read(self._driver)
        parts = self._parts()
        try:
            results = self._encoder.encode([item for _, items in parts for item in items])
        except OWN:
            self._apart(parts)
        else:
            start = 0
            for texts, items in parts:
                self._took(texts, results[start : start + len(items)])
                start += len(items)
        self._tally.step(Clocks.read(self._driver).since(started))
        self._queue.rotate(-1)

    def _parts(self) -> list[tuple[Texts, list[Encoded]]]:
        """Texts for one pass: one of each request that waits, again and again while there is room."""
        room = self._driver.options.encode_rows
        some = list(self._queue)[:room]
        counts = [0] * len(some)
        while room:
            going = [i for i, texts in enumerate(some) if len(texts.rows) + counts[i] < len(texts.items)][:room]
            if not going:
                break
            for i in going:
                counts[i] += 1
            room -= len(going)
        return [
            (texts, texts.items[len(texts.rows) : len(texts.rows) + count])
            for texts, count in zip(some, counts, strict=True)
        ]

    def _apart(self, parts: list[tuple[Texts, list[Encoded]]]) -> None:
        """Each request by itself, so that the one that is wrong fails alone."""
        for texts, items in parts:
            try:
                self._took(texts, self._encoder.encode(items))
            except OWN as error:
                self._fail(texts, error)

    def _fail(self, texts: Texts, error: PootError) -> None:
        self._queue.remove(texts)
        self._tally.failed += len(texts.items)
        self._events.append(Failed(texts.id, type(error).__name__, str(error)))

    def _took(self, texts: Texts, rows: NDArray[np.float32]) -> None:
        if not texts.rows:
            self._tally.queued += 1
            self._tally.queue_seconds += monotonic() - texts.added
        done = len(texts.rows)
        texts.rows += list(rows)
        self._tally.prompt_tokens += sum(len(item.ids) for item in texts.items[done : len(texts.rows)])
        if len(texts.rows) == len(texts.items):
            self._queue.remove(texts)
            self._tally.finished += len(texts.items)
            data = np.stack(texts.rows).astype("<f4")
            self._events.append(Vectors(texts.id, data.shape[0], data.shape[1], data.tobytes()))
