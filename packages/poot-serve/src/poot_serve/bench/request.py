"""One streamed request of a benchmark, with the times at which its pieces came."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from poot_executor.errors import PootError
from poot_serve.bench.workload import Prompt

if TYPE_CHECKING:
    from aiohttp import ClientSession

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_LINE_BYTES = 1 << 20


class BenchError(PootError):
    """A benchmark that cannot be run."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: `base_url` without a path, the endpoint, the model's name, further fields of each body."""

    base_url: str
    endpoint: str
    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """What is posted to."""
        return f"{self.base_url}{self.endpoint}"

    def body(self, text: str, tokens: int, *, stream: bool) -> dict[str, Any]:
        """A request's body."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": tokens, **self.fields}
        if self.endpoint == CHAT:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@dataclass(slots=True)
class Record:
    """What became of a request. Times are of `perf_counter`; `pieces` are when text came.

    `prompt_tokens` and `output_tokens` are the server's counts; without them the pieces are counted. `error` is None
    where the answer came to its end.
    """

    sent: float
    ended: float = 0.0
    pieces: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    counted_tokens: int | None = None
    error: str | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.pieces) if self.counted_tokens is None else self.counted_tokens

    @property
    def ttft(self) -> float:
        """Seconds until the first text; an answer that has none took as long as it took."""
        return (self.pieces[0] if self.pieces else self.ended) - self.sent

    @property
    def latency(self) -> float:
        """Seconds until the last text."""
        return (self.pieces[-1] if self.pieces else self.ended) - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None of an answer of one token."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between texts that follow each other."""
        return [after - before for before, after in pairwise(self.pieces)]


async def send(session: ClientSession, target: Target, prompt: Prompt) -> Record:
    """Send a request and read its stream to the end. Whatever goes wrong is the record's `error`."""
    from aiohttp import ClientError

    record = Record(perf_counter())
    try:
        async with session.post(target.url, json=target.body(prompt.text, prompt.output_tokens, stream=True)) as answer:
            if answer.status != 200:
                record.error = f"status {answer.status}: {_message(await answer.text())}"
            else:
                await _read(answer.content.iter_any(), record)
    except (ClientError, TimeoutError, OSError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}"
    record.ended = perf_counter()
    return record


async def _read(chunks: AsyncIterator[bytes], record: Record) -> None:
    rest = b""
    async for chunk in chunks:
        now = perf_counter()
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise ValueError("a line of the stream is longer than a MiB")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            _take(json.loads(data), now, record)
            if record.error is not None:
                return
    record.error = "the stream ended before its end was said"


def _take(event: dict[str, Any], now: float, record: Record) -> None:
    if error := event.get("error"):
        record.error = f"error event: {error.get('message', error) if isinstance(error, dict) else error}"
        return
    if usage := event.get("usage"):
        record.prompt_tokens = usage.get("prompt_tokens")
        record.counted_tokens = usage.get("completion_tokens")
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"):
            record.pieces.append(now)


def _message(body: str) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return " ".join(body.split())[:200]
