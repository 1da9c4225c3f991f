"""How a stored weight lies in a model's constants: quants, scales and minima in arrays of their own.

A block of 32 columns keeps its precision: quants of 4 bits as i4 or u4, of 5 and 8 bits as i8 or u8, f16 scales and
minima beside them. Two columns share a byte in OpenVINO's order, column 2i in the low half; GGUF has column i and
column i + 16 in it.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.formats import Format
from poot_executor.layout import WeightLayout

Bytes = NDArray[np.uint8]
BLOCKS_AT_ONCE = 1 << 16
"""Blocks that are taken apart at a time, so that host memory beside the weight stays bounded."""


@dataclass(slots=True, eq=False)
class Stored:
    """A weight as it is stored, `data` being its bytes. It is taken apart where a model is made of it.

    `hashing` is a hash of its content under way, where somebody began one.
    """

    layout: WeightLayout
    data: Bytes
    hashing: Future[bytes] | None = field(default=None, repr=False)

    @property
    def format(self) -> Format:
        """Its format."""
        return self.layout.format

    @property
    def rows(self) -> int:
        """Rows, leading axes as one."""
        return self.layout.rows

    @property
    def columns(self) -> int:
        """Columns."""
        return self.layout.columns

    @property
    def blocks(self) -> int:
        """Blocks a row."""
        return self.layout.blocks

    @property
    def bits(self) -> int:
        """Bits a quant takes in a model, 4 or 8."""
        return 4 if self.format.name.startswith("q4") else 8

    @property
    def signed(self) -> bool:
        """Whether quants are two's complement."""
        return self.format.name in ("q4_0", "q5_0", "q8_0")

    @property
    def has_minimum(self) -> bool:
        """Whether blocks have a minimum."""
        return any(f.name == "minimum" for f in self.format.fields)

    @property
    def nbytes(self) -> int:
        """Bytes that a model takes for it: quants, and halves beside them."""
        if not self.format.is_packed:
            return self.data.nbytes
        return self.rows * self.blocks * (self.format.columns * self.bits // 8 + (4 if self.has_minimum else 2))

    def digest(self) -> bytes:
        """A hash of its content, computed once."""
        if self.hashing is None:
            self.hashing = Future()
            self.hashing.set_result(content_hash(self.data))
        return self.hashing.result()

    def settle(self) -> None:
        """Give the pages of a mapped file back: they are read again where they are touched."""
        base: Any = self.data
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        if isinstance(base, mmap.mmap) and memoryview(base).readonly and hasattr(mmap, "MADV_DONTNEED"):
            start = self.data.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            base.madvise(mmap.MADV_DONTNEED, first, start + self.data.nbytes - first)

    def take_apart(self, quants: Bytes, scale: NDArray[np.float32], minimum: NDArray[np.float32] | None) -> None:
        """Into u8[blocks, 16 or 32] and f32[blocks] twice, some blocks at a time."""
        blocks = self.data.reshape(-1, self.format.nbytes)
        fields = {f.name: slice(f.offset, f.offset + f.nbytes) for f in self.format.fields}
        for start, stop in _runs(len(blocks)):
            part = blocks[start:stop]
            quants[start:stop] = _quants(self.format.name, part, fields)
            scale[start:stop] = _half(part[:, fields["scale"]])
            if minimum is not None:
                minimum[start:stop] = _half(part[:, fields["minimum"]])


def content_hash(data: Bytes) -> bytes:
    """SHA-256. It lets other threads run meanwhile."""
    return hashlib.sha256(data.data).digest()


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
    whole = np.empty((len(raw), 32), np.uint8)
    whole[:, :16], whole[:, 16:] = raw & 15, raw >> 4
    whole |= np.unpackbits(np.ascontiguousarray(part[:, fields["high"]]), axis=1, bitorder="little") << 4
    if name == "q5_0":
        whole -= np.uint8(16)
    return whole
