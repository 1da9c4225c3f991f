"""Names of answers."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from uuid import uuid4


def answer_id(prefix: str) -> str:
    """A name that no other answer has."""
    return f"{prefix}-{uuid4().hex}"


@cache
def fingerprint() -> str:
    """What answers: this version of the server."""
    return f"poot-{version('poot-serve')}"
