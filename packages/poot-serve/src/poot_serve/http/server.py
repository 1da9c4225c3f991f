"""The server's life: listen, load, serve, drain within a bound, end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import uvicorn

from poot_executor.errors import PootError, SettingsError
from poot_serve.engine.client import EngineClient
from poot_serve.http.app import create_app
from poot_serve.http.connection import limited
from poot_serve.http.settings import HttpSettings
from poot_serve.http.tracing import Traces

_LOG = logging.getLogger("poot_serve")
BACKLOG = 2048
LAST_WORDS = 3.0
"""Seconds for what was written at the end to be read."""


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the server around it."""

    def capture_signals(self) -> Any:
        return nullcontext()


class ServerFailed(PootError):
    """The engine was lost for good: the server cannot go on."""


def listening(settings: HttpSettings) -> socket.socket:
    """A socket at the settings' address. Raises SettingsError where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((settings.host, settings.port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise SettingsError(
            f"{settings.host}:{settings.port} cannot be listened at: {error.strerror or error}"
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL of what listens at a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(client: EngineClient, settings: HttpSettings, bound: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends at once what is open. Raises ServerFailed where the engine is
    lost for good.
    """
    traces = Traces(settings.traces, (settings.names or (client.handle.name,))[0]) if settings.traces else None
    config = uvicorn.Config(
        create_app(client, settings, traces),
        http=limited(settings),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=max(1, round(settings.idle_seconds)),
        timeout_graceful_shutdown=max(1, round(LAST_WORDS)),
    )
    http = _Uvicorn(config)
    _LOG.info("listening", extra={"fields": {"url": address_of(bound)}})
    await client.start()
    with _signals() as signals:
        serving = asyncio.create_task(http.serve(sockets=[bound]))
        ending = asyncio.create_task(client.ended())
        stopping = asyncio.create_task(signals.get())
        try:
            await asyncio.wait((serving, ending, stopping), return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await _drain(client, settings, signals)
        finally:
            http.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            failure = ending.result() if ending.done() and not stopping.done() else None
            for task in (ending, stopping):
                task.cancel()
            await asyncio.gather(ending, stopping, return_exceptions=True)
            await client.close()
            if traces is not None:
                await asyncio.to_thread(traces.close)
    if failure is not None:
        raise ServerFailed(f"the engine is {failure.phase.value}: {failure.reason}")
    _LOG.info("ended")


async def _drain(client: EngineClient, settings: HttpSettings, signals: asyncio.Queue[int]) -> None:
    """Let open requests end, within the settings' time; a further signal ends that time."""
    _LOG.info("draining", extra={"fields": {"open": client.open_requests, "seconds": settings.drain_seconds}})
    draining = asyncio.create_task(client.drain(settings.drain_seconds))
    again = asyncio.create_task(signals.get())
    await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        await client.drain(0.0)
    again.cancel()
    given_up = await draining
    if given_up:
        _LOG.warning("gave up requests", extra={"fields": {"count": given_up}})


@contextmanager
def _signals() -> Generator[asyncio.Queue[int], None, None]:
    """SIGTERM and SIGINT, as they come."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[int] = asyncio.Queue()
    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, lambda n, _: loop.call_soon_threadsafe(came.put_nowait, n))
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
