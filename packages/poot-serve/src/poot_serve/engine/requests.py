"""The requests that an engine has: who waits for what, until when, and how many there may be."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import PootError, RequestError
from poot_llm.sampling import SamplingParams
from poot_llm.tokenizer import Tokenizer
from poot_serve.engine.errors import DeadlineExceeded, Overloaded, RequestFailed
from poot_serve.engine.generation import Generation
from poot_serve.engine.messages import Accepted, Cancel, Encode, Event, Failed, Message, Tokens, Vectors

LONGEST_RETRY = 60
"""Seconds that a client is told to wait at most."""
REMEMBERED = 32
"""Ends of requests from which their rate is taken."""


@dataclass(slots=True, eq=False)
class Texts:
    """A request of an encoder."""

    id: int
    future: asyncio.Future[NDArray[np.float32]]


@dataclass(slots=True, eq=False)
class _Open:
    """A request that has not ended, and for how many answers it counts."""

    request: Generation | Texts
    answers: int
    timer: asyncio.TimerHandle


class Requests:
    """Those that were handed in and have not ended. `tell` reaches the engine that has them."""

    def __init__(self, tell: Callable[[Message], None], most_tokens: int) -> None:
        """`most_tokens` of an answer may wait to be read."""
        self._tell = tell
        self._most_tokens = most_tokens
        self._open: dict[int, _Open] = {}
        self._ids = itertools.count(1)
        self._ends: deque[float] = deque(maxlen=REMEMBERED)
        self._idle = asyncio.Event()
        self._idle.set()
        self.answers = 0
        """Of open requests."""
        self.busy_since = 0.0
        """Since when there has always been an open request, by `time.monotonic`."""

    def __len__(self) -> int:
        return len(self._open)

    async def none_left(self) -> None:
        """Wait until all have ended."""
        await self._idle.wait()

    # Beginning

    def generation(
        self, prompt_ids: tuple[int, ...], params: SamplingParams, tokenizer: Tokenizer, seconds: float
    ) -> Generation:
        """A new request of `params.n` answers, which the engine is still to be told of."""
        id = next(self._ids)
        made = Generation(id, prompt_ids, params, tokenizer, self._most_tokens, self._tell, self._ended)
        self._add(id, made, params.n, seconds)
        return made

    async def vectors(self, items: tuple[tuple[tuple[int, ...], int], ...], seconds: float) -> NDArray[np.float32]:
        """Hand texts to the engine and wait for their rows. Raises what ends the request."""
        texts = Texts(next(self._ids), asyncio.get_running_loop().create_future())
        self._add(texts.id, texts, len(items), seconds)
        self._tell(Encode(texts.id, items))
        try:
            return await texts.future
        except asyncio.CancelledError:
            self._tell(Cancel(texts.id))
            raise
        finally:
            self._ended(texts.id)

    def admit(self, most: int) -> None:
        """Raises Overloaded where as many answers are open as may be."""
        if self.answers >= most:
            raise Overloaded(self.answers, self.retry_after())

    def admit_structure(self, most: int) -> None:
        """Raises Overloaded where as many constraints wait to be compiled as may."""
        waiting = sum(isinstance(item.request, Generation) and item.request.awaited for item in self._open.values())
        if waiting >= most:
            raise Overloaded(waiting, self.retry_after())

    def retry_after(self) -> int:
        """Seconds after which a request will probably have ended, from the rate of late."""
        if len(self._ends) < 2:
            return 1
        rate = (len(self._ends) - 1) / max(self._ends[-1] - self._ends[0], 1e-3)
        return max(1, min(LONGEST_RETRY, math.ceil(1 / rate)))

    def _add(self, id: int, request: Generation | Texts, answers: int, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, id, seconds)
        if not self._open:
            self.busy_since = monotonic()
            self._idle.clear()
        self._open[id] = _Open(request, answers, timer)
        self.answers += answers

    # Ending

    def handle(self, event: Event) -> None:
        """What the engine says of a request; of one that has ended meanwhile it is dropped."""
        match event:
            case Tokens(id):
                self._tokens(id, event)
            case Accepted(id):
                found = self._open.get(id)
                if found is not None and isinstance(found.request, Generation):
                    found.request.accept()
            case Failed(id, kind, message):
                self._fail(id, RequestError(message) if kind == "RequestError" else RequestFailed(kind, message))
            case Vectors(id, rows, columns, data):
                found = self._open.get(id)
                if found is not None and isinstance(found.request, Texts) and not found.request.future.done():
                    found.request.future.set_result(np.frombuffer(data, "<f4").reshape(rows, columns))

    def fail_all(self, make: Callable[[], PootError]) -> int:
        """End every request with an error of its own; how many there were. The engine is not told."""
        ids = list(self._open)
        for id in ids:
            self._fail(id, make())
        return len(ids)

    def give_up_all(self, make: Callable[[], PootError]) -> int:
        """As `fail_all`, and the engine is told."""
        for id in self._open:
            self._tell(Cancel(id))
        return self.fail_all(make)

    def _tokens(self, id: int, event: Tokens) -> None:
        found = self._open.get(id)
        if found is None or not isinstance(found.request, Generation):
            return
        try:
            found.request.take(event)
        except PootError as error:
            self._tell(Cancel(id))
            found.request.fail(RequestFailed(type(error).__name__, str(error)))

    def _expire(self, id: int, seconds: float) -> None:
        self._tell(Cancel(id))
        self._fail(id, DeadlineExceeded(seconds))

    def _fail(self, id: int, error: PootError) -> None:
        found = self._open.get(id)
        if found is None:
            return
        if isinstance(found.request, Generation):
            found.request.fail(error)
        elif not found.request.future.done():
            found.request.future.set_exception(error)
            self._ended(id)

    def _ended(self, id: int) -> None:
        found = self._open.pop(id, None)
        if found is None:
            return
        found.timer.cancel()
        self.answers -= found.answers
        self._ends.append(monotonic())
        if not self._open:
            self._idle.set()
