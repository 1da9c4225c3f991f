"""A server in a process of its own, over a tiny checkpoint on OpenVINO's CPU plug-in, and clients over real sockets."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from poot_eval.conformance import open_or_skip

_FIXTURES = Path(__file__).resolve().parents[3] / "poot-llm" / "tests" / "fixtures"
_SPEC = importlib.util.spec_from_file_location("tiny", _FIXTURES / "tiny.py")
assert _SPEC is not None and _SPEC.loader is not None
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)

CONTEXT = 4096
KEY = "a-key-of-this-server"
MODEL = "tiny"


class Served:
    """A server's process: its address, its log as objects, and how it ended."""

    def __init__(self, *arguments: str | Path) -> None:
        line = [sys.executable, "-m", "poot_llm", "serve", *map(str, arguments), "--port", "0", "--log", "json"]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=dict(os.environ))
        self.lines: list[str] = []
        self._listening = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(240) and self.url, self.lines

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if not self.url and (found := re.search(r'"url": "([^"]+)"', line)):
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def engines(self) -> list[int]:
        """The processes of its engines: one, or none where it was lost and the next one has not begun."""
        pid = self.process.pid
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(word) for word in started if b"poot_serve.engine.child" in command_of(word)]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of a name in its log so far."""
        values = [json.loads(line) for line in self.lines if line.startswith("{")]
        return [value for value in values if value["event"] == name]

    def wait_ready(self, seconds: float = 240) -> None:
        """Wait until it takes requests."""
        deadline = time.monotonic() + seconds
        while httpx.get(f"{self.url}/ready").status_code != 200:
            assert self.process.poll() is None and time.monotonic() < deadline, self.lines
            time.sleep(0.1)

    def end(self, number: int = signal.SIGTERM, seconds: float = 240) -> int:
        """Send a signal and wait; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        finally:
            self.close()

    def close(self) -> None:
        """End it in any case, and read what it said to the end."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()


def command_of(pid: str) -> bytes:
    """A process's command line: its parent's before it has begun, none once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of a few thousand weights, whose answers are noise."""
    path = tmp_path_factory.mktemp("model") / f"{MODEL}.gguf"
    return tiny.write_tiny_llama_gguf(path, layers=1, width=32, heads=2, kv_heads=1, ffn=32, vocab=320, context=CONTEXT)


@pytest.fixture(scope="session")
def served() -> type[Served]:
    """What starts a server of a test's own."""
    return Served


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[Served]:
    """The server that most tests share."""
    with open_or_skip("vpu"):
        pass
    served = Served(
        checkpoint, "--device", "vpu:cpu", "--rows", "2", "--chunk", "64", "--capacity", "4096", "--lazy",
        "--name", MODEL, "--name", "alias",
        "--body-bytes", "200000", "--drain-seconds", "5",
    )  # fmt: skip
    try:
        served.wait_ready()
        yield served
    finally:
        served.close()


@pytest.fixture(scope="session")
def client(server: Served) -> Iterator[httpx.Client]:
    """Plain HTTP."""
    with httpx.Client(base_url=server.url, timeout=240) as made:
        yield made


@pytest.fixture(scope="session")
def api(server: Served) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=240) as made:
        yield made


@pytest.fixture(scope="session")
def metric(client: httpx.Client) -> Callable[..., float]:
    """One number of /metrics, by its name with its labels."""

    def read(name: str) -> float:
        for line in client.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    return read
