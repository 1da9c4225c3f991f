"""JSON objects from checkpoint files, which are not trusted: bounded, without duplicate keys or non-finite numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from poot_executor.errors import CheckpointError

MAX_JSON_BYTES = 256 << 20
"""Beyond any known tokenizer.json (the largest are some tens of megabytes)."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError where it is absent, unreadable, too large or malformed."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: {size:,} bytes, a JSON file of a checkpoint may have {MAX_JSON_BYTES:,}")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return parse_object(data, str(path))


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The object that UTF-8 JSON text holds. Raises CheckpointError, which starts with `where`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise ValueError(f"key {key!r} appears twice")
            made[key] = value
        return made

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a JSON number")

    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not a valid JSON object: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is a JSON {type(value).__name__}, not an object")
    return value
