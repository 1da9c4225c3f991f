"""Connections that are none of a well-behaved client's: heads that are too large, too slow, or no HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from poot_serve.engine.client import EngineClient
from poot_serve.engine.settings import EngineSettings
from poot_serve.http.app import create_app
from poot_serve.http.connection import limited
from poot_serve.http.server import address_of, listening
from poot_serve.http.settings import HttpSettings

pytestmark = pytest.mark.device("vpu")


def exchange(address: tuple[str, int], data: bytes, seconds: float = 240) -> bytes:
    """Send bytes and read until the server ends the connection."""
    with socket.create_connection(address, seconds) as connection:
        connection.settimeout(seconds)
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def error_of(answer: bytes) -> dict[str, Any]:
    """The error in an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    return json.loads(body)["error"]


def test_a_head_that_is_too_large(server: Any) -> None:
    fields = b"".join(b"X-Field-%d: %s\r\n" % (place, 1000 * b"x") for place in range(80))
    answer = exchange(server.address, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ") and error_of(answer)["code"] == "head_too_large"


def test_a_head_that_does_not_end(server: Any) -> None:
    answer = exchange(server.address, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + 80_000 * b"x")
    assert answer.startswith(b"HTTP/1.1 431 ") and error_of(answer)["code"] == "head_too_large"


def test_a_url_that_is_too_large(server: Any) -> None:
    answer = exchange(server.address, b"GET /" + 70_000 * b"x" + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n"]
)
def test_what_is_no_http(server: Any, data: bytes) -> None:
    answer = exchange(server.address, data)
    assert answer.startswith(b"HTTP/1.1 400 ") and error_of(answer)["code"] == "bad_http"


def test_a_name_that_was_rebound_to_this_machine(client: httpx.Client) -> None:
    response = client.get("/v1/models", headers={"host": "evil.example"})
    assert response.status_code == 403 and response.json()["error"]["code"] == "host_not_allowed"
    for host in ("localhost:80", "127.0.0.1", "[::1]:8080"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200


def test_answers_follow_one_another_on_a_connection(server: Any) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert exchange(server.address, request + request + last).count(b"HTTP/1.1 200 ") == 3


@pytest.fixture
def strict(checkpoint: Path) -> Iterator[Callable[..., tuple[str, tuple[str, int]]]]:
    """Starts the HTTP half alone over an engine that was not started, under tight limits; in this process. Its URL, and
    its address.
    """
    with ExitStack() as stack:

        def start(**limits: Any) -> tuple[str, tuple[str, int]]:
            settings = HttpSettings(port=0, api_keys=("secret-key",), **limits)
            app = create_app(EngineClient(EngineSettings(checkpoint)), settings)
            bound = stack.enter_context(listening(settings))
            config = uvicorn.Config(app, http=limited(settings), ws="none", lifespan="off", log_config=None)
            http = uvicorn.Server(config)
            thread = threading.Thread(target=lambda: asyncio.run(http.serve([bound])))
            thread.start()
            stack.callback(thread.join, 60)
            stack.callback(setattr, http, "should_exit", True)
            return address_of(bound), bound.getsockname()

        yield start


def begun(address: tuple[str, int], send: Callable[[socket.socket], None]) -> bytes:
    """The answer to what is sent too slowly. A client that this machine held up before it had begun was not heard, and
    tries again.
    """
    for _ in range(20):
        answer = b""
        with socket.create_connection(address, 240) as connection, suppress(ConnectionError):
            send(connection)
            while part := connection.recv(4096):
                answer += part
        if answer:
            return answer
    raise AssertionError("nothing was answered")


def test_a_head_that_is_too_slow(strict: Any) -> None:
    _, address = strict(head_seconds=0.3)

    def slowly(connection: socket.socket) -> None:
        for byte in b"GET /health HTTP/1.1\r\n":
            connection.sendall(bytes([byte]))
            time.sleep(0.005)

    answer = begun(address, slowly)
    assert answer.startswith(b"HTTP/1.1 408 ") and error_of(answer)["code"] == "slow_head"


def test_a_connection_that_says_nothing_is_closed(strict: Any) -> None:
    _, address = strict(head_seconds=0.3)
    assert exchange(address, b"") == b""


def test_a_body_that_is_too_slow(strict: Any) -> None:
    _, address = strict(body_seconds=0.3, head_seconds=3600.0)
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret-key\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    answer = exchange(address, head)
    assert answer.startswith(b"HTTP/1.1 408 ") and error_of(answer)["code"] == "slow_body"


def test_one_connection_too_many(strict: Any) -> None:
    _, address = strict(connections=3, head_seconds=3600.0)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket.create_connection(address, 240))
        answer = exchange(address, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ") and error_of(answer)["code"] == "too_many_connections"


def test_keys_rates_and_origins(strict: Any) -> None:
    url, _ = strict(requests_per_minute=5, origins=("https://app.example",))
    key = {"authorization": "Bearer secret-key"}
    with httpx.Client(base_url=url, timeout=240) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret-key"}):
            refused = client.get("/v1/models", headers=headers)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        assert client.get("/v1/models", headers=key).status_code == 200
        for path in ("/health", "/metrics", "/"):
            assert client.get(path).status_code == 200, "these need no key"
        unready = client.get("/ready")
        assert unready.status_code == 503 and unready.json()["reason"] and unready.headers["retry-after"]
        refused = client.post("/v1/completions", json={"prompt": "x"}, headers=key)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "not_ready"
        assert refused.headers["retry-after"]
        statuses = [client.post("/detokenize", json={"tokens": []}, headers=key).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 200, 429]
        asked = {"origin": "https://app.example", "access-control-request-method": "POST",
                 "access-control-request-headers": "authorization,content-type"}  # fmt: skip
        assert client.options("/v1/completions", headers=asked).headers["access-control-allow-origin"]
        other = client.options("/v1/completions", headers=asked | {"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        limited = client.post("/v1/completions", json={}, headers=key | {"origin": "https://app.example"})
        assert limited.status_code == 429 and int(limited.headers["retry-after"]) >= 1
        assert limited.headers["access-control-allow-origin"] == "https://app.example"
