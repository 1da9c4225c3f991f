"""GET /v1/models, and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from poot_serve.http.json_response import JsonResponse
from poot_serve.http.service import Service


def model_value(service: Service, name: str) -> dict[str, Any]:
    """One name of the model. What it is served with is there once it was loaded."""
    facts = service.client.facts
    value: dict[str, Any] = {"id": name, "object": "model", "created": service.created, "owned_by": "poot"}
    if name != service.names[0]:
        value["root"] = service.names[0]
    if facts is not None:
        value |= {"max_model_len": facts.capacity, "device": facts.device}
    return value


async def list_models(service: Service, request: Request) -> Response:
    """Every name of the model."""
    return JsonResponse({"object": "list", "data": [model_value(service, name) for name in service.names]})


async def one_model(service: Service, request: Request) -> Response:
    """One of them. Raises ApiError 404."""
    return JsonResponse(model_value(service, service.model(request.path_params["name"])))
