"""Frames between the two processes: a length, and a pickle. Both ends are poot's own."""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
from typing import Any

_HEAD = struct.Struct("<I")


def to_frame(item: object) -> bytes:
    """The bytes of an item. Raises OverflowError for one of 4 GB or more."""
    body = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    if len(body) >= 1 << 32:
        raise OverflowError(f"a message of {len(body):,} bytes")
    return _HEAD.pack(len(body)) + body


def read_frame(file: int) -> Any:
    """The next item from a file descriptor. Raises EOFError where it ends, also in the middle of one."""
    (length,) = _HEAD.unpack(_read(file, _HEAD.size))
    return pickle.loads(_read(file, length))  # noqa: S301 - written by the other process of this server


def write_frame(file: int, item: object) -> None:
    """Write an item to a file descriptor, waiting for its reader. Raises OSError where that has gone."""
    left = memoryview(to_frame(item))
    while left:
        left = left[os.write(file, left) :]


async def next_frame(stream: asyncio.StreamReader) -> Any:
    """As `read_frame`. Raises EOFError."""
    (length,) = _HEAD.unpack(await stream.readexactly(_HEAD.size))
    return pickle.loads(await stream.readexactly(length))  # noqa: S301 - likewise


def _read(file: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(file, min(count, 1 << 20))
        if not part:
            raise EOFError(f"the stream ended {count} bytes early")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
