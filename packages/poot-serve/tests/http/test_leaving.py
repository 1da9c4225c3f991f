"""Clients that leave: in every state the row and the place in the queue are free at once, and it is counted."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.device("vpu")

ANSWERS = 16
LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "n": ANSWERS}
"""Tens of thousands of tokens, a row's worth after another: it has not ended when it is left."""


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


@dataclass(frozen=True)
class Counts:
    """Of /metrics at one moment. `behind`: answers that wait for a row or have finished, since each that ends makes
    room for one that waits.
    """

    cancelled: int
    inflight: int
    running: int
    waiting: int
    behind: int

    @property
    def idle(self) -> bool:
        """Nothing is left."""
        return (self.inflight, self.running, self.waiting) == (0, 0, 0)


@pytest.fixture
def counts(client: httpx.Client) -> Callable[[], Counts]:
    """Counts as they are now, from an idle server on."""

    def read() -> Counts:
        lines = [line.rpartition(" ") for line in client.get("/metrics").text.splitlines()]
        values = {name: float(value) for name, _, value in lines if not name.startswith("#")}
        waiting = int(values["poot_queue_depth"])
        return Counts(
            int(values["poot_requests_cancelled_total"]),
            int(values["poot_inflight_requests"]),
            int(values["poot_batch_size"]),
            waiting,
            waiting + int(values['poot_answers_total{end="finished"}']),
        )

    # What the test before has left is gone first: it would be taken for this one's.
    until(lambda: read().idle)
    return read


def until(wanted: Callable[[], bool], seconds: float = 240) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ended(counts: Callable[[], Counts], cancelled: int) -> None:
    """Wait until so many requests were left, and nothing of them is."""
    until(lambda: counts().cancelled == cancelled and counts().idle)


@contextmanager
def full(send: Callable[..., socket.socket], counts: Callable[[], Counts]) -> Iterator[int]:
    """Both rows are taken, and stay so; how many answers are behind them."""
    behind = counts().behind + 2 * ANSWERS - 2
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(send(LONG))
        until(lambda: (counts().running, counts().behind) == (2, behind))
        yield behind


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_while_it_waits_for_a_row(send: Any, counts: Any, stream: bool) -> None:
    before = counts().cancelled
    with full(send, counts) as behind:
        with send(LONG | {"stream": stream}):
            until(lambda: counts().behind == behind + ANSWERS)
        until(lambda: counts().behind == behind)
        now = counts()
        assert (now.cancelled, now.inflight) == (before + 1, 2) and now.running > 0
    ended(counts, before + 3)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prompt", ["x", 900 * "y"], ids=["decode", "prefill"])
def test_while_it_is_answered(send: Any, counts: Any, stream: bool, prompt: str) -> None:
    before = counts()
    with send(LONG | {"prompt": prompt, "stream": stream}):
        until(lambda: counts().running == 2)
        assert counts().behind == before.behind + ANSWERS - 2
    ended(counts, before.cancelled + 1)


def test_before_its_body_is_there(server: Any, counts: Any) -> None:
    before = counts().cancelled
    with socket.create_connection(server.address, 30) as connection:
        connection.sendall(head("/v1/completions", 50) + b"{")
        until(lambda: counts().inflight == 1)
    ended(counts, before + 1)


def test_one_half_closed_is_a_client_that_left(send: Any, counts: Any) -> None:
    before = counts().cancelled
    with send(LONG | {"stream": True}) as connection:
        until(lambda: counts().running == 2)
        connection.shutdown(socket.SHUT_WR)
        ended(counts, before + 1)


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
        until(lambda: counts().running == 2)
    ended(counts, int(before["cancelled"]) + 1)
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
