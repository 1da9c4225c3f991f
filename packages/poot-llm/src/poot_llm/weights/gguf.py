"""GGUF files, versions 2 and 3, little-endian: metadata read once, tensors as views of the mapped file.

Layout (the GGUF specification): magic, u32 version, u64 tensor count, u64 metadata count; the metadata pairs;
a name, dimensions (fastest first), type and offset for each tensor; then, from the next multiple of
`general.alignment`, the tensors' bytes at their offsets. A file is hostile until proven otherwise: no length or
count is believed before it is checked against the bytes that remain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import CheckpointError, Unsupported, WeightError
from poot_executor.formats import FORMATS
from poot_executor.weights import StoredTensor
from poot_llm.weights.ggml_types import GGML_TYPES, GgmlType
from poot_llm.weights.gguf_metadata import MetadataValue, read_metadata
from poot_llm.weights.mapped import Cursor, map_file

DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8
_LEAST_PAIR = 8 + 4 + 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a tensor lies: `offset` from the start of the file, `shape` row-major, sizes in bytes."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GgufFile:
    """An open GGUF file; a `poot_executor.weights.WeightStore`. `metadata` maps keys to typed values.

    Numbers are int, float or bool, strings are str, numeric arrays are read-only numpy arrays, arrays of strings
    or of arrays are lists.
    """

    __slots__ = ("_data", "_entries", "metadata", "path", "version")

    def __init__(
        self,
        path: Path,
        version: int,
        metadata: Mapping[str, MetadataValue],
        entries: Mapping[str, _Entry],
        data: NDArray[np.uint8],
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = MappingProxyType(dict(metadata))
        self._entries = dict(entries)
        self._data = data

    @classmethod
    def open(cls, path: str | Path) -> GgufFile:
        """Map a file and check all of its header. Raises CheckpointError naming the field, tensor and offset."""
        path = Path(path)
        data = map_file(path)
        cursor = Cursor(path, data)
        version = _read_version(cursor)
        tensors = cursor.u64("tensor count")
        pairs = cursor.u64("metadata count")
        cursor.need("metadata count", pairs, _LEAST_PAIR)
        metadata = read_metadata(cursor, pairs)
        cursor.need("tensor count", tensors, _LEAST_TENSOR)
        alignment = _alignment(path, metadata)
        entries = _read_entries(cursor, tensors, alignment)
        start = -(-cursor.offset // alignment) * alignment
        return cls(path, version, metadata, _place(path, entries, start, len(data)), data)

    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the file's order."""
        return tuple(self._entries)

    def type_name(self, name: str) -> str:
        """A tensor's ggml type name, of types that poot does not decode as well. Raises WeightError."""
        return self._entry(name).type.name

    def tensor(self, name: str) -> StoredTensor:
        """The tensor as stored, a view of the mapping.

        Raises WeightError where there is none of that name, Unsupported (by the ggml name) for a type that poot
        does not decode.
        """
        entry = self._entry(name)
        weight_format = FORMATS.get(entry.type.name)
        if weight_format is None:
            what = f"weight format {entry.type.name} (tensor {name!r} of {self.path})"
            raise Unsupported(what, f"poot decodes {', '.join(FORMATS)}")
        data = self._data[entry.offset : entry.offset + entry.nbytes]
        return StoredTensor(name, weight_format, entry.shape, data)

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise WeightError(f"{self.path}: no tensor {name!r} among its {len(self._entries)}")
        return self._entries[name]


def _read_version(cursor: Cursor) -> int:
    magic = bytes(cursor.take("magic", min(4, cursor.remaining)))
    if magic != b"GGUF":
        cursor.offset = 0
        raise cursor.refuse("magic", f"is {magic!r}, a GGUF file starts with b'GGUF'")
    version = cursor.u32("version")
    cursor.offset -= 4
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, 2, 3):
            raise cursor.refuse("version", "the file is big-endian, poot reads little-endian files")
        raise cursor.refuse("version", f"is {version}, poot reads versions 2 and 3")
    cursor.offset += 4
    return version


def _alignment(path: Path, metadata: Mapping[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value & (value - 1):
        raise CheckpointError(f"{path}: general.alignment is {value!r}, not a power of two")
    return value


def _read_entries(cursor: Cursor, count: int, alignment: int) -> dict[str, _Entry]:
    """The tensor table, offsets still relative to the data section."""
    entries: dict[str, _Entry] = {}
    for index in range(count):
        start = cursor.offset
        name = cursor.text(f"name of tensor {index}")
        entry = _read_entry(cursor, name, alignment)
        if name in entries:
            cursor.offset = start
            raise cursor.refuse(f"tensor {name!r}", "appears twice")
        entries[name] = entry
    return entries


def _read_entry(cursor: Cursor, name: str, alignment: int) -> _Entry:
    what = f"tensor {name!r}"
    start = cursor.offset
    rank = cursor.u32(what)
    if not name or not 1 <= rank <= MAX_DIMENSIONS:
        cursor.offset = start
        problem = f"has {rank} dimensions, 1 to {MAX_DIMENSIONS} are legal" if name else "has no name"
        raise cursor.refuse(what, problem)
    dimensions = tuple(cursor.u64(what) for _ in range(rank))
    if 0 in dimensions or math.prod(dimensions) >= 1 << 63:
        raise cursor.refuse(what, f"has dimensions {dimensions}: zero or beyond 2^63 elements")
    type_id = cursor.u32(what)
    if type_id not in GGML_TYPES:
        cursor.offset -= 4
        raise cursor.refuse(what, f"has type id {type_id}, which is not a ggml type")
    kind = GGML_TYPES[type_id]
    if dimensions[0] % kind.columns:
        problem = f"has rows of {dimensions[0]} columns, {kind.name} blocks are {kind.columns} wide"
        raise cursor.refuse(what, problem)
    offset = cursor.u64(what)
    if offset % alignment:
        cursor.offset -= 8
        raise cursor.refuse(what, f"has offset {offset}, not a multiple of the alignment {alignment}")
    nbytes = math.prod(dimensions) // kind.columns * kind.nbytes
    return _Entry(name, kind, dimensions[::-1], offset, nbytes)


def _place(path: Path, entries: Mapping[str, _Entry], start: int, size: int) -> dict[str, _Entry]:
    """Entries at absolute offsets. Raises CheckpointError where one leaves the file or meets another."""
    placed = {
        name: _Entry(name, entry.type, entry.shape, start + entry.offset, entry.nbytes)
        for name, entry in entries.items()
    }
    previous: _Entry | None = None
    for entry in sorted(placed.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        end = entry.offset + entry.nbytes
        where = f"{path}: tensor {entry.name!r} at bytes {entry.offset:,} to {end:,}"
        if end > size:
            raise CheckpointError(f"{where} leaves the file, which ends at byte {size:,}")
        if previous is not None and entry.offset < previous.offset + previous.nbytes:
            raise CheckpointError(f"{where} overlaps tensor {previous.name!r}")
        previous = entry
    return placed
