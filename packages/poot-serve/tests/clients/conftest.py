"""One server with SmolLM2 on OpenVINO's CPU plug-in, for every client in turn.

It has one row and compiles what is asked for: each further program takes OpenVINO seconds. Batches are tested with
smaller models.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from poot_eval.conformance import open_or_skip
from poot_executor.errors import RequestError
from poot_executor.settings import read_settings
from poot_llm.registry import Models

MODEL = "smollm2"
READY_SECONDS, END_SECONDS = 600.0, 240.0


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's address, once it is ready. In the end it must leave in order."""
    with open_or_skip("vpu:cpu", read_settings()):
        pass
    try:
        Models().open("smollm2")
    except RequestError as missing:
        pytest.skip(str(missing))
    log = tmp_path_factory.mktemp("serve") / "log"
    line = [sys.executable, "-m", "poot_llm", "serve", "smollm2", "--device", "vpu:cpu", "--port", "0", "--log", "json"]
    line += ["--rows", "1", "--capacity", "1024", "--chunk", "32", "--lazy", "--name", MODEL]
    with log.open("wb") as file, subprocess.Popen(line, stderr=file, env=dict(os.environ)) as process:
        try:
            yield wait_ready(process, log)
            process.terminate()
            assert process.wait(END_SECONDS) == 0, log.read_text("utf-8")[-4000:]
        finally:
            process.kill()


def wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address that the log names, once the server there is ready."""
    deadline = time.monotonic() + READY_SECONDS
    found = ""
    while time.monotonic() < deadline and process.poll() is None:
        for text in log.read_text("utf-8").splitlines():
            if text.startswith("{") and json.loads(text)["event"] == "listening":
                found = json.loads(text)["url"]
        if found and httpx.get(f"{found}/ready").status_code == 200:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not ready: {log.read_text('utf-8')[-4000:]}")


@pytest.fixture(scope="session")
def api(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, which tries nothing twice."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def web(url: str) -> Iterator[httpx.Client]:
    """Plain HTTP."""
    with httpx.Client(base_url=url, timeout=300) as client:
        yield client


@pytest.fixture
def metric(web: httpx.Client) -> Callable[[str], float]:
    """One number of /metrics, by its name with its labels."""

    def read(name: str) -> float:
        lines = web.get("/metrics").text.splitlines()
        (value,) = (line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name)
        return float(value)

    return read
