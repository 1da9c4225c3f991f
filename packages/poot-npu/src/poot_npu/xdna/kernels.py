"""A kernel set: a folder with `kernels.json`, an xclbin, and an instruction stream for each contraction it covers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poot_executor.dtype import BF16, F16, F32, DType
from poot_executor.errors import DeviceNotFound

MANIFEST = "kernels.json"
VERSION = 1
OPERANDS = ("activations", "weights", "results")
DTYPES = {"f32": F32, "f16": F16, "bf16": BF16}
ORDERS = ("outputs-inner", "inner-outputs")
COUNTS = {"words": 4, "bytes": 1}
MAX_MANIFEST_BYTES = 1 << 20
Shape = tuple[int, int, int]
"""Tokens, inner, outputs: activations [tokens, inner] by weights [inner, outputs]."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """A contraction that a kernel of the xclbin computes, and how it wants its operands.

    Operands are row-major in their dtypes; `transposed` weights lie as [outputs, inner]. `order` is that of the three
    buffers behind the fixed arguments. `count` is what the kernel is told of its instructions.
    """

    kernel: str
    instructions: bytes
    count: int
    shape: Shape
    activations: DType
    weights: DType
    results: DType
    transposed: bool
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The xclbin's path, and contractions by shape."""

    name: str
    xclbin: Path
    contractions: Mapping[Shape, Contraction]

    def __str__(self) -> str:
        return f"{self.name}: {len(self.contractions)} contractions"


def read_kernel_set(folder: Path) -> KernelSet:
    """The set in a folder. Raises DeviceNotFound naming the file and the field that is missing or wrong."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise DeviceNotFound(f"{path}: it has more than {MAX_MANIFEST_BYTES:,} bytes")
        fields = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DeviceNotFound(f"{path}: {error.strerror or error}; docs/xdna.md says what it holds") from error
    except (ValueError, RecursionError) as error:
        raise DeviceNotFound(f"{path}: not JSON in UTF-8: {error}") from error
    reader = _Reader(str(path), fields)
    if reader.whole("version") != VERSION:
        raise DeviceNotFound(f"{path}: version {fields['version']}, this poot reads {VERSION}")
    xclbin = _file(folder, reader.text("xclbin"), str(path))
    found: dict[Shape, Contraction] = {}
    for place, item in enumerate(reader.items("contractions")):
        where = f"{path}: contractions[{place}]"
        contraction = _contraction(folder, _Reader(where, item))
        if contraction.shape in found:
            raise DeviceNotFound(f"{where}: the shape {list(contraction.shape)} is there twice")
        found[contraction.shape] = contraction
    return KernelSet(folder.name, xclbin, found)


def _contraction(folder: Path, item: _Reader) -> Contraction:
    instructions = _file(folder, item.text("instructions"), item.where).read_bytes()
    if not instructions or len(instructions) % 4:
        raise DeviceNotFound(f"{item.where}: instructions of {len(instructions)} bytes are not words of 4")
    order = item.one("arguments", None) if "arguments" in item.fields else OPERANDS
    if not isinstance(order, list | tuple) or sorted(map(str, order)) != sorted(OPERANDS):
        raise DeviceNotFound(f"{item.where}: arguments must be {', '.join(OPERANDS)} in some order, not {order!r}")
    unit = item.one("count", tuple(COUNTS)) if "count" in item.fields else "words"
    return Contraction(
        kernel=item.text("kernel"),
        instructions=instructions,
        count=len(instructions) // COUNTS[unit],
        shape=(item.whole("tokens"), item.whole("inner"), item.whole("outputs")),
        activations=DTYPES[item.one("activations", tuple(DTYPES))],
        weights=DTYPES[item.one("weights", tuple(DTYPES))],
        results=DTYPES[item.one("results", tuple(DTYPES))],
        transposed=item.one("weight_order", ORDERS) == ORDERS[0],
        order=tuple(order),
    )


def _file(folder: Path, name: str, where: str) -> Path:
    """A file of the set, inside its folder. Raises DeviceNotFound."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DeviceNotFound(f"{where}: {name!r} is outside of the folder")
    if not path.is_file():
        raise DeviceNotFound(f"{where}: there is no file {name!r}")
    return path


@dataclass(frozen=True, slots=True)
class _Reader:
    """Fields of an object of the manifest. Every method raises DeviceNotFound with the place and the field."""

    where: str
    fields: Any

    def __post_init__(self) -> None:
        if not isinstance(self.fields, dict):
            raise DeviceNotFound(f"{self.where}: an object is needed, not {type(self.fields).__name__}")

    def _get(self, name: str) -> Any:
        if name not in self.fields:
            raise DeviceNotFound(f"{self.where}: the field {name!r} is missing")
        return self.fields[name]

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str) or not value:
            raise DeviceNotFound(f"{self.where}: {name} must be a text, not {value!r}")
        return value

    def whole(self, name: str) -> int:
        value = self._get(name)
        if type(value) is not int or value < 1:
            raise DeviceNotFound(f"{self.where}: {name} must be a number of 1 or more, not {value!r}")
        return value

    def items(self, name: str) -> list[Any]:
        value = self._get(name)
        if not isinstance(value, list) or not value:
            raise DeviceNotFound(f"{self.where}: {name} must be a list with one item at least, not {value!r}")
        return value

    def one(self, name: str, allowed: tuple[str, ...] | None) -> Any:
        value = self._get(name)
        if allowed is not None and value not in allowed:
            raise DeviceNotFound(f"{self.where}: {name} must be one of {', '.join(allowed)}, not {value!r}")
        return value
