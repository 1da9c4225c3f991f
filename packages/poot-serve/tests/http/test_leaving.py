"""Clients that leave: in every state the row and the place in the queue are free at once, and it is counted."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.device("vpu")

LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}


def head(path: str, length: int) -> bytes:
    """The head of a request with a body of so many bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.fixture
def send(server: Any) -> Callable[..., socket.socket]:
    """Send a request over a socket of its own, and read nothing."""

    def go(body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
        data = json.dumps(body).encode()
        connection = socket.create_connection(server.address, 30)
        connection.sendall(head(path, len(data)) + data)
        return connection

    return go


@pytest.fixture
def counts(metric: Callable[..., float]) -> Callable[[], tuple[int, int, int]]:
    """Cancelled requests, answers with a row, and answers that wait for one."""

    def read() -> tuple[int, int, int]:
        names = ("poot_requests_cancelled_total", "poot_batch_size", "poot_queue_depth")
        return tuple(int(metric(name)) for name in names)  # type: ignore[return-value]

    # What the test before has left is gone first: it would be taken for this one's.
    until(lambda: read()[1:] == (0, 0) and metric("poot_inflight_requests") == 0)
    return read


def until(wanted: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def full(send: Callable[..., socket.socket], counts: Callable[[], tuple[int, int, int]]) -> Iterator[None]:
    """Both rows are taken."""
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(send(LONG))
        until(lambda: counts()[1] == 2)
        yield


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_while_it_waits_for_a_row(send: Any, counts: Any, stream: bool) -> None:
    before = counts()[0]
    with full(send, counts):
        with send(LONG | {"stream": stream}):
            until(lambda: counts()[2] == 1)
        until(lambda: counts()[2] == 0, 10)
        assert counts()[:2] == (before + 1, 2)
    until(lambda: counts() == (before + 3, 0, 0))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prompt", ["x", 900 * "y"], ids=["decode", "prefill"])
def test_while_it_is_answered(send: Any, counts: Any, stream: bool, prompt: str) -> None:
    before = counts()[0]
    with send(LONG | {"prompt": prompt, "stream": stream}):
        until(lambda: counts()[1] == 1)
    until(lambda: counts() == (before + 1, 0, 0), 10)


def test_several_answers_of_one_request_all_end(send: Any, counts: Any) -> None:
    before = counts()[0]
    with send(LONG | {"n": 5}):
        until(lambda: counts()[1:] == (2, 3))
    until(lambda: counts() == (before + 1, 0, 0), 10)


def test_before_its_body_is_there(server: Any, counts: Any) -> None:
    before = counts()[0]
    with socket.create_connection(server.address, 30) as connection:
        connection.sendall(head("/v1/completions", 50) + b"{")
        time.sleep(0.1)
    until(lambda: counts()[0] == before + 1, 10)


def test_one_half_closed_is_a_client_that_left(send: Any, counts: Any) -> None:
    before = counts()[0]
    with send(LONG | {"stream": True}) as connection:
        until(lambda: counts()[1] == 1)
        connection.shutdown(socket.SHUT_WR)
        until(lambda: counts() == (before + 1, 0, 0), 10)


def test_a_row_that_was_left_is_the_next_ones(client: httpx.Client, send: Any, counts: Any) -> None:
    with full(send, counts):
        pass
    assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200


def test_counts_add_up(client: httpx.Client, metric: Callable[..., float], send: Any, counts: Any) -> None:
    """Of requests that end well, are refused, or are left, each is counted once, and each token."""
    names = ["completed", "cancelled", "errored", "refused"]
    before = {name: metric(f"poot_requests_{name}_total") for name in names}
    tokens = metric("poot_completion_tokens_total"), metric("poot_prompt_tokens_total")
    for n in (1, 2):
        body = {"prompt": "x", "max_tokens": 5, "ignore_eos": True, "n": n, "stream": n == 2}
        assert client.post("/v1/completions", json=body).status_code == 200
    client.post("/v1/completions", json={"prompt": "x", "max_tokens": -1})
    client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
    with send(LONG):
        until(lambda: counts()[1] == 1)
    until(lambda: counts()[1] == 0)
    after = {name: metric(f"poot_requests_{name}_total") - before[name] for name in names}
    assert after == {"completed": 2, "cancelled": 1, "errored": 0, "refused": 2}
    outcomes = sum(metric(f"poot_requests_{name}_total") for name in names)
    assert metric("poot_requests_total") == outcomes + metric("poot_inflight_requests") == outcomes
    assert metric("poot_completion_tokens_total") >= tokens[0] + 15
    assert metric("poot_prompt_tokens_total") == tokens[1] + 3
    assert metric("poot_request_e2e_ms_count") == metric("poot_requests_completed_total")
    assert metric('poot_ttft_ms_bucket{le="+Inf"}') == metric("poot_ttft_ms_count") > 0
    assert metric("poot_ready") == 1 and metric("poot_slot_capacity") == 2
    assert metric("poot_engine_generated_tokens_total") >= metric("poot_completion_tokens_total") - tokens[0]
