"""GET /health, /ready and /metrics: what those who run a server ask."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from poot_serve.engine.life import Phase
from poot_serve.http.json_response import JsonResponse
from poot_serve.http.metrics import CONTENT_TYPE
from poot_serve.http.service import Service


async def health(service: Service, request: Request) -> Response:
    """The process is alive, whatever the engine does."""
    return JsonResponse({"status": "ok", "engine": service.client.state.phase.value})


async def ready(service: Service, request: Request) -> Response:
    """200 where requests are taken, 503 with the reason where they are not."""
    state, facts = service.client.state, service.client.facts
    value: dict[str, Any] = {"ready": state.ready, "engine": state.phase.value, "model": service.names[0]}
    if state.reason:
        value["reason"] = state.reason
    if facts is not None:
        value |= {"device": facts.device, "rows": facts.rows, "context": facts.capacity}
    if state.ready:
        return JsonResponse(value)
    later = {} if state.phase in (Phase.FAILED, Phase.CLOSED) else {"Retry-After": "5"}
    return JsonResponse(value, 503, later)


async def metrics(service: Service, request: Request) -> Response:
    """All counts, as Prometheus reads them."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
