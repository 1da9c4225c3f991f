"""Watching the connection of a request: who leaves is noticed while the answer is made, and not when it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

from poot_executor.errors import PootError

Result = TypeVar("Result")
ABORT = "poot.abort"
"""In a scope's state: a function that ends the connection at once, whatever waits to be written."""


class ClientLeft(PootError):
    """The client closed its connection before the answer was made."""


async def gone(receive: Receive) -> None:
    """Wait until the client has left. The body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def attended(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives. It is cancelled where the client leaves; raises ClientLeft then, and what `work` raises."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(gone(request.receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft("the client closed the connection")
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
