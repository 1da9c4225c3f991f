"""What every request passes first: a name for it, who may ask, how often, and a line in the log at the end."""

from __future__ import annotations

import logging
import time
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poot_serve.http.access import Access
from poot_serve.http.errors import ApiError
from poot_serve.http.json_response import JsonResponse
from poot_serve.http.service import Service
from poot_serve.http.tracing import Traces

_LOG = logging.getLogger("poot_serve")
MOST_ID = 128
"""Characters of a name that a client gives its request."""
UNROUTED = "none"
QUIET = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are asked again and again, of which neither log nor traces speak."""


class Gate:
    """Answers what may not pass, and puts X-Request-Id on every response."""

    def __init__(self, app: ASGIApp, service: Service, traces: Traces | None = None) -> None:
        self._app = app
        self._traces = traces
        self._service = service
        self._access = Access(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        name = _name(headers.get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = name
        started = time.perf_counter()
        traces = None if scope["path"] in QUIET else self._traces
        span = None if traces is None else traces.begin(scope, headers, name)
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(raw=message["headers"]).append("X-Request-Id", name)
                self._service.metrics.response(_route(scope), status)
            await send(message)

        try:
            self._access.check(scope, headers)
        except ApiError as error:
            await JsonResponse(error.body(), error.status, error.headers)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)
        finally:
            self._log(scope, name, status, time.perf_counter() - started)
            if traces is not None and span is not None:
                traces.end(span, scope["method"], _route(scope), status, scope["state"].get("record"))

    def _log(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        path = scope["path"]
        level = logging.DEBUG if path in QUIET else logging.INFO
        if not _LOG.isEnabledFor(level):
            return
        fields: dict[str, object] = {
            "request": name, "method": scope["method"], "path": path[:200], "status": status,
            "seconds": round(seconds, 4), "client": (scope.get("client") or ("",))[0],
        }  # fmt: skip
        record = scope["state"].get("record")
        if record is not None:
            outcome = record.outcome.value if record.outcome else ""
            fields |= {"outcome": outcome, "prompt_tokens": record.prompt_tokens,
                       "completion_tokens": record.completion_tokens}  # fmt: skip
        _LOG.log(level, "request", extra={"fields": fields})


def _name(given: str | None) -> str:
    """The client's name for the request where it is one, or a new one."""
    if given and len(given) <= MOST_ID and given.isascii() and given.isprintable():
        return given
    return f"req-{uuid4().hex}"


def _route(scope: Scope) -> str:
    """The route's path as it was declared, so that there are few."""
    return getattr(scope.get("route"), "path", UNROUTED)
