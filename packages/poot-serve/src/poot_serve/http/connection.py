"""One connection of uvicorn's, with the limits that it lacks: heads that are too large or too slow, too many clients,
readers that never take what was written, and clients that close one half.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import TimerHandle
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poot_serve.http.attend import ABORT
from poot_serve.http.errors import ApiError, unavailable
from poot_serve.http.settings import HttpSettings

LINGER = 1.0
"""Seconds for which what a client sends after a refusal is still taken, and dropped."""


class Connection(HttpToolsProtocol):
    """A connection under the limits of some settings; `limited` gives the class for them."""

    settings: HttpSettings

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = True
        self._head_bytes = 0
        self._timer: TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there. One too many is told so."""
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self.settings.connections:
            self._refuse(unavailable(f"{self.settings.connections} connections are open", "too_many_connections", 1))
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._disarm()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """A client that sends no more is taken for one that has left: its requests are given up."""
        if self._refused:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.flow is not None:
            self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head or a body; after a refusal nobody reads them."""
        if self._refused or self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._timer is None:
                self._arm()
        try:
            super().data_received(data)
        except httptools.HttpParserCallbackError:
            self.send_400_response("the head cannot be read")
            return
        if self._head_bytes > self.settings.head_bytes and not self.transport.is_closing():
            self._refuse(_too_large(self.settings))

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(ApiError(400, "the request is no HTTP/1.1", code="bad_http"))

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head = True
        self.scope["state"][ABORT] = self.transport.abort

    def on_headers_complete(self) -> None:
        """A head is there: the request is begun."""
        self._disarm()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.settings.head_bytes:
            self._head_bytes = size
            return
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Bytes of a body."""
        if not self._in_head:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A body is there; the next head may follow."""
        if not self._in_head:
            self._in_head = True
            super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come. What the client did not take of the last answer is dropped."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.settings.head_seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """A head that did not come in time."""
        self._timer = None
        if self.transport.is_closing():
            return
        if self._head_bytes == 0:
            self.transport.close()
        else:
            seconds = self.settings.head_seconds
            self._refuse(ApiError(408, f"the head did not come within {seconds:g} s", code="slow_head"))

    def _refuse(self, error: ApiError) -> None:
        """An answer to what is no request yet, and the end of the connection. What the client still sends is dropped
        for a while: one that writes when its connection is closed does not read the answer.
        """
        self._disarm()
        self._refused = True
        body = json.dumps(error.body()).encode()
        status = HTTPStatus(error.status)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json",
                 f"content-length: {len(body)}", "connection: close",
                 *(f"{name}: {value}" for name, value in error.headers.items() if name != "Connection")]  # fmt: skip
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.abort)


def limited(settings: HttpSettings) -> type[Connection]:
    """Connections under these settings."""
    return type("LimitedConnection", (Connection,), {"settings": settings})


def _too_large(settings: HttpSettings) -> ApiError:
    return ApiError(431, f"the head has more than {settings.head_bytes:,} bytes", code="head_too_large")  # fmt: skip
