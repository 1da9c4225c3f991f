"""One request as its reader sees it: pieces of its answers, text and tokens, until each has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from poot_llm.driver import FinishReason
from poot_llm.sampling import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one answer since its last piece. Joined, the texts are the answer's.

    `token_ids` are those whose text is in this or an earlier piece and in none before, `logprobs` theirs where the
    request wants them: joined, they are the answer's; neither the id that ended it nor what is after a stop string is
    among them. `finish_reason` is set on an answer's last piece, with what stopped it: a stop string, or the id.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None


class Generation(AsyncIterator[Piece]):
    """A request that was accepted. Iterate over it once: pieces of all its answers come as they are there, merged
    where the reader is slower. Use it in `async with`, or call `cancel`: otherwise one that is not read to its end
    stays until it has ended by itself.

    `anext` raises, once, RequestFailed, EngineLost, DeadlineExceeded, SlowReader or Draining where that ended the
    request; what came before is read first.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    cached_tokens: int
    """Of the prompt, found computed for its first answer; 0 until its first piece."""
    generated_tokens: int
    """Of all answers so far, also what had no text: what usage counts."""
    queue_seconds: float | None
    """How long it waited for a row; None until its first piece."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        raise NotImplementedError

    def cancel(self) -> None:
        """Give up what is not finished, in whatever state it is; idempotent."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
