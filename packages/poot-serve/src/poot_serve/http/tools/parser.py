"""Calls of tools in an answer as it comes: text before and between them, and each call once it is whole."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import uuid4

from poot_serve.http.tools.format import ToolFormat


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class ToolParser:
    """Takes an answer's text piece by piece and gives texts and calls, in their order.

    However the text was cut, joined texts and calls are the same. What looks like a call and is none is text, as it
    stands: nothing is lost and nothing raises. White space around calls belongs to them.
    """

    __slots__ = ("_begin", "_format", "_held", "_inside", "_names", "_start", "calls")

    def __init__(self, format: ToolFormat, names: Collection[str]) -> None:
        """`names`: the functions that were offered; a call of another one is text."""
        self._format = format
        self._names = frozenset(names)
        self._held = ""
        self._inside = False
        self._begin = ""
        self._start = True
        self.calls = 0
        """Calls so far."""

    def push(self, text: str) -> Iterator[str | Call]:
        """What is decided now."""
        self._held += text
        yield from self._decided(final=False)

    def finish(self) -> Iterator[str | Call]:
        """What is left, once no more text comes."""
        yield from self._decided(final=True)

    def _decided(self, *, final: bool) -> Iterator[str | Call]:
        while True:
            if not self._inside:
                text = self._text(final=final)
                if text:
                    self._start = False
                    yield text
                if not self._inside:
                    return
            found = self._body(final=final)
            if found is None:
                return
            body, calls = found
            self._inside = False
            if calls:
                self.calls += len(calls)
                self._held = self._held[len(body) :].lstrip()
                self._start = False
                yield from calls
            else:
                self._start = False
                self._held = self._held[len(body) :]
                yield self._begin + body

    def _text(self, *, final: bool) -> str:
        """Text up to the next call. What may yet belong to one is held back."""
        held, begin = self._held, self._format.begin
        bare = held.lstrip()
        if self._start and self._format.name == "llama":
            # Llama may leave its mark out: an answer that begins as an object may be a call.
            if not bare and not final:
                return ""
            if bare.startswith("{"):
                self._inside, self._begin, self._start = True, held[: len(held) - len(bare)], False
                self._held = bare
                return ""
        place = held.find(begin)
        if place >= 0:
            self._inside, self._held = True, held[place + len(begin) :]
            text = held[:place].rstrip()
            self._begin = held[len(text) : place + len(begin)]
            return text
        if final:
            self._held = ""
            return "" if self.calls and not bare else held
        kept = next(n for n in range(min(len(held), len(begin) - 1), -1, -1) if n == 0 or begin.startswith(held[-n:]))
        text = held[: len(held) - kept].rstrip()
        self._held = held[len(text) :]
        return text

    def _body(self, *, final: bool) -> tuple[str, list[Call]] | None:
        """What is between the marks with the mark that ends it, and its calls; None where it is not there yet."""
        held, end = self._held, self._format.end
        if not end:
            return (held, self._calls(held)) if final else None
        place = held.find(end)
        first = place
        while place >= 0:
            # The mark may be part of an argument: the first one after which the call reads well ends it.
            if calls := self._calls(held[:place]):
                return held[: place + len(end)], calls
            place = held.find(end, place + 1)
        if not final:
            return None
        if first >= 0:
            return held[: first + len(end)], []
        return held, self._calls(held)

    def _calls(self, text: str) -> list[Call]:
        """The calls that a text is; none where it is anything else."""
        values = _values(text, ";" if self._format.name == "llama" else "")
        if self._format.listed and len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        calls = [self._call(value) for value in values]
        return [call for call in calls if call is not None] if all(calls) else []

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict):
            return None
        name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            parsed = _values(arguments, "")
            arguments = parsed[0] if len(parsed) == 1 else None
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        return Call(f"call_{uuid4().hex[:24]}", name, json.dumps(arguments, ensure_ascii=False))


def _values(text: str, between: str) -> list[Any]:
    """The JSON values that a text is, with `between` between them; none where it is anything else."""
    decoder = json.JSONDecoder(parse_constant=_no_number)
    values, place, text = [], 0, text.strip()
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        values.append(value)
        rest = text[place:].lstrip()
        if not rest:
            return values
        if not between or not rest.startswith(between):
            return []
        place = len(text) - len(rest[len(between) :].lstrip())
    return values


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
