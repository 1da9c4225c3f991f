"""POST /v1/embeddings and POST /v1/rerank."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from fastapi import Request, Response
from numpy.typing import NDArray

from poot_executor.errors import RequestError
from poot_llm.driver import Encoded
from poot_llm.encoders.ranking import Reading, ranked
from poot_llm.encoders.reading import TextReader
from poot_serve.http.attend import attended
from poot_serve.http.body import read_body
from poot_serve.http.ids import answer_id
from poot_serve.http.json_response import JsonResponse
from poot_serve.http.metrics import Outcome, Record
from poot_serve.http.prompts import SMALL
from poot_serve.http.requests.embeddings import EmbeddingsRequest, RerankRequest
from poot_serve.http.service import Service

Result = TypeVar("Result")


async def embeddings(service: Service, request: Request, record: Record) -> Response:
    """Texts to vectors."""
    service.require_encoder()
    body = await read_body(request, EmbeddingsRequest, service.settings)
    model = service.model(body.model)
    reader = TextReader(service.client.handle, service.facts.capacity)
    reader.require_embeddings()
    given = _listed(body.input)
    items = await _made(sum(map(len, given)), lambda: [_read(reader, place, one) for place, one in enumerate(given)])
    rows = await _encoded(service, request, record, items, body.timeout)
    shown = _base64 if body.encoding_format == "base64" else _floats
    data = [{"object": "embedding", "index": place, "embedding": shown(row)} for place, row in enumerate(rows)]
    record.end(Outcome.COMPLETED)
    return JsonResponse({"object": "list", "data": data, "model": model, "usage": _usage(record)})


async def rerank(service: Service, request: Request, record: Record) -> Response:
    """Documents in the order of their scores for a query."""
    service.require_encoder()
    body = await read_body(request, RerankRequest, service.settings)
    model = service.model(body.model)
    reader = TextReader(service.client.handle, service.facts.capacity)
    size = len(body.query) + sum(map(len, body.documents))
    reading = await _made(size, lambda: Reading.of(reader, body.query, body.documents))
    rows = await _encoded(service, request, record, reading.items, body.timeout)
    results = []
    for place, score in ranked(reading.scores(rows), body.top_n):
        result: dict[str, Any] = {"index": place, "relevance_score": score}
        if body.return_documents:
            result["document"] = {"text": body.documents[place]}
        results.append(result)
    record.end(Outcome.COMPLETED)
    return JsonResponse({"id": answer_id("rerank"), "model": model, "results": results, "usage": _usage(record)})


async def _encoded(
    service: Service, request: Request, record: Record, items: Sequence[Encoded], seconds: float | None
) -> NDArray[np.float32]:
    texts = [(item.ids, item.second) for item in items]
    rows = await attended(request, service.client.encode(texts, seconds=seconds))
    record.prompt_tokens = sum(len(item.ids) for item in items)
    return rows


def _listed(given: Any) -> list[Any]:
    """Texts and lists of ids as a list of them."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


def _read(reader: TextReader, place: int, given: str | list[int]) -> Encoded:
    if not isinstance(given, str):
        return Encoded.single(given)
    try:
        return reader.read(given)
    except RequestError as error:
        raise RequestError(f"input[{place}]: {error}") from None


async def _made(size: int, make: Callable[[], Result]) -> Result:
    """What `make` gives, in a thread where there is much to read."""
    return make() if size <= SMALL else await asyncio.to_thread(make)


def _floats(row: NDArray[np.float32]) -> list[float]:
    return row.tolist()


def _base64(row: NDArray[np.float32]) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _usage(record: Record) -> dict[str, int]:
    return {"prompt_tokens": record.prompt_tokens, "total_tokens": record.prompt_tokens}
