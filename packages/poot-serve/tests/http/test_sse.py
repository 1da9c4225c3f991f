"""Event streams by themselves: comments where nothing is said, readers that do not read, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from poot_serve.http.attend import ABORT
from poot_serve.http.sse import COMMENT, EventStream, frame


class Connection:
    """An ASGI server's side of one request. `taken` decides whether a message is taken at once."""

    def __init__(self, taken: Callable[[Any], bool] = lambda message: True) -> None:
        self.messages: list[Any] = []
        self.aborted = False
        self.left = asyncio.Event()
        self._taken = taken

    async def send(self, message: Any) -> None:
        if not self._taken(message):
            await asyncio.Event().wait()
        self.messages.append(message)

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def run(self, stream: EventStream) -> None:
        def abort() -> None:
            self.aborted = True

        await asyncio.wait_for(stream({"type": "http", "state": {ABORT: abort}}, self.receive, self.send), 240)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


class Frames:
    """A generator that says whether it was closed."""

    def __init__(self, *steps: bytes | float) -> None:
        self.steps = steps
        self.closed = False

    async def all(self) -> AsyncGenerator[bytes, None]:
        try:
            for step in self.steps:
                if isinstance(step, bytes):
                    yield step
                else:
                    await asyncio.sleep(step)
        finally:
            self.closed = True


def test_comments_stand_where_nothing_is_said() -> None:
    async def go() -> None:
        frames, connection = Frames(b"a", 0.3, b"b"), Connection()
        await connection.run(EventStream(frames.all(), comment_seconds=0.1, write_seconds=500))
        assert connection.body.replace(COMMENT, b"") == b"ab"
        assert connection.body.startswith(b"a" + COMMENT) and connection.body.endswith(b"b")
        assert connection.messages[-1]["more_body"] is False and not connection.aborted
        assert frames.closed

    asyncio.run(go())


def test_a_reader_that_does_not_read_is_given_up() -> None:
    async def go() -> None:
        frames, connection = Frames(b"a", b"b"), Connection(lambda message: message.get("body") != b"b")
        await connection.run(EventStream(frames.all(), comment_seconds=500, write_seconds=0.2))
        assert connection.body == b"a"
        assert connection.aborted and frames.closed

    asyncio.run(go())


def test_a_reader_that_does_not_read_a_comment_is_given_up() -> None:
    async def go() -> None:
        frames, connection = Frames(b"a", 60.0), Connection(lambda message: message.get("body") != COMMENT)
        await connection.run(EventStream(frames.all(), comment_seconds=0.1, write_seconds=0.2))
        assert connection.aborted and frames.closed

    asyncio.run(go())


def test_a_client_that_leaves_ends_the_frames() -> None:
    async def go() -> None:
        frames, connection = Frames(b"a", 60.0), Connection()
        running = asyncio.create_task(connection.run(EventStream(frames.all(), comment_seconds=500, write_seconds=500)))
        async with asyncio.timeout(240):
            while connection.body != b"a":  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
        connection.left.set()
        await running
        assert frames.closed and not connection.aborted

    asyncio.run(go())


def test_a_frame_is_one_event() -> None:
    assert frame({"a": "é\n"}) == 'data: {"a":"é\\n"}\n\n'.encode()
    assert frame({}, "response.created") == b"event: response.created\ndata: {}\n\n"
