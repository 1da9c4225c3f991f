"""The server's own description: what each route takes, from the models that check it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from poot_serve.http.requests.chat import ChatRequest
from poot_serve.http.requests.completions import CompletionRequest
from poot_serve.http.requests.embeddings import EmbeddingsRequest, RerankRequest
from poot_serve.http.requests.responses import ResponsesRequest
from poot_serve.http.requests.tokens import DetokenizeRequest, TokenizeRequest

BODIES: tuple[tuple[str, type[BaseModel]], ...] = (
    ("/v1/chat/completions", ChatRequest),
    ("/v1/completions", CompletionRequest),
    ("/v1/responses", ResponsesRequest),
    ("/v1/embeddings", EmbeddingsRequest),
    ("/v1/rerank", RerankRequest),
    ("/tokenize", TokenizeRequest),
    ("/detokenize", DetokenizeRequest),
)
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def describe(app: FastAPI) -> None:
    """Give an application the document; it is made when it is first asked for."""
    made: list[dict[str, Any]] = []

    def document() -> dict[str, Any]:
        if not made:
            made.append(_document(app))
        return made[0]

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    models = [model for _, model in BODIES]
    references, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    schemas = definitions.get("$defs", {}) | {"Error": _ERROR}
    document["components"] = {"schemas": schemas}
    refusal = {"description": "Refused, or failed", "content": {"application/json": {"schema": {
        "$ref": "#/components/schemas/Error"}}}}  # fmt: skip
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"] = {"200": {"description": "The answer"}, "default": refusal}
    for path, model in BODIES:
        document["paths"][path]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[model, "validation"]}},
        }
    return document
