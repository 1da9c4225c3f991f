"""Plain HTTP through httpx, byte for byte: what clients without a library of their own see."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.device("vpu")]

BODY = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


def test_a_stream_is_events_and_nothing_else(web) -> None:
    whole = web.post("/v1/completions", json=BODY)
    with web.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as streamed:
        assert streamed.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert "no-cache" in streamed.headers["cache-control"]
        assert streamed.headers["x-request-id"] != whole.headers["x-request-id"]
        raw = streamed.read().decode("utf-8")
    assert raw.endswith("data: [DONE]\n\n")
    events = [event for event in raw.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert text == whole.json()["choices"][0]["text"] != ""


def test_one_connection_answers_many_requests(web) -> None:
    """A refusal, a stream that was read, a page: the connection stays."""
    refused = web.post("/v1/completions", json={**BODY, "max_tokens": "many"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "max_tokens"
    ports = set()
    for path in ("/health", "/", "/v1/models"):
        with web.stream("GET", path) as answer:
            ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            answer.read()
    assert len(ports) == 1


def test_the_page_is_there_under_its_policy(web) -> None:
    page = web.get("/")
    assert page.status_code == 200 and "<title>poot</title>" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert web.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304


def test_tokens_go_there_and_back(web) -> None:
    text = "El niño comió 3 manzanas. 日本 👩‍🚀"
    tokens = web.post("/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"]) > 10
    assert web.post("/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"] == text
