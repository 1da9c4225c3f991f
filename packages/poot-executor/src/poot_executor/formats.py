"""Weight formats as stored in checkpoints: blocks of columns that share a scale.

A format is data: how many columns and bytes a block has, where its fields lie, and the numpy rule that decodes it,
which the oracle, constant folding and tests use. Layouts are GGUF's: every block starts with f16 fields (scale `d`,
for the `_1` formats minimum `m`), then for 5-bit formats 32 high bits, then the quants. In a 4-bit block byte i holds
column i in its low half and column i + 16 in its high half (ggml `block_q4_0` and its kin).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType
from poot_executor.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a block: `offset` and `nbytes` within the block, both even."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Format:
    """A weight format. `columns` a block, `nbytes` a block. A dense format has blocks of one column and a `dtype`."""

    name: str
    columns: int
    nbytes: int
    fields: tuple[Field, ...]
    dtype: DType | None = None

    @property
    def is_packed(self) -> bool:
        """Whether its columns share scales in blocks."""
        return self.dtype is None

    def row_bytes(self, columns: int) -> int:
        """Bytes of a stored row of `columns` elements. Raises Unsupported where blocks do not fill the row."""
        if columns % self.columns:
            raise Unsupported(
                f"format {self.name}", f"a row of {columns} columns is not whole blocks of {self.columns}"
            )
        return columns // self.columns * self.nbytes

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Stored rows u8[..., row_bytes] to f32[..., columns]; each value is exact or one float32 rounding of d·q +
        m."""
        if self.dtype is not None:
            return _decode_dense(raw, self.dtype)
        blocks = np.ascontiguousarray(raw).reshape(*raw.shape[:-1], -1, self.nbytes)
        return _DECODERS[self.name](blocks).reshape(*raw.shape[:-1], -1)


def _decode_dense(raw: NDArray[np.uint8], dtype: DType) -> NDArray[np.float32]:
    raw = np.ascontiguousarray(raw)
    if dtype is DType.F32:
        return raw.view("<f4").astype(np.float32, copy=False)
    if dtype is DType.F16:
        return raw.view("<f2").astype(np.float32)
    return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _half(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view("<f2").astype(np.float32)


def _nibbles(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.int32]:
    packed = blocks[..., offset : offset + 16].astype(np.int32)
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _high_bits(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.int32]:
    word = np.ascontiguousarray(blocks[..., offset : offset + 4]).view("<u4")
    return ((word >> np.arange(32, dtype=np.uint32)) & np.uint32(1)).astype(np.int32) << 4


def _q4_0(b: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _half(b, 0) * (_nibbles(b, 2) - 8).astype(np.float32)


def _q4_1(b: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _half(b, 0) * _nibbles(b, 4).astype(np.float32) + _half(b, 2)


def _q5_0(b: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _half(b, 0) * ((_nibbles(b, 6) | _high_bits(b, 2)) - 16).astype(np.float32)


def _q5_1(b: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _half(b, 0) * (_nibbles(b, 8) | _high_bits(b, 4)).astype(np.float32) + _half(b, 2)


def _q8_0(b: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _half(b, 0) * np.ascontiguousarray(b[..., 2:34]).view(np.int8).astype(np.float32)


_DECODERS: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = {
    "q4_0": _q4_0, "q4_1": _q4_1, "q5_0": _q5_0, "q5_1": _q5_1, "q8_0": _q8_0,
}  # fmt: skip

_SCALE, _MINIMUM = Field("scale", 0, 2), Field("minimum", 2, 2)

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f32", 1, 4, (Field("value", 0, 4),), DType.F32),
        Format("f16", 1, 2, (Field("value", 0, 2),), DType.F16),
        Format("bf16", 1, 2, (Field("value", 0, 2),), DType.BF16),
        Format("q4_0", 32, 18, (_SCALE, Field("quants", 2, 16))),
        Format("q4_1", 32, 20, (_SCALE, _MINIMUM, Field("quants", 4, 16))),
        Format("q5_0", 32, 22, (_SCALE, Field("high", 2, 4), Field("quants", 6, 16))),
        Format("q5_1", 32, 24, (_SCALE, _MINIMUM, Field("high", 4, 4), Field("quants", 8, 16))),
        Format("q8_0", 32, 34, (_SCALE, Field("quants", 2, 32))),
    )
}
"""Every format that poot decodes, by name. A format absent here is refused by name."""


def format_named(name: str) -> Format:
    """The format of that name. Raises Unsupported with the known ones."""
    if name not in FORMATS:
        raise Unsupported(f"weight format {name}", f"poot decodes {', '.join(FORMATS)}")
    return FORMATS[name]
