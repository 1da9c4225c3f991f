"""Logs: a line an event on standard error, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

NAMES = ("poot_serve", "poot.serve", "uvicorn.error")
"""The loggers of the server."""


class JsonLines(logging.Formatter):
    """An object a line: time, level, event, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        value: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        value |= getattr(record, "fields", {})
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """The same for people: the time of day, the event, its fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{name}={value}" for name, value in getattr(record, "fields", {}).items())
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        line = f"{time} {level}{record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def write_logs(kind: str) -> None:
    """Log to standard error from now on: `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    for name in NAMES:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    # What uvicorn says at INFO is of its own life, and said again by the server.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
