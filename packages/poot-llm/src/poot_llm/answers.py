"""Answers to prompts: what a caller gets of each, and one while it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poot_executor.errors import PootError
from poot_llm.driver import Delivery, FinishReason
from poot_llm.generation import AnswerText, TextPiece
from poot_llm.sampling import SamplingParams, TokenLogprobs
from poot_llm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer to a prompt. `finish_reason` is STOP, LENGTH or ERROR, of which `failure` says why."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    stop_string: str | None = None
    failure: PootError | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its answers, as many as its parameters' `n`. `prompt` is None where ids were given."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]


class GrowingAnswer:
    """One answer while it comes."""

    __slots__ = ("_text", "logprobs", "parts", "tokens")

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._text = AnswerText(tokenizer, params)
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []

    def take(self, delivery: Delivery) -> Iterator[TextPiece]:
        """The pieces of a delivery. The last one has a finish reason, also where a stop string ended the answer."""
        last = len(delivery.tokens) - 1
        for place, token in enumerate(delivery.tokens):
            reason = delivery.finish_reason if place == last else None
            text = self._text.push(token, reason)
            if self._text.stopped is not None:
                reason = FinishReason.STOP
            self.tokens.append(token)
            self.logprobs += delivery.logprobs[place : place + 1]
            self.parts.append(text)
            yield TextPiece(token, text, reason)
            if reason is not None:
                return

    def done(self, index: int, reason: FinishReason, failure: PootError | None) -> CompletionOutput:
        """The whole answer. What was held back of one that failed is shown."""
        if failure is not None:
            self.parts.append(self._text.finish())
        return CompletionOutput(
            index, "".join(self.parts), tuple(self.tokens), reason, tuple(self.logprobs), self._text.stopped, failure
        )
