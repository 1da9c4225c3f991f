"""What an answer must be, as a request says it: exactly one kind of constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from poot_executor.errors import RequestError

MOST_CHOICES = 4096
MOST_LEVELS = 256
"""Levels of a schema that is given as a map: how deep Python writes JSON before it gives up is its versions' affair."""
MOST_BYTES = 1 << 20
"""Bytes of a constraint as UTF-8; a longer one is refused before anything reads it."""


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """Exactly one of these is given. Raises RequestError naming the field that is wrong.

    - `json`: a JSON schema, as a map, as text, or as a boolean; `json_object`: any JSON object.
    - `regex`: a regular expression that the whole answer matches, in the syntax of Rust's package regex: no
      look-around, no back references, and \\d, \\w and \\s are Unicode's.
    - `choice`: the answer is one of these texts.
    - `grammar`: a GBNF grammar whose entry rule is `root`; `lark`: a Lark grammar whose entry rule is `start`.

    The constraint is kept as text, so that it is equal, hashed and passed on by value.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    lark: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        given = [item.name for item in fields(self) if getattr(self, item.name) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise RequestError(f"structured_outputs: one kind of constraint is needed, given are {found}")
        if not isinstance(self.json_object, bool):
            raise RequestError(f"structured_outputs.json_object is {self.json_object!r}: true or false")
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("regex", "grammar", "lark"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise RequestError(f"structured_outputs.{name} is {value!r}: a string that is not empty")
        name = self.kind
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"structured_outputs.{name}: character {error.start} is no Unicode text") from None
        if size > MOST_BYTES:
            raise RequestError(f"structured_outputs.{name} has {size:,} bytes, at most {MOST_BYTES:,}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From a request's map. Raises RequestError also for a kind that there is none of."""
        known = [item.name for item in fields(cls)]
        for name in values:
            if name not in known:
                raise RequestError(f"structured_outputs.{name} is no kind of constraint: kinds are {', '.join(known)}")
        return cls(**values)

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        if self.json_object:
            return "json_object"
        return next(n for n in ("json", "regex", "choice", "grammar", "lark") if getattr(self, n) is not None)

    @property
    def text(self) -> str:
        """The constraint as text: a schema or a list of choices as JSON."""
        if self.json_object:
            return '{"type":"object"}'
        if self.choice is not None:
            return json.dumps(self.choice)
        value = getattr(self, self.kind)
        assert isinstance(value, str)
        return value


def _schema_text(value: object) -> str:
    """A schema as JSON text; whether it is one is the compiler's to say."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping | bool):
        raise RequestError("structured_outputs.json: a schema is an object or a boolean")
    if levels_of(value, MOST_LEVELS) > MOST_LEVELS:
        raise RequestError(f"structured_outputs.json is nested more than {MOST_LEVELS} levels deep")
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise RequestError(f"structured_outputs.json is no JSON: {error}") from None


def levels_of(value: Any, most: int) -> int:
    """Levels of objects and arrays, counted up to one more than `most`. Raises RequestError for more values than fit
    into the bytes that a schema may have, without looking at all of them.
    """
    levels, level, values = 0, [value], 0
    while level and levels <= most:
        # Each takes a character and what parts it from the next one.
        values += len(level)
        if values > MOST_BYTES // 2:
            raise RequestError(f"structured_outputs.json has {2 * values:,} bytes or more, at most {MOST_BYTES:,}")
        inner = [v for item in level if isinstance(item, Mapping) for v in item.values()]
        inner += [v for item in level if isinstance(item, list | tuple) for v in item]
        held = any(isinstance(item, Mapping | list | tuple) for item in level)
        levels, level = levels + held, inner
    return levels


def _choices(values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, tuple | list):
        raise RequestError(f"structured_outputs.choice is {values!r}: a list of strings")
    if not 1 <= len(values) <= MOST_CHOICES:
        raise RequestError(f"structured_outputs.choice has {len(values)} texts: 1 to {MOST_CHOICES}")
    for index, text in enumerate(values):
        if not isinstance(text, str) or not text:
            raise RequestError(f"structured_outputs.choice[{index}] is {text!r}: a string that is not empty")
    return tuple(dict.fromkeys(values))
