"""One engine process as its server holds it: started, written to, read from, ended."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress

from poot_serve.engine.frames import next_frame, to_frame
from poot_serve.engine.messages import Close, Message, Report
from poot_serve.engine.settings import EngineSettings

READ_BYTES = 1 << 20
"""That may wait unread in this process before the engine's outbox has to keep its own."""
_LOG = logging.getLogger("poot.serve")
KILL_SECONDS = 10.0
"""How long a process may take to go once it was killed."""


class EngineProcess:
    """Made by `start`. Its death is seen as the end of what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._words = asyncio.create_task(_log_lines(process.stderr, process.pid), name="poot-engine-words")

    @classmethod
    async def start(cls, settings: EngineSettings) -> EngineProcess:
        """Start a process of this interpreter; it loads from now on. Raises OSError where there is none to be had."""
        # In a session of its own: what a terminal sends to the server's group is not for it.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "poot_serve.engine.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=READ_BYTES,
            start_new_session=sys.platform != "win32",
        )
        made = cls(process)
        made._write(to_frame(settings))
        return made

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Write a message; returns at once. Where the process has gone, the end of its reports says so."""
        self._write(to_frame(message))

    def _write(self, frame: bytes) -> None:
        with suppress(OSError, RuntimeError):
            self._stdin.write(frame)

    async def next_report(self) -> Report:
        """What it says next. Raises EOFError once it is dead."""
        return await next_frame(self._stdout)

    def end(self) -> None:
        """End it now; the end of its reports follows."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def finish(self) -> None:
        """Tell it to end; the end of its reports follows, unless it hangs."""
        self.send(Close())
        with suppress(OSError, RuntimeError):
            self._stdin.close()

    async def kill(self) -> str:
        """End it now; how it ended. Raises TimeoutError where the system does not let go of it."""
        self.end()
        await self._gone(KILL_SECONDS)
        return self._how()

    async def ended(self, seconds: float) -> str:
        """Wait until it has ended by itself, at most so long, then end it; how it ended."""
        try:
            await self._gone(seconds)
        except TimeoutError:
            return await self.kill()
        return self._how()

    async def _gone(self, seconds: float) -> None:
        """What it still says is read and dropped: a process that waits to be heard does not end."""
        async with asyncio.timeout(seconds):
            while await self._stdout.read(READ_BYTES):
                pass
            await self._process.wait()
            await self._words

    def _how(self) -> str:
        status = self._process.returncode
        if status is None:
            return "it did not end"
        return f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}"


async def _log_lines(stream: asyncio.StreamReader, pid: int) -> None:
    """What a process and the libraries in it print is logged, a line each, so that a log has one form."""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as rest:
            line = rest.partial
        except asyncio.LimitOverrunError as long:
            line = await stream.readexactly(long.consumed)
        if not line:
            return
        _LOG.warning("engine %d: %s", pid, line.decode(errors="replace").rstrip())
