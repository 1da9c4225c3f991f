"""Checks of one request field each.

They give the value in its normal form, or raise a RequestError that begins with the field's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from poot_executor.errors import RequestError


def number(name: str, value: object, least: float, most: float) -> float:
    """A finite number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{name} is {value!r}: a finite number is needed")
    if not least <= value <= most:
        raise RequestError(f"{name} is {value:g}: from {least:g} to {most:g}")
    return value


def whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"{name} is {value!r}: a whole number from {least} to {most}")
    return value


def flag(name: str, value: object) -> bool:
    """True or false, nothing that only counts as one."""
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {value!r}: true or false")
    return value


def texts(name: str, values: object, most: int) -> tuple[str, ...]:
    """Up to `most` strings, none empty. One string stands for itself."""
    if isinstance(values, str):
        values = (values,)
    if not isinstance(values, Iterable):
        raise RequestError(f"{name} is {values!r}: a list of strings")
    found = tuple(values)
    if len(found) > most:
        raise RequestError(f"{name} has {len(found)} strings, at most {most}")
    for index, text in enumerate(found):
        if not isinstance(text, str) or not text:
            raise RequestError(f"{name}[{index}] is {text!r}: a string that is not empty")
    return found


def token_ids(name: str, values: object, most: int) -> tuple[int, ...]:
    """Token ids from 0 to `most`."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"{name} is {values!r}: a list of token ids")
    ids = tuple(values)
    return tuple(whole(f"{name}[{index}]", id, 0, most) for index, id in enumerate(ids))


def biases(name: str, values: object, entries: int, most_id: int, most: float) -> dict[int, float]:
    """Token ids (numbers, or their digits as JSON has them) to numbers from -most to most; up to `entries` of them."""
    if not isinstance(values, Mapping):
        raise RequestError(f"{name} is {values!r}: a map of token ids to numbers")
    if len(values) > entries:
        raise RequestError(f"{name} has {len(values)} ids, at most {entries}")
    found: dict[int, float] = {}
    for key, value in values.items():
        digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
        id = whole(f"{name} id", int(key) if digits else key, 0, most_id)
        if id in found:
            raise RequestError(f"{name} has id {id} twice")
        found[id] = float(number(f"{name}[{id}]", value, -most, most))
    return found
