"""`poot bench serve` against a server whose timing is known."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from poot_llm.cli import main

PIECES, FIRST_SECONDS, GAP_SECONDS = 5, 0.15, 0.03
HANDED_SECONDS = 240


@dataclass
class Paced:
    """A server that counts two tokens a word and three more, and streams five pieces at a known pace."""

    url: str = ""
    fault: str = ""
    bodies: list[dict] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    together: int = 0
    """Requests, after the first one, that are answered once so many of them are there."""
    open: int = 0
    most: int = 0


def words(body: dict) -> int:
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return len(text.split())


async def answer(state: Paced, request):
    from aiohttp import web

    body = await request.json()
    state.keys.append(request.headers.get("Authorization"))
    usage = {"prompt_tokens": 2 * words(body) + 3, "completion_tokens": PIECES}
    if not body.get("stream"):
        return web.json_response({} if state.fault == "no usage" else {"usage": usage})
    state.bodies.append(body)
    if state.fault == "refuse" and len(state.bodies) % 2:
        return web.json_response({"error": {"message": "too busy"}}, status=503)
    state.open += 1
    state.most = max(state.most, state.open)
    while len(state.bodies) > 1 and state.most < state.together:  # noqa: ASYNC110 - the others come here too
        await asyncio.sleep(0.001)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": hello\r\n\r\n")
    await asyncio.sleep(FIRST_SECONDS)
    chat = request.path.endswith("chat/completions")
    for place in range(PIECES):
        if place:
            await asyncio.sleep(GAP_SECONDS)
        choice = {"index": 0, "delta": {"content": "x"}} if chat else {"index": 0, "text": "x"}
        data = f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
        await response.write(data[:9])
        await response.write(data[9:])
    await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
    if state.fault == "error event":
        await response.write(b'data: {"error": {"message": "the engine was lost"}}\n\n')
    elif state.fault != "short":
        await response.write(b"data: [DONE]\n\n")
    state.open -= 1
    return response


async def listing(request):
    from aiohttp import web

    return web.json_response({"data": [{"id": "paced"}]})


@pytest.fixture
def paced() -> Iterator[Paced]:
    web = pytest.importorskip("aiohttp.web", reason="aiohttp is the extra poot-serve[bench]")
    state = Paced()
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def start():
        app = web.Application()
        app.router.add_get("/v1/models", listing)
        for path in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, partial(answer, state))
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        state.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def serve():
        runner = loop.run_until_complete(start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert started.wait(HANDED_SECONDS)
    yield state
    loop.call_soon_threadsafe(loop.stop)
    thread.join(HANDED_SECONDS)


@pytest.fixture
def bench(capsys):
    def run(*arguments: str):
        status = main(["bench", "serve", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_times_and_counts_are_those_of_the_server(paced, bench) -> None:
    paced.together = 3
    status, out, _ = bench(
        "--base-url", paced.url, "--num-prompts", "6", "--max-concurrency", "3", "--input-len", "43",
        "--output-len", "5", "--json", "--api-key", "secret", "--goodput", "ttft:60000", "e2el:0.001",
    )  # fmt: skip
    found = json.loads(out)
    assert status == 0
    assert (found["completed"], found["failed"]) == (6, 0)
    assert found["total_input_tokens"] == 6 * 43
    assert found["total_output_tokens"] == 6 * PIECES
    assert paced.most == 3 == found["max_concurrent_requests"]
    assert found["mean_ttft_ms"] >= 1e3 * FIRST_SECONDS
    assert found["mean_itl_ms"] == pytest.approx(found["mean_tpot_ms"])
    assert found["mean_e2el_ms"] == pytest.approx(found["mean_ttft_ms"] + 4 * found["mean_tpot_ms"])
    assert found["mean_e2el_ms"] >= 1e3 * (FIRST_SECONDS + 4 * GAP_SECONDS) * 0.9
    assert found["duration"] >= 2 * (FIRST_SECONDS + 4 * GAP_SECONDS) * 0.9
    assert found["output_throughput"] == pytest.approx(6 * PIECES / found["duration"])
    assert found["request_goodput"] == 0.0
    assert set(paced.keys) == {"Bearer secret"}
    counted = paced.bodies[1:]  # after the warm-up
    assert all(words(body) == 20 and body["max_tokens"] == 5 and body["ignore_eos"] for body in counted)
    assert {body["model"] for body in counted} == {"paced"}


def test_a_chat_at_a_rate(paced, bench) -> None:
    status, out, _ = bench(
        "--base-url", f"{paced.url}/v1", "--endpoint", "/v1/chat/completions", "--model", "mine", "--num-prompts", "8",
        "--request-rate", "20", "--no-ignore-eos", "--dataset", "shared-prefix", "--num-prefixes", "2",
        "--prefix-len", "20", "--input-len", "8", "--num-warmups", "0",
    )  # fmt: skip
    assert status == 0
    assert "Successful requests:                     8" in out
    assert "Request rate configured (RPS):           20.00" in out
    assert all("ignore_eos" not in body and body["model"] == "mine" for body in paced.bodies)
    heads = {" ".join(body["messages"][0]["content"].split()[:10]) for body in paced.bodies}
    assert len(heads) == 2


@pytest.mark.parametrize(
    ("fault", "told", "failed"),
    [
        ("refuse", "status 503: too busy", 2),
        ("error event", "error event: the engine was lost", 4),
        ("short", "the stream ended before its end was said", 4),
    ],
)
def test_what_fails_is_counted_and_told(paced, bench, fault, told, failed) -> None:
    paced.fault = fault
    status, out, _ = bench("--base-url", paced.url, "--num-prompts", "4", "--num-warmups", "0")
    assert status == 1
    assert f"Failed requests:                         {failed}" in out
    assert f"{failed} failed: {told}" in out


def test_a_server_that_does_not_count_is_refused(paced, bench) -> None:
    paced.fault = "no usage"
    status, out, err = bench("--base-url", paced.url)
    assert (status, out) == (2, "")
    assert "usage.prompt_tokens" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--base-url", "127.0.0.1:1"], "http://"),
        (["--base-url", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["--request-rate", "0"], "--request-rate"),
        (["--range-ratio", "1"], "--range-ratio"),
        (["--goodput", "itl:3"], "--goodput"),
        (["--goodput", "ttft"], "--goodput"),
        (["--metric-percentiles", "101"], "--metric-percentiles"),
    ],
)
def test_what_cannot_be_is_refused(bench, arguments, word) -> None:
    status, out, err = bench(*arguments)
    assert (status, out) == (2, "")
    assert word in err
