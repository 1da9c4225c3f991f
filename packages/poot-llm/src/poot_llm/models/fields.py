"""Typed reads of a configuration that is not trusted: every field is read once, and none is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from poot_executor.errors import CheckpointError

MAX_COUNT = 1 << 31
"""Above every size that a model has; it keeps a hostile count from becoming work."""


class Fields:
    """The fields of a checkpoint's configuration, by name. `where` begins every message.

    A field that is null counts as absent. `finish` refuses what no read asked for, so that a field
    which changes the arithmetic is never ignored silently.
    """

    __slots__ = ("_fields", "_read", "where")

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._fields = fields
        self._read: set[str] = set()

    def refuse(self, name: str, problem: str) -> CheckpointError:
        """The error to raise for a field."""
        return CheckpointError(f"{self.where}: {name} {problem}")

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._fields.get(name) is not None

    def count(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number from `least` to 2^31. Raises CheckpointError where it is not, or is absent
        without a default.
        """
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MAX_COUNT:
            raise self.refuse(name, f"is {value!r}, not a whole number from {least} up")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0. Raises CheckpointError as `count` does."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, f"is {value!r}, not a number")
        if not math.isfinite(value) or value <= 0:
            raise self.refuse(name, f"is {value!r}, not above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises CheckpointError for anything else."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, f"is {value!r}, neither true nor false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string. Raises CheckpointError for anything else."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.refuse(name, f"is {value!r}, not a string")
        return value

    def mapping(self, name: str) -> Fields | None:
        """A nested object, whose fields are named after this one; None where it is absent."""
        value = self._fields.get(name)
        self._read.add(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(name, f"is {value!r}, not an object")
        return Fields(value, f"{self.where}: {name}")

    def expect(self, name: str, *allowed: object) -> None:
        """Refuse a field that is there with any other value than these, as unsupported."""
        self._read.add(name)
        value = self._fields.get(name)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            known = ", ".join(repr(a) for a in allowed) or "its absence"
            raise self.refuse(name, f"is {value!r}, this family supports {known}")

    def finish(self, ignored: Mapping[str, str], also: Callable[[str], bool] | None = None) -> None:
        """Refuse every field that was neither read nor is in `ignored` (name to reason) or `also`.

        Raises CheckpointError with all their names.
        """
        left = [
            name
            for name in self._fields
            if name not in self._read and name not in ignored and not (also and also(name))
        ]
        if left:
            names = ", ".join(sorted(left))
            raise CheckpointError(f"{self.where}: unknown fields, which could matter: {names}")

    def _value(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._fields.get(name)
        value = default if value is None else value
        if value is None:
            raise self.refuse(name, "is missing")
        return value
