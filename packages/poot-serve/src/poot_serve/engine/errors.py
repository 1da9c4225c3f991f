"""What can happen to a request, beside being refused for what it asks (RequestError)."""

from __future__ import annotations

from poot_executor.errors import PootError, RequestError


class ContextExceeded(RequestError):
    """A prompt that leaves no room for one more token. Both are numbers of ids."""

    def __init__(self, prompt: int, capacity: int) -> None:
        super().__init__(
            f"prompt has {prompt} ids, and the capacity is {capacity} for prompt and answer together: "
            "shorten it, or give the server a larger --capacity"
        )
        self.prompt = prompt
        self.capacity = capacity


class EngineError(PootError):
    """The engine did not answer a request, through no fault of the request."""


class Overloaded(EngineError):
    """As many requests wait as may. `retry_after` is a guess in seconds, at least 1."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already: try again in {retry_after} s")
        self.waiting = waiting
        self.retry_after = retry_after


class NotReady(EngineError):
    """No engine serves now. `retry_after` is None where none ever will again."""

    def __init__(self, reason: str, retry_after: int | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class Draining(EngineError):
    """The server ends: it takes no more requests, or gave up this one when the time for it was over."""


class EngineLost(EngineError):
    """The engine was lost while it had the request: what was answered so far is all that there will be."""


class DeadlineExceeded(EngineError):
    """The request's time was over."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request was not answered within {seconds:g} s")
        self.seconds = seconds


class SlowReader(EngineError):
    """More of an answer waited to be read than may."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens of the answer wait to be read: the request was given up")
        self.tokens = tokens


class RequestFailed(EngineError):
    """This request failed while others went on. `kind` is the name of the error that ended it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
