"""GET / and what it loads: the chat page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from poot_serve.page import PageFile


def page_route(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    """A route that serves one file of the page."""

    async def route(request: Request) -> Response:
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if file.etag in known:
            return Response(status_code=304, headers=file.headers)
        return Response(file.body, media_type=file.media_type, headers=file.headers)

    return route
