"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from poot_llm.guided.spec import StructuredOutputs
from poot_llm.tokenizer import Tokenizer
from poot_serve.engine.generation import Generation, Piece
from poot_serve.http.answers.answering import Job, streamed, usage_of, whole
from poot_serve.http.answers.chat import ChatAnswer, WholeAnswer, call_value
from poot_serve.http.body import read_body
from poot_serve.http.ids import answer_id, fingerprint
from poot_serve.http.metrics import Record
from poot_serve.http.requests.chat import ChatRequest
from poot_serve.http.sampling import sampling_params, structure_of
from poot_serve.http.service import Service
from poot_serve.http.sse import DONE, frame, text_bytes
from poot_serve.http.tools.parser import ToolParser
from poot_serve.http.tools.use import ToolUse, tool_use


@dataclass(frozen=True, slots=True)
class _Chat:
    """A request that was checked, and what its answers are called."""

    service: Service
    body: ChatRequest
    record: Record
    model: str
    tools: ToolUse
    id: str
    created: int

    @property
    def tokenizer(self) -> Tokenizer:
        return self.service.client.handle.tokenizer

    def answer(self) -> ChatAnswer:
        parser = ToolParser(self.tools.format, self.tools.names) if self.tools.names else None
        return ChatAnswer(self.tokenizer, parser, logprobs=bool(self.body.logprobs))

    def envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model,
                "system_fingerprint": fingerprint()}  # fmt: skip

    # Whole

    async def whole(self, generations: list[Generation], coming: AsyncIterator[tuple[int, Piece]]) -> dict[str, Any]:
        count = generations[0].params.n
        answers = [self.answer() for _ in range(count)]
        wholes = [WholeAnswer() for _ in range(count)]
        async for place, piece in coming:
            for delta in answers[place].take(piece):
                wholes[place].add(delta)
        choices = [self._choice(place, one) for place, one in enumerate(wholes)]
        return self.envelope("chat.completion") | {"choices": choices, "usage": usage_of(generations)}

    def _choice(self, place: int, answer: WholeAnswer) -> dict[str, Any]:
        text = "".join(answer.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if answer.calls else ""),
            "refusal": None,
        }
        if answer.calls:
            message["tool_calls"] = [call_value(call) for call in answer.calls]
        return {
            "index": place,
            "message": message,
            "logprobs": {"content": answer.logprobs, "refusal": None} if self.body.logprobs else None,
            "finish_reason": answer.finish_reason,
        }

    # Streamed

    async def frames(
        self, generations: list[Generation], coming: AsyncIterator[tuple[int, Piece]]
    ) -> AsyncGenerator[bytes, None]:
        count = generations[0].params.n
        answers = [self.answer() for _ in range(count)]
        begun = [False] * count
        plain = [self._plain(place) for place in range(count)]
        async for place, piece in coming:
            self.record.piece(place, len(piece.token_ids))
            if not begun[place]:
                begun[place] = True
                yield self._chunk(place, {"role": "assistant", "content": ""}, [], None)
            for delta in answers[place].take(piece):
                if delta.only_text:
                    before, after = plain[place]
                    yield before + text_bytes(delta.text) + after
                    continue
                added: dict[str, Any] = {}
                if delta.text:
                    added["content"] = delta.text
                if delta.call is not None:
                    added["tool_calls"] = [{"index": delta.call_index, **call_value(delta.call)}]
                yield self._chunk(place, added, delta.logprobs, delta.finish_reason)
        if self.body.wants_usage:
            yield frame(self.envelope("chat.completion.chunk") | {"choices": [], "usage": usage_of(generations)})

    def _plain(self, place: int) -> tuple[bytes, bytes]:
        """What stands before and after the text of a chunk that has nothing else, as most of them."""
        mark = "-text-"
        before, _, after = self._chunk(place, {"content": mark}, [], None).rpartition(text_bytes(mark))
        return before, after

    def _chunk(self, place: int, delta: dict[str, Any], logprobs: list[dict[str, Any]], reason: str | None) -> bytes:
        choice = {
            "index": place,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
            "finish_reason": reason,
        }
        usage: dict[str, Any] = {"usage": None} if self.body.wants_usage else {}
        return frame(self.envelope("chat.completion.chunk") | {"choices": [choice]} | usage)


async def chat_completions(service: Service, request: Request, record: Record) -> Response:
    """Answer a chat."""
    prompts = service.generator
    body = await read_body(request, ChatRequest, service.settings)
    model = service.model(body.model)
    tools = tool_use(
        body.tools,
        body.tool_choice,
        prompts.tools,
        structure_of(body, body.response_format),
        several=body.parallel_tool_calls,
    )
    ids = await prompts.chat(
        body.messages, service.facts.capacity, tools=tools.offered, variables=body.chat_template_kwargs
    )
    jobs = [_job(ids, body, service, tools.structure, tools)]
    chat = _Chat(service, body, record, model, tools, answer_id("chatcmpl"), int(time.time()))
    if body.stream:
        return await streamed(request, service, record, jobs, chat.frames, lambda _: DONE, body.timeout)
    return await whole(request, service, record, jobs, chat.whole, body.timeout)


def _job(
    ids: list[int], body: ChatRequest, service: Service, structure: StructuredOutputs | None, tools: ToolUse
) -> Job:
    params = sampling_params(
        body,
        max_tokens=body.limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        structure=structure,
        show_controls=tools.shows_controls(service.client.handle.tokenizer),
    )
    return ids, params
