"""Reading a body: within its limits, as strict JSON in UTF-8, by the route's model; a field is refused by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect

from poot_serve.http.attend import ClientLeft
from poot_serve.http.errors import ApiError, refused
from poot_serve.http.settings import HttpSettings

Body = TypeVar("Body", bound=BaseModel)
_CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
    "not_offered": "unsupported_parameter",
    "unsupported_capability": "unsupported_capability",
}
UNREAD = 64 << 20
"""Bytes of a body beyond its limit that are still read."""
MOST_SHOWN = 200
"""Characters of a message that quotes what was sent."""


async def read_body(request: Request, model: type[Body], settings: HttpSettings) -> Body:
    """The body as the route's model. Raises ApiError: 408 for one that does not come, 413 for one that is too large,
    415 for another type than JSON, 400 for whatever is wrong with what it says; ClientLeft where nobody waits.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        # What a page of another origin may send without being asked is of other types.
        raise ApiError(415, f"Content-Type is {kind or 'missing'}: a body is application/json", code="not_json")
    return validated(await _bytes(request, settings), model)


async def _bytes(request: Request, settings: HttpSettings) -> bytes:
    most = settings.body_bytes
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > most + UNREAD:
                    break
                # What is beyond the limit is read and dropped: a client that still writes would not read the answer.
                if size <= most:
                    parts.append(part)
                else:
                    parts.clear()
    except ClientDisconnect:
        raise ClientLeft("the client closed the connection") from None
    except TimeoutError:
        raise ApiError(
            408, f"the body did not come within {settings.body_seconds:g} s", code="slow_body",
            headers={"Connection": "close"},
        ) from None  # fmt: skip
    if size > most:
        raise _too_large(most)
    return b"".join(parts)


def _too_large(most: int) -> ApiError:
    # What is left of the body is not read, so nothing can follow it on this connection.
    return ApiError(
        413, f"the body has more than {most:,} bytes", code="body_too_large", headers={"Connection": "close"}
    )


def validated(data: bytes, model: type[Body]) -> Body:
    """A body's bytes as a model. Raises ApiError naming the field, or what is no JSON."""
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise refused(f"the body is no JSON in UTF-8: {error}"[:MOST_SHOWN], code="invalid_json") from None
    if not isinstance(value, dict):
        raise refused("the body is no JSON object", code="invalid_json")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _refusal(value, details, model) from None


def _refusal(value: Any, details: Sequence[ErrorDetails], model: type[BaseModel]) -> ApiError:
    """The one of several problems that went deepest: of a union, that is the member that was meant."""
    named = [(_place(value, detail), detail) for detail in details]
    # A field that is not there is told first: what else is wrong may come of its wrong name.
    (param, _), detail = max(named, key=lambda one: (one[1]["type"] == "extra_forbidden", one[0][1]))
    kind = detail["type"]
    if not param and kind in model.model_fields:
        param = kind
    problem = detail["msg"][:MOST_SHOWN]
    if kind == "extra_forbidden":
        problem = "there is no such field"
    elif kind == "missing":
        problem = "it is needed"
    return refused(f"{param}: {problem}" if param else problem, param or None, _CODES.get(kind, "invalid_value"))


def _place(value: Any, detail: ErrorDetails) -> tuple[str, int]:
    """Where a problem is, as a path of the body, and how deep. What pydantic says of a union's members is left out."""
    path, depth = "", 0
    last = len(detail["loc"]) - 1
    for index, part in enumerate(detail["loc"]):
        if isinstance(part, int):
            if isinstance(value, list) and part < len(value):
                path, value, depth = f"{path}[{part}]", value[part], depth + 1
        elif isinstance(value, Mapping) and (part in value or (index == last and detail["type"] == "missing")):
            path, value, depth = f"{path}.{part}" if path else part, value.get(part), depth + 1
    if detail["type"].startswith("union_tag") and "discriminator" in detail.get("ctx", {}):
        name = detail["ctx"]["discriminator"].strip("'")
        path, depth = f"{path}.{'type' if name.endswith('()') else name}", depth + 1
    return path[:MOST_SHOWN], depth
