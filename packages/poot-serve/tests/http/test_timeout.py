"""The field `timeout`: while the engine stands still, every request that has one ends by it; it is refused by name."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
BODIES = {
    "/v1/completions": {"prompt": "Once", "max_tokens": 8},
    "/v1/chat/completions": {**CHAT, "max_tokens": 8},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 8},
}


@contextmanager
def standing_still(server: Any) -> Generator[None]:
    """The engine's process takes no step."""
    pid = server.process.pid
    (engine,) = (int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    os.kill(engine, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(engine, signal.SIGCONT)


@pytest.mark.parametrize("path", BODIES)
def test_a_request_ends_by_it(server, client, path) -> None:
    with standing_still(server):
        answer = client.post(path, json={**BODIES[path], "timeout": 0.05})
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert error["code"] == "deadline_exceeded"
    assert "0.05 s" in error["message"]
    # The server goes on.
    assert client.post(path, json={**BODIES[path], "timeout": 600}).status_code == 200


def test_a_stream_ends_by_it_with_an_event(server, client) -> None:
    body = {**BODIES["/v1/completions"], "stream": True, "timeout": 0.05}
    with standing_still(server):
        text = client.post("/v1/completions", json=body).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["error"]["code"] for event in events] == ["deadline_exceeded"]
    assert "[DONE]" not in text


def test_each_of_several_prompts_ends_by_it(server, client, metric) -> None:
    errored = metric("poot_requests_errored_total")
    with standing_still(server):
        answer = client.post("/v1/completions", json={"prompt": ["a", "b"], "n": 2, "timeout": 0.05})
    assert answer.status_code == 504
    assert metric("poot_requests_errored_total") == errored + 1
    assert metric("poot_inflight_requests") == 0


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("value", [0, -1, 86401, "10", True, [1]])
def test_what_is_no_number_of_seconds_is_refused_by_name(client: httpx.Client, path, value) -> None:
    answer = client.post(path, json={**BODIES[path], "timeout": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "timeout"
