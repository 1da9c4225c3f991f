"""Server-sent events: frames, and a response that sends them while it watches the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
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
        self._quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        sending = asyncio.create_task(self._send(send))
        watching = asyncio.create_task(gone(receive))
        talking = asyncio.create_task(self._comment(send))
        tasks = (sending, watching, talking)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await self._frames.aclose()
        if any(isinstance(outcome, TimeoutError) for outcome in outcomes):
            # What was written is not taken: the connection would wait for it for ever.
            scope["state"][ABORT]()
        elif isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], OSError):
            raise outcomes[0]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._frames:
            self._quiet = False
            async with asyncio.timeout(self._write_seconds):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        async with asyncio.timeout(self._write_seconds):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _comment(self, send: Send) -> None:
        while True:
            self._quiet = True
            await asyncio.sleep(self._comment_seconds)
            if self._quiet:
                async with asyncio.timeout(self._write_seconds):
                    await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
