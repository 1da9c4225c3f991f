"""One answer of a request on its way to text: tokens with what they became, nothing shown that a stop string may take
back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from poot_llm.detokenizer import Detokenizer
from poot_llm.driver import FinishReason
from poot_llm.generation import StopStrings
from poot_llm.sampling import SamplingParams, TokenLogprobs
from poot_llm.tokenizer import Tokenizer
from poot_serve.engine.messages import Tokens


@dataclass(frozen=True, slots=True)
class Shown:
    """What some tokens add to an answer: `Piece` says what each field means."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stopped_by: str | int | None


class AnswerText:
    """Text and tokens of one answer, in step: a token is shown once a character of its text is, so that what a stop
    string takes back has no tokens either.
    """

    __slots__ = ("_decoded", "_detokenizer", "_held", "_logprobs", "_shown", "_stops")

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=params.skip_special_tokens, continues=True)
        self._stops = StopStrings(params.stop)
        self._logprobs = params.logprobs is not None
        self._held: deque[tuple[int, int, TokenLogprobs | None]] = deque()
        self._decoded = 0
        self._shown = 0

    def take(self, event: Tokens) -> Shown:
        """What an event adds. Nothing more may be given once a finish reason came back."""
        parts: list[str] = []
        last = len(event.tokens) - 1
        reason = event.finish_reason
        for place, token in enumerate(event.tokens):
            if place == last and reason is FinishReason.STOP:
                # The id that ended it has no text.
                return self._end(parts, reason, token)
            self._held.append((token, self._decoded, event.logprobs[place] if self._logprobs else None))
            text = self._detokenizer.push(token)
            self._decoded += len(text)
            self._show(parts, self._stops.push(text))
            if self._stops.found is not None:
                return self._cut(parts)
        return self._end(parts, reason, None) if reason is not None else self._added(parts)

    def _show(self, parts: list[str], text: str) -> None:
        if text:
            parts.append(text)
            self._shown += len(text)

    def _end(self, parts: list[str], reason: FinishReason, stopped_by: int | None) -> Shown:
        """The answer is over: what was held back belongs to it."""
        self._show(parts, self._stops.push(self._detokenizer.finish()))
        if self._stops.found is not None:
            return self._cut(parts)
        self._show(parts, self._stops.finish())
        return self._added(parts, reason, stopped_by, everything=True)

    def _cut(self, parts: list[str]) -> Shown:
        return self._added(parts, FinishReason.STOP, self._stops.found)

    def _added(
        self,
        parts: list[str],
        reason: FinishReason | None = None,
        stopped_by: str | int | None = None,
        everything: bool = False,
    ) -> Shown:
        ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        while self._held and (everything or self._held[0][1] < self._shown):
            token, _, of_token = self._held.popleft()
            ids.append(token)
            if of_token is not None:
                logprobs.append(of_token)
        return Shown("".join(parts), tuple(ids), tuple(logprobs), reason, stopped_by)
