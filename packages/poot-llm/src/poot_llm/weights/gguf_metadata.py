"""The typed key and value pairs of a GGUF header."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from poot_llm.weights.mapped import Cursor

MetadataValue: TypeAlias = "int | float | bool | str | NDArray | list[MetadataValue]"
"""A value of a pair; a list holds strings or further arrays."""

MAX_NESTING = 4
"""Arrays of arrays deeper than this are refused; no known file nests at all."""

_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: Mapping[int, np.dtype] = MappingProxyType(
    {
        0: np.dtype("u1"),
        1: np.dtype("i1"),
        2: np.dtype("<u2"),
        3: np.dtype("<i2"),
        4: np.dtype("<u4"),
        5: np.dtype("<i4"),
        6: np.dtype("<f4"),
        _BOOL: np.dtype("u1"),
        10: np.dtype("<u8"),
        11: np.dtype("<i8"),
        12: np.dtype("<f8"),
    }
)
_LEAST: Mapping[int, int] = MappingProxyType({_STRING: 8, _ARRAY: 12})
"""The least bytes that an item of unknown length takes."""


def read_metadata(cursor: Cursor, count: int) -> dict[str, MetadataValue]:
    """The next `count` pairs. Raises CheckpointError naming the key and the byte where it is refused."""
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        start = cursor.offset
        key = cursor.text(f"metadata key {index}")
        if not key or key in metadata:
            cursor.offset = start
            raise cursor.refuse(f"metadata key {key!r}", "appears twice" if key else "is empty")
        what = f"metadata {key!r}"
        metadata[key] = _read_value(cursor, what, cursor.u32(what), MAX_NESTING)
    return metadata


def _read_value(cursor: Cursor, what: str, type_id: int, nesting: int) -> MetadataValue:
    if type_id == _STRING:
        return cursor.text(what)
    if type_id == _ARRAY:
        return _read_array(cursor, what, nesting)
    number: int | float | bool = _read_numbers(cursor, what, type_id, 1)[0].item()
    return number


def _read_array(cursor: Cursor, what: str, nesting: int) -> MetadataValue:
    if nesting == 0:
        raise cursor.refuse(what, f"nests arrays more than {MAX_NESTING} deep")
    type_id = cursor.u32(what)
    count = cursor.u64(what)
    if type_id not in _LEAST:
        return _read_numbers(cursor, what, type_id, count)
    cursor.need(what, count, _LEAST[type_id])
    if type_id == _STRING:
        return _read_texts(cursor, what, count)
    return [_read_value(cursor, f"{what}[{i}]", type_id, nesting - 1) for i in range(count)]


def _read_texts(cursor: Cursor, what: str, count: int) -> list[MetadataValue]:
    """`count` strings. A vocabulary has 10^5 of them, so that a call of the cursor for each is most of what opening a
    file costs: here their ends are found first, then all of their bytes are copied at once. At the first that does not
    fit or is not UTF-8 the cursor takes over, and refuses it.
    """
    start = cursor.offset
    rest = cursor.take(what, cursor.remaining)
    ends = _ends(rest, count)
    raw = bytes(rest[: ends[-1]]) if ends else b""
    texts: list[MetadataValue] = []
    at = 0
    try:
        for end in ends:
            texts.append(str(raw[at + _U64.size : end], "utf-8"))
            at = end
    except UnicodeDecodeError:
        pass
    cursor.offset = start + at
    while len(texts) < count:
        texts.append(cursor.text(f"{what}[{len(texts)}]"))
    return texts


def _ends(rest: memoryview, count: int) -> list[int]:
    """The byte after each of `count` strings that lie one after the other, as far as they are inside."""
    ends: list[int] = []
    size, length, unpack = _U64.size, len(rest), _U64.unpack_from
    end = 0
    for _ in range(count):
        if end + size > length:
            break
        end += size + unpack(rest, end)[0]
        if end > length:
            break
        ends.append(end)
    return ends


def _read_numbers(cursor: Cursor, what: str, type_id: int, count: int) -> NDArray:
    """`count` numbers or bools, copied out of the mapping into a read-only array."""
    if type_id not in _NUMBERS:
        raise cursor.refuse(what, f"has value type {type_id}, which GGUF does not define")
    stored = _NUMBERS[type_id]
    start = cursor.offset
    cursor.need(what, count, stored.itemsize)
    raw = cursor.take(what, count * stored.itemsize)
    values = np.frombuffer(raw, stored).astype(stored.newbyteorder("="))
    if type_id == _BOOL:
        if values.size and values.max() > 1:
            cursor.offset = start
            raise cursor.refuse(what, "is a bool that is neither 0 nor 1")
        values = values.astype(np.bool_)
    values.flags.writeable = False
    return values
