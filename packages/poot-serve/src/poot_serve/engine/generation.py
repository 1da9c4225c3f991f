"""One request as its reader sees it: pieces of its answers, text and tokens, until each has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Self

from poot_llm.driver import FinishReason
from poot_llm.sampling import SamplingParams, TokenLogprobs
from poot_llm.tokenizer import Tokenizer
from poot_serve.engine.answer_text import AnswerText, Shown
from poot_serve.engine.errors import SlowReader
from poot_serve.engine.messages import Cancel, Tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one answer since its last piece. Joined, the texts are the answer's.

    `token_ids` are those whose text is in this piece, or began in it, `logprobs` theirs where the request wants them:
    joined, they are the answer's; neither the id that ended it nor what is behind a stop string is among them.
    `finish_reason` is set on an answer's last piece, with what stopped it: a stop string, or the id.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None


@dataclass(slots=True)
class _Waiting:
    """What of an answer was not read yet."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None

    def add(self, shown: Shown) -> None:
        self.text.append(shown.text)
        self.token_ids += shown.token_ids
        self.logprobs += shown.logprobs
        self.finish_reason, self.stopped_by = shown.finish_reason, shown.stopped_by

    def piece(self, choice: int) -> Piece:
        return Piece(
            choice,
            "".join(self.text),
            tuple(self.token_ids),
            tuple(self.logprobs),
            self.finish_reason,
            self.stopped_by,
        )


class Generation(AsyncIterator[Piece]):
    """A request that was accepted. Iterate over it once: pieces of all its answers come as they are there, merged
    where the reader is slower. Use it in `async with`, or call `cancel`: otherwise one that is not read to its end
    stays until it has ended by itself.

    `anext` raises, once, RequestFailed, EngineLost, DeadlineExceeded, SlowReader or Draining where that ended the
    request; what came before is read first.
    """

    def __init__(
        self,
        id: int,
        prompt_ids: tuple[int, ...],
        params: SamplingParams,
        tokenizer: Tokenizer,
        most: int,
        tell: Callable[[Cancel], None],
        ended: Callable[[int], None],
    ) -> None:
        """`most` tokens may wait to be read. `tell` reaches the engine, `ended` the client, once."""
        self.id = id
        self.prompt_ids = prompt_ids
        self.params = params
        self.cached_tokens = 0
        """Of the prompt, found computed for its first answer; 0 until its first piece."""
        self.generated_tokens = 0
        """Of all answers so far, also what has no text: what usage counts."""
        self.queue_seconds: float | None = None
        """How long it waited for a row; None until its first piece."""
        self._most = most
        self._tell = tell
        self._ended = ended
        self._answers = {choice: AnswerText(tokenizer, params) for choice in range(params.n)}
        self._waiting: dict[int, _Waiting] = {}
        self._tokens_waiting = 0
        self._error: Exception | None = None
        self._over = False
        self._arrived = asyncio.Event()
        self._accepted: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it: what is there may not be read yet."""
        return self._over

    # The reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self._waiting:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._over:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        choice = next(iter(self._waiting))
        piece = self._waiting.pop(choice).piece(choice)
        self._tokens_waiting -= len(piece.token_ids)
        return piece

    def cancel(self) -> None:
        """Give up what is not finished, in whatever state it is; idempotent. What was not read is dropped."""
        self._waiting.clear()
        self._error = None
        if not self._over:
            self._tell(Cancel(self.id))
            self._finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    # The client

    @property
    def awaited(self) -> bool:
        """Whether the engine has still to say that it accepts it."""
        return self._accepted is not None and not self._accepted.done()

    async def accepted(self) -> None:
        """Wait until the engine has accepted it. Raises what refused it."""
        self._accepted = asyncio.get_running_loop().create_future()
        try:
            await self._accepted
        except BaseException:
            self.cancel()
            raise

    def accept(self) -> None:
        """The engine accepted it."""
        if self._accepted is not None and self.awaited:
            self._accepted.set_result(None)

    def take(self, event: Tokens) -> None:
        """A step gave it tokens."""
        answer = self._answers.get(event.choice)
        if self._over or answer is None:
            return  # of an answer that a stop string ended meanwhile
        if event.queued is not None and self.queue_seconds is None:
            self.queue_seconds, self.cached_tokens = event.queued, event.cached or 0
        self.generated_tokens += len(event.tokens)
        shown = answer.take(event)
        if shown.text or shown.token_ids or shown.finish_reason is not None:
            self._waiting.setdefault(event.choice, _Waiting()).add(shown)
            self._tokens_waiting += len(shown.token_ids)
            self._arrived.set()
        if shown.finish_reason is not None:
            del self._answers[event.choice]
            if event.finish_reason is None:
                self._tell(Cancel(self.id, event.choice, done=True))
            if not self._answers:
                self._finish()
        if self._tokens_waiting > self._most and not self._over:
            self._tell(Cancel(self.id))
            self.fail(SlowReader(self._tokens_waiting))

    def fail(self, error: Exception) -> None:
        """It is over, for a reason that its reader gets after what came before; the engine knows already."""
        if self._over:
            return
        if self._accepted is not None and self.awaited:
            self._accepted.set_exception(error)
        else:
            self._error = error
        self._finish()

    def _finish(self) -> None:
        self._over = True
        self._answers.clear()
        self._arrived.set()
        self._ended(self.id)
