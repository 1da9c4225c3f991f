"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request, Response

from poot_llm.sampling import SamplingParams
from poot_llm.tokenizer import Tokenizer
from poot_serve.engine.generation import Generation, Piece
from poot_serve.http.answers.answering import Job, streamed, usage_of, whole
from poot_serve.http.answers.logprobs import CompletionLogprobs
from poot_serve.http.body import read_body
from poot_serve.http.ids import answer_id, fingerprint
from poot_serve.http.metrics import Record
from poot_serve.http.requests.completions import CompletionRequest
from poot_serve.http.sampling import sampling_params, structure_of
from poot_serve.http.service import Service
from poot_serve.http.sse import DONE, frame


@dataclass(frozen=True, slots=True)
class _Completion:
    """A request that was checked. `echoes` are what each prompt's answers begin with."""

    service: Service
    body: CompletionRequest
    record: Record
    model: str
    echoes: tuple[str, ...]
    id: str
    created: int

    @property
    def tokenizer(self) -> Tokenizer:
        return self.service.client.handle.tokenizer

    def envelope(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
                "system_fingerprint": fingerprint()}  # fmt: skip

    def echo(self, place: int) -> str:
        """What the answer at a place begins with."""
        return self.echoes[place // (self.body.n or 1)]

    def logprobs(self, count: int) -> list[CompletionLogprobs]:
        return [CompletionLogprobs(self.tokenizer, len(self.echo(place))) for place in range(count)]

    async def whole(self, generations: list[Generation], coming: AsyncIterator[tuple[int, Piece]]) -> dict[str, Any]:
        count = sum(one.params.n for one in generations)
        texts = [[self.echo(place)] for place in range(count)]
        reasons = [""] * count
        readers = self.logprobs(count)
        lists: list[dict[str, list[Any]]] = [reader.take((), ()) for reader in readers]
        async for place, piece in coming:
            texts[place].append(piece.text)
            for name, values in self._taken(readers[place], piece).items():
                lists[place][name] += values
            if piece.finish_reason is not None:
                reasons[place] = piece.finish_reason.value
        choices = [
            _choice(place, "".join(texts[place]), self._shown(lists[place]), reasons[place]) for place in range(count)
        ]
        return self.envelope() | {"choices": choices, "usage": usage_of(generations)}

    async def frames(
        self, generations: list[Generation], coming: AsyncIterator[tuple[int, Piece]]
    ) -> AsyncGenerator[bytes, None]:
        count = sum(one.params.n for one in generations)
        readers = self.logprobs(count)
        held = [reader.take((), ()) for reader in readers]
        echoes = [self.echo(place) for place in range(count)]
        usage: dict[str, Any] = {"usage": None} if self.body.wants_usage else {}
        async for place, piece in coming:
            self.record.piece(place, len(piece.token_ids))
            text, echoes[place] = echoes[place] + piece.text, ""
            for name, values in self._taken(readers[place], piece).items():
                held[place][name] += values
            if not text and piece.finish_reason is None:
                continue
            logprobs, held[place] = held[place], readers[place].take((), ())
            reason = None if piece.finish_reason is None else piece.finish_reason.value
            yield frame(self.envelope() | {"choices": [_choice(place, text, self._shown(logprobs), reason)]} | usage)
        if self.body.wants_usage:
            yield frame(self.envelope() | {"choices": [], "usage": usage_of(generations)})

    def _taken(self, reader: CompletionLogprobs, piece: Piece) -> dict[str, list[Any]]:
        return {} if self.body.logprobs is None else reader.take(piece.token_ids, piece.logprobs)

    def _shown(self, lists: dict[str, list[Any]]) -> dict[str, list[Any]] | None:
        return None if self.body.logprobs is None else lists


def _choice(place: int, text: str, logprobs: dict[str, list[Any]] | None, reason: str | None) -> dict[str, Any]:
    return {"index": place, "text": text, "logprobs": logprobs, "finish_reason": reason}


async def completions(service: Service, request: Request, record: Record) -> Response:
    """Continue prompts."""
    service.generator  # noqa: B018 - an encoder is refused before its body is read
    body = await read_body(request, CompletionRequest, service.settings)
    model = service.model(body.model)
    params = sampling_params(
        body, max_tokens=body.limit, logprobs=body.logprobs, structure=structure_of(body, body.response_format)
    )
    if body.suffix is not None:
        params, prompts = await _with_hole(service, body, params)
    else:
        prompts = await _prompts(service, body)
    jobs: list[Job] = [(ids, params) for ids, _ in prompts]
    echoes = tuple(text if body.echo else "" for _, text in prompts)
    made = _Completion(service, body, record, model, echoes, answer_id("cmpl"), int(time.time()))
    if body.stream:
        return await streamed(request, service, record, jobs, made.frames, lambda _: DONE, body.timeout)
    return await whole(request, service, record, jobs, made.whole, body.timeout)


async def _with_hole(
    service: Service, body: CompletionRequest, params: SamplingParams
) -> tuple[SamplingParams, list[tuple[list[int], str]]]:
    """The prompt of a request with `suffix`, as `_prompts` gives them, and parameters that end its answer in time."""
    assert body.suffix is not None and isinstance(body.prompt, str)
    special = body.add_special_tokens is not False
    ids, ends = await service.generator.hole(
        body.prompt, body.suffix, service.facts.capacity, add_special=special, field="prompt"
    )
    if not params.ignore_eos:
        params = replace(params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *ends))))
    return params, [(ids, "")]


async def _prompts(service: Service, body: CompletionRequest) -> list[tuple[list[int], str]]:
    """Each prompt's ids, and its text where it is echoed."""
    given: list[Any]
    if isinstance(body.prompt, str) or (body.prompt and isinstance(body.prompt[0], int)):
        given = [body.prompt]
    else:
        given = list(body.prompt)
    tokenizer, capacity = service.client.handle.tokenizer, service.facts.capacity
    special = body.add_special_tokens is not False
    found = []
    for place, prompt in enumerate(given):
        if isinstance(prompt, str):
            field = "prompt" if len(given) == 1 else f"prompt[{place}]"
            found.append((await service.generator.text(prompt, capacity, add_special=special, field=field), prompt))
        else:
            found.append((prompt, tokenizer.decode(prompt) if body.echo else ""))
    return found
