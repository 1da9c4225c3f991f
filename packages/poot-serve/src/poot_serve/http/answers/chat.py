"""One answer of a chat as it comes: deltas of text and calls of tools, which streams and whole answers are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from poot_llm.driver import FinishReason
from poot_llm.tokenizer import Tokenizer
from poot_serve.engine.generation import Piece
from poot_serve.http.answers.logprobs import chat_logprobs
from poot_serve.http.tools.parser import Call, ToolParser


@dataclass(frozen=True, slots=True)
class Delta:
    """What is added to an answer. One that ends it has a `finish_reason` and adds no text."""

    text: str = ""
    call: Call | None = None
    call_index: int = 0
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def only_text(self) -> bool:
        """Whether there is nothing else."""
        return self.call is None and not self.logprobs and self.finish_reason is None


class ChatAnswer:
    """Makes deltas of pieces. Joined, they are the whole answer."""

    __slots__ = ("_calls", "_logprobs", "_parser", "_tokenizer", "_wants_logprobs")

    def __init__(self, tokenizer: Tokenizer, parser: ToolParser | None, *, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self._wants_logprobs = logprobs
        self._logprobs: list[dict[str, Any]] = []
        self._calls = 0

    def take(self, piece: Piece) -> Iterator[Delta]:
        """The deltas of a piece; none that is empty but the last of the answer."""
        if self._wants_logprobs:
            self._logprobs += chat_logprobs(self._tokenizer, piece.token_ids, piece.logprobs)
        for part in self._parts(piece):
            logprobs, self._logprobs = self._logprobs, []
            if isinstance(part, Call):
                yield Delta(call=part, call_index=self._calls, logprobs=logprobs)
                self._calls += 1
            elif part:
                yield Delta(text=part, logprobs=logprobs)
            else:
                self._logprobs = logprobs
        if piece.finish_reason is not None:
            logprobs, self._logprobs = self._logprobs, []
            yield Delta(finish_reason=self._reason(piece.finish_reason), logprobs=logprobs)

    def _parts(self, piece: Piece) -> Iterator[str | Call]:
        if self._parser is None:
            yield piece.text
            return
        yield from self._parser.push(piece.text)
        if piece.finish_reason is not None:
            yield from self._parser.finish()

    def _reason(self, reason: FinishReason) -> str:
        return "tool_calls" if reason is FinishReason.STOP and self._calls else reason.value


@dataclass(slots=True)
class WholeAnswer:
    """The deltas of an answer, joined."""

    texts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""

    def add(self, delta: Delta) -> None:
        """One more delta."""
        if delta.text:
            self.texts.append(delta.text)
        if delta.call is not None:
            self.calls.append(delta.call)
        self.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason


def call_value(call: Call) -> dict[str, Any]:
    """A call as answers hold it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
