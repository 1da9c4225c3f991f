"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request, Response

from poot_serve.http.body import read_body
from poot_serve.http.json_response import JsonResponse
from poot_serve.http.prompts import SMALL
from poot_serve.http.requests.tokens import DetokenizeRequest, TokenizeRequest
from poot_serve.http.service import Service

MOST_TOKENS = 1 << 20


async def tokenize(service: Service, request: Request) -> Response:
    """Ids of a text or of a chat, their count, and how many fit."""
    body = await read_body(request, TokenizeRequest, service.settings)
    service.model(body.model)
    tokenizer, prompts = service.client.handle.tokenizer, service.prompts
    if body.messages is not None:
        generate = body.add_generation_prompt is not False
        ids = await service.generator.chat(
            body.messages, MOST_TOKENS, tools=body.tools or (), variables=body.chat_template_kwargs, generate=generate
        )
    else:
        text, special = body.prompt or "", body.add_special_tokens is not False
        if prompts is None:
            ids = await asyncio.to_thread(tokenizer.encode, text, add_special=special, parse_special=False)
        else:
            ids = await prompts.text(text, MOST_TOKENS, add_special=special)
    value: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": service.facts.capacity}
    if body.return_token_strs:
        value["token_strs"] = [tokenizer.token_text(token) for token in ids]
    return JsonResponse(value)


async def detokenize(service: Service, request: Request) -> Response:
    """The text of ids."""
    body = await read_body(request, DetokenizeRequest, service.settings)
    service.model(body.model)
    tokenizer = service.client.handle.tokenizer
    skip = bool(body.skip_special_tokens)
    if len(body.tokens) <= SMALL:
        text = tokenizer.decode(body.tokens, skip)
    else:
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip)
    return JsonResponse({"prompt": text})
