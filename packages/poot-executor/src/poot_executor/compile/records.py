"""Frozen dataclasses as JSON values by their annotations, strictly checked: how programs are kept on disk.

A dataclass is the list of its fields, in their order. Known annotations: int, float, bool, str, enums (by value),
`tuple[T, ...]` and tuples of stated items, unions with None, unions of dataclasses (a pair of the member's place and
the record), mappings of plain values by name, and types whose values have a name in a table. A value that its
annotation does not allow is a RecordError, so nothing is built of what was not written.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


class RecordError(Exception):
    """A JSON value that is no record of the type asked for. It stays within the caches: callers see a rebuilt entry."""


class Records:
    """Encoders and decoders by type, made once each. `named` are types whose values are named by text: for each the
    names by value's `name`."""

    def __init__(self, named: Mapping[type, Mapping[str, Any]]) -> None:
        self._named = named
        self._codecs: dict[Any, tuple[Encode, Decode]] = {}

    def encode(self, type_: Any, value: Any) -> Any:
        """The JSON value of a `type_`."""
        return self._codec(type_)[0](value)

    def decode(self, type_: Any, data: Any) -> Any:
        """The `type_` in a JSON value. Raises RecordError."""
        return self._codec(type_)[1](data)

    def _codec(self, type_: Any) -> tuple[Encode, Decode]:
        if type_ not in self._codecs:
            self._codecs[type_] = self._make(type_)
        return self._codecs[type_]

    def _make(self, type_: Any) -> tuple[Encode, Decode]:
        if type_ in self._named:
            return _name, _from_table(self._named[type_])
        if type_ in (int, float, bool, str, type(None)):
            return _same, _exactly(type_)
        if type_ is Any:
            return _plain, _plain
        if isinstance(type_, type) and issubclass(type_, Enum):
            return _value, _from_table({member.value: member for member in type_})
        if is_dataclass(type_):
            return self._dataclass(type_)
        origin, items = get_origin(type_), get_args(type_)
        if origin is tuple:
            return self._tuple(items)
        if origin in (Union, types.UnionType):
            return self._union(items)
        if origin in (Mapping, dict) and items[0] is str:
            return self._mapping(items[1])
        raise TypeError(f"{type_} has no record")

    def _dataclass(self, type_: Any) -> tuple[Encode, Decode]:
        hints = get_type_hints(type_)
        names = [f.name for f in fields(type_) if f.init]
        codecs = [self._codec(hints[name]) for name in names]
        encoders, decoders = [c[0] for c in codecs], [c[1] for c in codecs]
        count = len(names)

        def encode(value: Any) -> list[Any]:
            if type(value) is not type_:
                raise RecordError(f"{type(value).__name__} is no {type_.__name__}")
            return [encode(getattr(value, name)) for encode, name in zip(encoders, names, strict=True)]

        def decode(data: Any) -> Any:
            if type(data) is not list or len(data) != count:
                raise RecordError(f"{type_.__name__} has {count} fields")
            return type_(*[decode(item) for decode, item in zip(decoders, data, strict=True)])

        return encode, decode

    def _tuple(self, items: tuple[Any, ...]) -> tuple[Encode, Decode]:
        if len(items) == 2 and items[1] is Ellipsis:
            encode_item, decode_item = self._codec(items[0])

            def decode_run(data: Any) -> tuple[Any, ...]:
                if type(data) is not list:
                    raise RecordError("a list is expected")
                return tuple(map(decode_item, data))

            return (lambda value: [encode_item(item) for item in value]), decode_run
        codecs = [self._codec(item) for item in items]

        def decode(data: Any) -> tuple[Any, ...]:
            if type(data) is not list or len(data) != len(codecs):
                raise RecordError(f"a list of {len(codecs)} is expected")
            return tuple(codec[1](item) for codec, item in zip(codecs, data, strict=True))

        return (lambda value: [codec[0](item) for codec, item in zip(codecs, value, strict=True)]), decode

    def _union(self, items: tuple[Any, ...]) -> tuple[Encode, Decode]:
        members = [item for item in items if item is not type(None)]
        optional = len(members) < len(items)
        if len(members) == 1:
            encode_one, decode_one = self._codec(members[0])
        else:
            encode_one, decode_one = self._choice(members)
        if not optional:
            return encode_one, decode_one
        return (
            lambda value: None if value is None else encode_one(value),
            lambda data: None if data is None else decode_one(data),
        )

    def _choice(self, members: list[Any]) -> tuple[Encode, Decode]:
        codecs = [self._codec(member) for member in members]

        def encode(value: Any) -> list[Any]:
            place = members.index(type(value))
            return [place, codecs[place][0](value)]

        def decode(data: Any) -> Any:
            if type(data) is not list or len(data) != 2 or type(data[0]) is not int or not 0 <= data[0] < len(codecs):
                raise RecordError("a pair of a member's place and its record is expected")
            return codecs[data[0]][1](data[1])

        return encode, decode

    def _mapping(self, item: Any) -> tuple[Encode, Decode]:
        encode_item, decode_item = self._codec(item)

        def decode(data: Any) -> dict[str, Any]:
            if type(data) is not dict:
                raise RecordError("an object is expected")
            return {key: decode_item(value) for key, value in data.items()}

        return (lambda value: {key: encode_item(each) for key, each in value.items()}), decode


def _same(value: Any) -> Any:
    return value


def _name(value: Any) -> str:
    return value.name


def _value(value: Enum) -> Any:
    return value.value


def _plain(value: Any) -> Any:
    """Numbers, texts, and lists and objects of them. Tuples become lists."""
    if value is None or type(value) in (int, float, bool, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise RecordError(f"a {type(value).__name__} is no plain value")


def _exactly(type_: type) -> Decode:
    def decode(data: Any) -> Any:
        if type(data) is not type_:
            raise RecordError(f"{type_.__name__} is expected, not {type(data).__name__}")
        return data

    return decode


def _from_table(table: Mapping[Any, Any]) -> Decode:
    def decode(data: Any) -> Any:
        if not isinstance(data, str) or data not in table:
            raise RecordError("a name is unknown")
        return table[data]

    return decode
