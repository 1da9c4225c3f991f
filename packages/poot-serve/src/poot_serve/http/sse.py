"""Server-sent events: frames, and a response that sends them while it watches the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from poot_serve.http.attend import ABORT, gone

DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\n\n"
"""What a stream says where there is nothing to say: proxies and clients see that it goes on."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def frame(value: Any, event: str | None = None) -> bytes:
    """A value as one event."""
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {data}\n\n".encode()


def text_bytes(text: str) -> bytes:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False).encode()


class EventStream(Response):
    """Sends the frames that a generator yields. The generator is closed in every case: where the client leaves, where
    it does not read for `write_seconds`, and at the end. After `comment_seconds` without a frame comes a comment.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        comment_seconds: float,
        write_seconds: float,
    ) -> None:
        super().__init__(None, 200, _HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._comment_seconds = comment_seconds
        self._write_seconds = write_seconds
        self._quiet_since = 0.0
        self._writing_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        sending = asyncio.create_task(self._send(send))
        watching = asyncio.create_task(gone(receive))
        minding = asyncio.create_task(self._mind(send))
        tasks = (sending, watching, minding)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stuck = minding.done()
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await self._frames.aclose()
        if stuck:
            # What was written is not taken: the connection would wait for it for ever.
            scope["state"][ABORT]()
        elif isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], OSError):
            raise outcomes[0]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._frames:
            await self._write(send, data)
        await self._write(send, b"", more=False)

    async def _write(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._quiet_since = self._writing_since = monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": more})
        self._writing_since = None

    async def _mind(self, send: Send) -> None:
        """Comments where nothing else is sent. Ends where what is written is not taken: one look at the clock now and
        then costs less than a timer for every frame.
        """
        self._quiet_since = monotonic()
        pause = min(self._comment_seconds, self._write_seconds) / 4
        while True:
            await asyncio.sleep(pause)
            now = monotonic()
            if self._writing_since is not None:
                if now - self._writing_since >= self._write_seconds:
                    return
            elif now - self._quiet_since >= self._comment_seconds:
                try:
                    async with asyncio.timeout(self._write_seconds):
                        await self._write(send, COMMENT)
                except TimeoutError:
                    return
