"""Servers that a benchmark starts, each in a process of its own, and what it reads of them while they serve."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from socket import create_server
from time import monotonic

from aiohttp import ClientError, ClientSession

LISTEN_SECONDS = 60.0
READY_SECONDS = 1200.0
"""Every step is compiled before a server is ready, which a busy machine does slowly."""


@asynccontextmanager
async def poot(model: str, device: str, rows: int, arguments: Sequence[str]) -> AsyncGenerator[tuple[str, Process]]:
    """`poot serve` at a free port: where, and its process. It is told to end afterwards; its warnings are printed."""
    line = [sys.executable, "-m", "poot_llm", "serve", model, "--device", device, "--port", "0", "--log", "json"]
    process = await asyncio.create_subprocess_exec(*line, "--rows", str(rows), *arguments, stderr=PIPE)
    assert process.stderr is not None
    url = asyncio.get_running_loop().create_future()

    async def logs() -> None:
        async for text in process.stderr:
            value = json.loads(text) if text.startswith(b"{") else {"level": "error", "event": text.decode()}
            if value["event"] == "listening":
                url.set_result(value["url"])
            if value["level"] in ("warning", "error"):
                print("server:", text.decode().strip()[:400], file=sys.stderr)

    reading = asyncio.create_task(logs())
    try:
        yield await asyncio.wait_for(url, LISTEN_SECONDS), process
    finally:
        if process.returncode is None:
            process.terminate()
        status = await process.wait()
        await reading
        print(f"the server ended with status {status}")


@asynccontextmanager
async def llama_server(
    program: str, model: Path, rows: int, capacity: int, threads: int, arguments: Sequence[str]
) -> AsyncGenerator[str]:
    """llama.cpp's server at a free port, with a slot of `capacity` positions for each of `rows`: where it listens."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [program, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-np", str(rows), "-c",
            str(rows * capacity), "-t", str(threads), "-tb", str(threads), *arguments]  # fmt: skip
    process = await asyncio.create_subprocess_exec(*line, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def ready(session: ClientSession, url: str, path: str = "/ready") -> str:
    """Wait until requests are taken: the device, where the server names it. Raises TimeoutError."""
    deadline = monotonic() + READY_SECONDS
    while monotonic() < deadline:
        try:
            async with session.get(f"{url}{path}") as answer:
                if answer.status == 200:
                    return str((await answer.json()).get("device", ""))
        except ClientError:
            pass  # it does not listen yet
        await asyncio.sleep(0.2)
    raise TimeoutError(f"{url}{path} is not 200 after {READY_SECONDS:g} s")


async def metrics(session: ClientSession, url: str) -> dict[str, float]:
    """Every number of poot's /metrics, by its name with its labels."""
    async with session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def children(pid: int) -> list[int]:
    """Processes that it started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
