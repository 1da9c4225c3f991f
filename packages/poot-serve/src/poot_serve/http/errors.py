"""Errors as clients see them: OpenAI's shape, one for each refusal, made from what poot raises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from poot_executor.errors import DeviceError, PootError, RequestError, Unsupported
from poot_serve.engine.errors import (
    ContextExceeded,
    DeadlineExceeded,
    Draining,
    EngineError,
    EngineLost,
    NotReady,
    Overloaded,
    RequestFailed,
    SlowReader,
)

_FIELD = re.compile(r"[a-z][a-z0-9_]*(?:\[\d+\]|\.[a-z][a-z0-9_]*)*")
"""What a RequestError's message begins with, where it names a field."""

INVALID, SERVER, OVERLOADED, AUTHENTICATION, RATE_LIMIT = (
    "invalid_request_error",
    "server_error",
    "overloaded_error",
    "authentication_error",
    "rate_limit_error",
)


class ApiError(PootError):
    """An answer that is an error: the status, and what OpenAI's clients read of its body. `param` is the field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error as a JSON value."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def refused(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is wrong in itself: 400."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """A field that is known and not offered: 400."""
    return ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")


def too_long(prompt_tokens: int, capacity: int, param: str, *, at_least: bool = False) -> ApiError:
    """A prompt beyond the context, with both numbers: 400."""
    count = f"at least {prompt_tokens}" if at_least else f"{prompt_tokens}"
    return ApiError(
        400,
        f"{param}: it has {count} tokens, and the context of {capacity} tokens is for prompt and answer together",
        param=param,
        code="context_length_exceeded",
    )


def unavailable(message: str, code: str, retry_after: int | None, status: int = 503) -> ApiError:
    """Nothing is wrong with the request, and it is not answered now."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after}"}
    return ApiError(status, message, kind=OVERLOADED if status == 429 else SERVER, code=code, headers=headers)


def from_poot(error: BaseException, prompt_field: str = "prompt") -> ApiError:
    """The error of an answer for anything that poot raises; `prompt_field` is where the route's body has its prompt.

    What was not foreseen says no more than that.
    """
    match error:
        case ApiError():
            return error
        case ContextExceeded():
            return too_long(error.prompt, error.capacity, prompt_field)
        case RequestError():
            # The driver has ids alone, and calls them so; a client knows its own field.
            message = re.sub(r"^prompt(?:_ids)?\b", prompt_field, str(error))
            found = _FIELD.match(message)
            return refused(message, found[0] if found else None)
        case Unsupported():
            return ApiError(400, str(error), code="unsupported_capability")
        case EngineError():
            return _engine_error(error)
        case DeviceError():
            return ApiError(503, f"the device failed: {error}", kind=SERVER, code="device_error")
        case PootError():
            return ApiError(500, str(error), kind=SERVER, code=_snake(type(error).__name__))
    return ApiError(500, "the server failed on this request; its log says why", kind=SERVER, code="internal_error")


def _engine_error(error: EngineError) -> ApiError:
    message = str(error)
    match error:
        case Overloaded():
            return unavailable(message, "overloaded", error.retry_after, 429)
        case NotReady():
            return unavailable(message, "not_ready", error.retry_after)
        case Draining():
            return unavailable(message, "shutting_down", 5)
        case EngineLost():
            return unavailable(message, "engine_lost", 5)
        case DeadlineExceeded():
            return ApiError(504, message, kind=SERVER, code="deadline_exceeded")
        case SlowReader():
            return ApiError(408, message, code="slow_reader")
    kind = error.kind if isinstance(error, RequestFailed) else type(error).__name__
    return ApiError(500, message, kind=SERVER, code=_snake(kind))


def _snake(name: str) -> str:
    """The name of an error's class as codes are written: NonFiniteLogits is non_finite_logits."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
