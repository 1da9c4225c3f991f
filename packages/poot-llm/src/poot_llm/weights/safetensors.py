"""Safetensors checkpoints: a directory with `model.safetensors`, or with an index and its shards.

A file is a u64 header length, a JSON header of `name: {dtype, shape, data_offsets}`, and the tensors' bytes, which
the offsets cover exactly, without gaps. The header is parsed here rather than by the safetensors package because
that package hands tensors out as copies and has no bf16 for numpy: here every tensor is a view of the mapped file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import CheckpointError, Unsupported, WeightError
from poot_executor.formats import FORMATS
from poot_executor.weights import StoredTensor
from poot_llm.strict_json import parse_object, read_object
from poot_llm.weights.mapped import Cursor, map_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own bound on a header."""
MAX_DIMENSIONS = 64

_ELEMENT_BITS: Mapping[str, int] = MappingProxyType(
    {
        "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
        "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
        "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32,
        "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor of one file: its bytes are `data[begin:end]` of the mapped file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    data: NDArray[np.uint8]


class SafetensorsStore:
    """An open safetensors checkpoint; a `poot_executor.weights.WeightStore`."""

    __slots__ = ("_entries", "path")

    def __init__(self, path: Path, entries: Mapping[str, _Entry]) -> None:
        self.path = path
        self._entries = dict(entries)

    @classmethod
    def open(cls, path: str | Path) -> SafetensorsStore:
        """Map a checkpoint's files and check all of their headers. `path` is a directory or one .safetensors file.

        Raises CheckpointError with the file and the tensor or field where it refuses.
        """
        path = Path(path)
        if not path.is_dir():
            return cls(path, _read_file(path))
        if (path / SINGLE).exists():
            return cls(path, _read_file(path / SINGLE))
        if (path / INDEX).exists():
            return cls(path, _read_shards(path))
        raise CheckpointError(f"{path}: neither {SINGLE} nor {INDEX} is in this directory")

    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order of the headers."""
        return tuple(self._entries)

    def tensor(self, name: str) -> StoredTensor:
        """The tensor as stored, a view of the mapping.

        Raises WeightError where there is none of that name, Unsupported for a dtype that is not F32, F16 or BF16.
        """
        if name not in self._entries:
            raise WeightError(f"{self.path}: no tensor {name!r} among its {len(self._entries)}")
        entry = self._entries[name]
        if entry.dtype not in ("F32", "F16", "BF16"):
            what = f"weight format {entry.dtype} (tensor {name!r} of {self.path})"
            raise Unsupported(what, "poot reads F32, F16 and BF16 from safetensors")
        weight_format = FORMATS[entry.dtype.lower()]
        return StoredTensor(name, weight_format, entry.shape, entry.data[entry.begin : entry.end])


def _read_file(path: Path) -> dict[str, _Entry]:
    data = map_file(path)
    cursor = Cursor(path, data)
    size = cursor.u64("header length")
    if size > MAX_HEADER_BYTES:
        cursor.offset = 0
        raise cursor.refuse("header length", f"is {size:,}, the format allows {MAX_HEADER_BYTES:,}")
    header = parse_object(bytes(cursor.take("header", size)), f"{path}: header")
    start = cursor.offset
    entries: dict[str, _Entry] = {}
    for name, value in header.items():
        if name == "__metadata__":
            _check_metadata(path, value)
        else:
            entries[name] = _entry(path, name, value, start, data)
    _check_coverage(path, entries, start, len(data))
    return entries


def _check_metadata(path: Path, value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CheckpointError(f"{path}: __metadata__ is not a map of strings to strings")


def _entry(path: Path, name: str, value: object, start: int, data: NDArray[np.uint8]) -> _Entry:
    def refuse(field: str, problem: str) -> NoReturn:
        raise CheckpointError(f"{path}: tensor {name!r}: {field} {problem}")

    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        refuse("entry", "does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ELEMENT_BITS:
        refuse("dtype", f"{dtype!r} is not a safetensors type")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        refuse("shape", f"is not a list of at most {MAX_DIMENSIONS} whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2:
        refuse("data_offsets", "is not a pair of whole numbers")
    if 0 in shape or math.prod(shape) >= 1 << 63:
        refuse("shape", f"{shape} has a zero, or beyond 2^63 elements")
    begin, end = offsets
    bits = math.prod(shape) * _ELEMENT_BITS[dtype]
    if begin > end or end > len(data) - start:
        refuse(
            "data_offsets", f"{offsets} leave the {len(data) - start:,} bytes of data (from byte {start} of the file)"
        )
    if bits != (end - begin) * 8:
        refuse("data_offsets", f"{offsets} span {end - begin:,} bytes, {dtype} {shape} takes {bits / 8:,g}")
    return _Entry(dtype, tuple(shape), start + begin, start + end, data)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value)


def _check_coverage(path: Path, entries: Mapping[str, _Entry], start: int, size: int) -> None:
    position = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            problem = "overlaps the one before it" if entry.begin < position else "leaves a gap before it"
            raise CheckpointError(f"{path}: tensor {name!r} at byte {entry.begin} {problem} (byte {position})")
        position = entry.end
    if position != size:
        raise CheckpointError(f"{path}: the tensors end at byte {position}, the file at byte {size}")


def _read_shards(directory: Path) -> dict[str, _Entry]:
    index = read_object(directory / INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{directory / INDEX}: weight_map is not a map of tensor names to file names")
    entries: dict[str, _Entry] = {}
    for file in dict.fromkeys(weight_map.values()):
        # An index names its neighbours: anything else could make poot read a file that the user did not point at.
        if file != Path(file).name or "\\" in file or "\0" in file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{directory / INDEX}: weight_map names {file!r}, not a .safetensors file beside it")
        for name, entry in _read_file(directory / file).items():
            if weight_map.get(name) != file:
                raise CheckpointError(
                    f"{directory / file}: tensor {name!r} is here, {INDEX} says {weight_map.get(name)!r}"
                )
            entries[name] = entry
    missing = [name for name in weight_map if name not in entries]
    if missing:
        raise CheckpointError(f"{directory / weight_map[missing[0]]}: tensor {missing[0]!r} is in {INDEX} and not here")
    return entries
