"""How a stored weight lies on this device: planes of equal parts, as OpenVINO's compressed contractions take them.

A block of 32 columns keeps its precision: quants of 4 bits as i4 or u4, of 5 and 8 bits as i8 or u8, f16 scales and
minima beside them. Two columns share a byte in OpenVINO's order, column 2i in the low half; GGUF has column i and
column i + 16 in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.formats import Format
from poot_executor.layout import WeightLayout

Bytes = NDArray[np.uint8]
BLOCKS_AT_ONCE = 1 << 16
"""Blocks that are taken apart at a time, so that host memory beside the weight stays bounded."""


@dataclass(frozen=True, slots=True, eq=False)
class Planes:
    """A packed weight. `quants` u8[blocks, 16 or 32], `scale` and `minimum` f16[blocks], views of `memory`.

    `minimum` is None where the format has none. `signed` says whether quants are two's complement.
    """

    format: Format
    rows: int
    columns: int
    signed: bool
    memory: Bytes
    quants: Bytes
    scale: NDArray[np.float16]
    minimum: NDArray[np.float16] | None

    @property
    def blocks(self) -> int:
        """Blocks a row."""
        return self.columns // self.format.columns

    @property
    def bits(self) -> int:
        """Bits a quant, 4 or 8."""
        return 8 * self.quants.shape[1] // self.format.columns


def plane_bytes(layout: WeightLayout) -> int:
    """Bytes of a packed weight on the device."""
    halves = 4 if _has_minimum(layout.format) else 2
    return layout.rows * layout.blocks * (_quant_bytes(layout.format) + halves)


def planes(layout: WeightLayout, memory: Bytes) -> Planes:
    """Views of a weight's memory, `plane_bytes` of it."""
    format_, blocks = layout.format, layout.rows * layout.blocks
    width = _quant_bytes(format_)
    ends = np.cumsum([blocks * width, 2 * blocks, 2 * blocks])
    minimum = memory[ends[1] : ends[2]].view(np.float16) if _has_minimum(format_) else None
    scale = memory[ends[0] : ends[1]].view(np.float16)
    quants = memory[: ends[0]].reshape(blocks, width)
    return Planes(format_, layout.rows, layout.columns, format_.name in _SIGNED, memory, quants, scale, minimum)


def take_apart(stored: Bytes, into: Planes) -> None:
    """Stored blocks into planes, some at a time."""
    blocks = stored.reshape(-1, into.format.nbytes)
    fields = {f.name: slice(f.offset, f.offset + f.nbytes) for f in into.format.fields}
    for start, stop in _runs(len(blocks)):
        part = blocks[start:stop]
        into.quants[start:stop] = _quants(into.format.name, part, fields)
        into.scale[start:stop] = _half(part[:, fields["scale"]])
        if into.minimum is not None:
            into.minimum[start:stop] = _half(part[:, fields["minimum"]])


_SIGNED = frozenset(("q4_0", "q5_0", "q8_0"))


def _has_minimum(format_: Format) -> bool:
    return any(f.name == "minimum" for f in format_.fields)


def _quant_bytes(format_: Format) -> int:
    return 16 if format_.name.startswith("q4") else 32


def _runs(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, BLOCKS_AT_ONCE):
        yield start, min(start + BLOCKS_AT_ONCE, count)


def _half(raw: Bytes) -> NDArray[Any]:
    return np.ascontiguousarray(raw).view("<f2").reshape(-1)


def _quants(name: str, part: Bytes, fields: dict[str, slice]) -> Bytes:
    """u8[blocks, 16 or 32] in OpenVINO's order."""
    raw = np.ascontiguousarray(part[:, fields["quants"]])
    if name == "q8_0":
        return raw
    if name.startswith("q4"):
        pairs = raw.view("<u2")
        first = (pairs & 0x000F) | (pairs >> 4 & 0x00F0)
        second = (pairs >> 4 & 0x000F) | (pairs >> 8 & 0x00F0)
        packed = np.concatenate([first, second], axis=1).astype(np.uint8)
        return packed ^ np.uint8(0x88) if name == "q4_0" else packed  # q - 8 in two's complement flips the top bit
    whole = np.concatenate([raw & 15, raw >> 4], axis=1)
    whole |= np.unpackbits(np.ascontiguousarray(part[:, fields["high"]]), axis=1, bitorder="little") << 4
    return whole - np.uint8(16) if name == "q5_0" else whole
