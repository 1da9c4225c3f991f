"""POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response

from poot_serve.engine.generation import Generation, Piece
from poot_serve.http.answers.answering import Job, streamed, usage_of, whole
from poot_serve.http.answers.chat import ChatAnswer
from poot_serve.http.answers.responses import ResponseAnswer
from poot_serve.http.answers.responses_input import choice_of, format_of_text, messages_of, tools_of
from poot_serve.http.body import read_body
from poot_serve.http.errors import ApiError
from poot_serve.http.ids import answer_id
from poot_serve.http.metrics import Record
from poot_serve.http.requests.responses import ResponsesRequest
from poot_serve.http.requests.sampling_fields import SamplingFields
from poot_serve.http.sampling import TEMPERATURE, sampling_params, structure_of
from poot_serve.http.service import Service
from poot_serve.http.tools.parser import ToolParser
from poot_serve.http.tools.use import ToolUse, tool_use


@dataclass(frozen=True, slots=True)
class _Response:
    """A request that was checked, its answer, and what it is called."""

    service: Service
    body: ResponsesRequest
    record: Record
    model: str
    tools: ToolUse
    answer: ResponseAnswer
    id: str
    created: int

    def value(self, status: str, generations: list[Generation] | None, error: ApiError | None = None) -> dict[str, Any]:
        """The response as it is now."""
        body = self.body
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": False,
            "error": None if error is None else {"code": error.code or "server_error", "message": error.message},
            "incomplete_details": incomplete,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.model,
            "output": list(self.answer.output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": TEMPERATURE if body.temperature is None else body.temperature,
            "text": _text_value(body),
            "tool_choice": _plain(body.tool_choice) or "auto",
            "tools": [_plain(tool) | {"strict": bool(tool.strict)} for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None if generations is None else _usage(generations),
            "user": body.user,
        }

    def chat(self) -> ChatAnswer:
        tokenizer = self.service.client.handle.tokenizer
        parser = ToolParser(self.tools.format, self.tools.names) if self.tools.names else None
        return ChatAnswer(tokenizer, parser, logprobs=self.body.wants_logprobs)

    @property
    def status(self) -> str:
        return "incomplete" if self.answer.finish_reason == "length" else "completed"

    async def whole(self, generations: list[Generation], coming: AsyncIterator[tuple[int, Piece]]) -> dict[str, Any]:
        chat = self.chat()
        async for _, piece in coming:
            for delta in chat.take(piece):
                for _ in self.answer.take(delta):
                    pass
        return self.value(self.status, generations)

    async def frames(
        self, generations: list[Generation], coming: AsyncIterator[tuple[int, Piece]]
    ) -> AsyncGenerator[bytes, None]:
        chat, answer = self.chat(), self.answer
        yield answer.event("response.created", response=self.value("in_progress", None))
        yield answer.event("response.in_progress", response=self.value("in_progress", None))
        async for place, piece in coming:
            self.record.piece(place, len(piece.token_ids))
            for delta in chat.take(piece):
                for event in answer.take(delta):
                    yield event

    def last(self, generations: list[Generation]) -> bytes:
        return self.answer.event(f"response.{self.status}", response=self.value(self.status, generations))

    def failed(self, error: ApiError) -> bytes:
        return self.answer.event("response.failed", response=self.value("failed", None, error))


async def responses(service: Service, request: Request, record: Record) -> Response:
    """Answer a conversation, as a response."""
    prompts = service.generator
    body = await read_body(request, ResponsesRequest, service.settings)
    model = service.model(body.model)
    fields = SamplingFields(temperature=body.temperature, top_p=body.top_p)
    structure = structure_of(fields, format_of_text(body))
    use = tool_use(tools_of(body), choice_of(body), prompts.tools, structure, several=body.parallel_tool_calls)
    ids = await prompts.chat(messages_of(body), service.facts.capacity, tools=use.offered)
    params = sampling_params(
        fields,
        max_tokens=body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if body.wants_logprobs else None,
        structure=use.structure,
        show_controls=use.shows_controls(service.client.handle.tokenizer),
    )
    jobs: list[Job] = [(ids, params)]
    made = _Response(service, body, record, model, use, ResponseAnswer(), answer_id("resp"), int(time.time()))
    if body.stream:
        return await streamed(request, service, record, jobs, made.frames, made.last, body.timeout, made.failed)
    return await whole(request, service, record, jobs, made.whole, body.timeout)


def _usage(generations: list[Generation]) -> dict[str, Any]:
    usage = usage_of(generations)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


def _text_value(body: ResponsesRequest) -> dict[str, Any]:
    given = body.text.format if body.text else None
    return {"format": {"type": "text"} if given is None else _plain(given)}


def _plain(value: Any) -> Any:
    return value.model_dump(by_alias=True, exclude_none=True) if hasattr(value, "model_dump") else value
