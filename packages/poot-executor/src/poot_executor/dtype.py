"""Element types, how they lie in memory, and how numpy holds them.

numpy has no bf16, so a bf16 value is held as float32 whose low 16 bits are zero. On a device a bool is one
32-bit word, 0 or 1: no two threads may share the word that one of them stores.
"""

from __future__ import annotations

import sys
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class DType(Enum):
    """An element type. The value is its name in printed graphs and kernels."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I32 = "i32"
    U32 = "u32"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    __hash__ = object.__hash__  # members are single, and an Enum's own hash is a Python call

    def __repr__(self) -> str:
        return self.value

    def __str__(self) -> str:
        return self.value

    @property
    def size(self) -> int:
        """Bytes an element takes in a device buffer."""
        return _SIZES[self]

    @property
    def is_float(self) -> bool:
        """f32, f16 or bf16."""
        return self in (DType.F32, DType.F16, DType.BF16)

    @property
    def is_int(self) -> bool:
        """i32, u32, i8 or u8."""
        return self in (DType.I32, DType.U32, DType.I8, DType.U8)

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype that holds values (bf16 as float32, see the module's docstring)."""
        return _HELD[self]


_SIZES = {
    DType.F32: 4,
    DType.F16: 2,
    DType.BF16: 2,
    DType.I32: 4,
    DType.U32: 4,
    DType.I8: 1,
    DType.U8: 1,
    DType.BOOL: 4,
}
_HELD = {
    DType.F32: np.dtype(np.float32), DType.F16: np.dtype(np.float16), DType.BF16: np.dtype(np.float32),
    DType.I32: np.dtype(np.int32), DType.U32: np.dtype(np.uint32), DType.I8: np.dtype(np.int8),
    DType.U8: np.dtype(np.uint8), DType.BOOL: np.dtype(np.bool_),
}  # fmt: skip

F32, F16, BF16, I32, U32, I8, U8, BOOL = DType


def round_bf16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round float32 values to the nearest bf16, ties to even; NaN stays NaN (quiet, payload cut)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    quiet = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x00400000)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, quiet, rounded).astype(np.uint32).view(np.float32).reshape(np.shape(x))


_LITTLE = sys.byteorder == "little"


def to_bytes(array: NDArray, dtype: DType) -> bytes:
    """The device bytes of values that numpy holds (little-endian, C order). Values must already be of `dtype`."""
    held = np.ascontiguousarray(array, dtype.numpy)
    if dtype is DType.BF16:
        return (round_bf16(held).view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    if dtype is DType.BOOL:
        return held.astype("<u4").tobytes()
    return held.tobytes() if _LITTLE else held.astype(held.dtype.newbyteorder("<")).tobytes()


def from_bytes(data: bytes | memoryview | NDArray, dtype: DType, shape: tuple[int, ...]) -> NDArray:
    """Values from device bytes; the inverse of `to_bytes`. Raises ValueError where the byte count does not match."""
    if dtype is DType.BF16:
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
    if dtype is DType.BOOL:
        return (np.frombuffer(data, "<u4") != 0).reshape(shape)
    if _LITTLE:
        return np.frombuffer(data, dtype.numpy).reshape(shape)
    return np.frombuffer(data, dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(shape)
