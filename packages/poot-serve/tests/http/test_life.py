"""The server's life: SIGTERM lets open requests end within a bound, a lost engine is told, a port in use refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from poot_serve.command import main

pytestmark = pytest.mark.device("vpu")

LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": True, "n": 32}
"""More than a hundred thousand tokens: it does not end by itself while a test runs."""
DRAIN = 1


class Reader:
    """Reads a stream in a thread."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self.text = ""
        self.begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, body))
        self._thread.start()
        assert self.begun.wait(240)

    def _read(self, url: str, body: dict[str, Any]) -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as response:
            for part in response.iter_text():
                self.text += part
                self.begun.set()

    @property
    def last(self) -> Any:
        """The data of the last event, once the stream has ended."""
        self._thread.join(240)
        (*_, data) = [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: ")]
        return data if data == "[DONE]" else json.loads(data)


@pytest.fixture
def own_server(request: pytest.FixtureRequest, served: Any, server: Any, checkpoint: Path) -> Iterator[Any]:
    """A server of the test's own, whose steps the shared one has compiled; its parameter is how long it may drain."""
    made = served(
        checkpoint, "--device", "vpu:cpu", "--rows", "2", "--chunk", "64", "--capacity", "4096", "--lazy",
        "--drain-seconds", request.param,
    )  # fmt: skip
    try:
        made.wait_ready()
        yield made
    finally:
        made.close()


def until(wanted: Callable[[], Any]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + 240
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("own_server", [DRAIN], indirect=True)
def test_sigterm_drains_within_its_bound(own_server: Any) -> None:
    assert Reader(own_server.url, LONG | {"max_tokens": 40, "n": 1}).last == "[DONE]"
    long = Reader(own_server.url, LONG)
    own_server.process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert long.last["error"]["code"] == "shutting_down"
    assert own_server.process.wait(240) == 0
    assert time.monotonic() >= started + DRAIN
    own_server.close()
    assert own_server.events("ended") and own_server.events("gave up requests")


@pytest.mark.parametrize("own_server", [3600], indirect=True)
def test_what_drains_takes_no_more_requests(own_server: Any) -> None:
    long = Reader(own_server.url, LONG)
    with httpx.Client(base_url=own_server.url, timeout=240) as client:
        assert client.get("/ready").status_code == 200
        own_server.process.send_signal(signal.SIGTERM)
        until(lambda: own_server.events("draining"))
        ready = client.get("/ready")
        assert ready.status_code == 503 and ready.json()["engine"] == "draining"
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        assert refused.headers["retry-after"]
    # A second one ends what is open.
    own_server.process.send_signal(signal.SIGTERM)
    assert long.last["error"]["code"] == "shutting_down"
    assert own_server.process.wait(240) == 0
    own_server.close()
    assert own_server.events("ended")


@pytest.mark.parametrize("own_server", [DRAIN], indirect=True)
def test_an_engine_that_is_killed_is_told_and_another_one_serves(own_server: Any) -> None:
    stream = Reader(own_server.url, LONG)
    (first,) = own_server.engines()
    os.kill(first, signal.SIGKILL)
    # The next one is held up while it loads.
    until(lambda: set(own_server.engines()) - {first})
    (second,) = set(own_server.engines()) - {first}
    os.kill(second, signal.SIGSTOP)
    try:
        assert stream.last["error"]["code"] == "engine_lost"
        unready = httpx.get(f"{own_server.url}/ready", timeout=240)
        assert unready.status_code == 503 and unready.json()["reason"]
        refused = httpx.post(f"{own_server.url}/v1/completions", json={"prompt": "x"}, timeout=240)
        assert refused.status_code == 503 and refused.headers["retry-after"]
    finally:
        os.kill(second, signal.SIGCONT)
    own_server.wait_ready()
    answer = httpx.post(f"{own_server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=240)
    assert answer.status_code == 200

    def lost() -> bool:
        """Kill what serves. Where this machine took more than a minute, one loss more is needed."""
        for child in own_server.engines():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return own_server.process.poll() is not None

    until(lost)
    assert own_server.process.returncode == 2, "a second loss within a minute ends the server"
    own_server.close()
    assert any("poot: the engine is failed" in line for line in own_server.lines)


def test_a_port_in_use_is_refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(checkpoint), "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} cannot be listened at" in capsys.readouterr().err


def test_what_is_no_model_is_refused_at_once() -> None:
    line = [sys.executable, "-m", "poot_llm", "serve", "no-such-model", "--port", "0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and "no-such-model" in done.stderr and "Traceback" not in done.stderr


def test_keys_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none\n\n")
    assert main(["x", "--api-key-file", str(keys)]) == 2
    assert "it has no key" in capsys.readouterr().err
    keys.write_text("short\n")
    assert main(["x", "--api-key-file", str(keys)]) == 2
    assert "api_keys" in capsys.readouterr().err
