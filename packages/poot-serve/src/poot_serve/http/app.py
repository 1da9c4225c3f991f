"""The application: routes, what every request passes, and errors in one shape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from poot_executor.errors import PootError
from poot_serve.engine.client import EngineClient
from poot_serve.http.answers.answering import counted
from poot_serve.http.errors import ApiError, from_poot
from poot_serve.http.gate import Gate
from poot_serve.http.json_response import JsonResponse
from poot_serve.http.metrics import Record
from poot_serve.http.openapi import describe
from poot_serve.http.routes.chat import chat_completions
from poot_serve.http.routes.completions import completions
from poot_serve.http.routes.embeddings import embeddings, rerank
from poot_serve.http.routes.models import list_models, one_model
from poot_serve.http.routes.operations import health, metrics, ready
from poot_serve.http.routes.page import page_route
from poot_serve.http.routes.responses import responses
from poot_serve.http.routes.tokens import detokenize, tokenize
from poot_serve.http.service import Service
from poot_serve.http.settings import HttpSettings
from poot_serve.http.tracing import Traces
from poot_serve.page import page_files

_LOG = logging.getLogger("poot_serve")
Answer = Callable[[Service, Request, Record], Awaitable[Response]]
Plain = Callable[[Service, Request], Awaitable[Response]]


def create_app(client: EngineClient, settings: HttpSettings, traces: Traces | None = None) -> FastAPI:
    """The application over an engine that may not have been started yet."""
    service = Service.of(client, settings)
    app = FastAPI(title="poot", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.state.service = service

    def post(path: str, answer: Answer, prompt_field: str) -> None:
        async def work(request: Request, record: Record) -> Response:
            return await answer(service, request, record)

        app.add_api_route(path, counted(service, work, prompt_field), methods=["POST"], name=answer.__name__)

    def plain(method: str, path: str, answer: Plain) -> None:
        async def work(request: Request) -> Response:
            return await answer(service, request)

        app.add_api_route(path, work, methods=[method], name=answer.__name__)

    post("/v1/chat/completions", chat_completions, "messages")
    post("/v1/completions", completions, "prompt")
    post("/v1/responses", responses, "input")
    post("/v1/embeddings", embeddings, "input")
    post("/v1/rerank", rerank, "documents")
    plain("POST", "/tokenize", tokenize)
    plain("POST", "/detokenize", detokenize)
    plain("GET", "/v1/models", list_models)
    plain("GET", "/v1/models/{name:path}", one_model)
    plain("GET", "/health", health)
    plain("GET", "/ready", ready)
    plain("GET", "/metrics", metrics)

    for file in page_files():
        app.add_api_route(file.path, page_route(file), methods=["GET"], include_in_schema=False)

    app.add_exception_handler(PootError, _refusal)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(Exception, _broken)
    describe(app)
    app.add_middleware(Gate, service=service, traces=traces)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
            max_age=600,
        )
    return app


async def _refusal(request: Request, error: Exception) -> Response:
    return answer_of(from_poot(error))


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    if error.status_code == 405:
        return answer_of(ApiError(405, f"{path} does not take {request.method}", code="method_not_allowed",
                                  headers=error.headers or {}))  # fmt: skip
    return answer_of(ApiError(error.status_code, f"there is nothing at {path}", code="not_found"))


async def _broken(request: Request, error: Exception) -> Response:
    return answer_of(from_poot(error))


def answer_of(error: ApiError) -> Response:
    """An error as a response."""
    return JsonResponse(error.body(), error.status, error.headers)
