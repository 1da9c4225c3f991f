"""Reading operands as arrays of a type, and writing results.

Types are written as in mnemonics: u16, i32, f64. A reader gives [waves, lanes], with an axis of
length 1 where the value is one for all lanes or waves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.operands import Operand
from poot_eval.gfx11.waves import Mask, Waves

Array = NDArray[Any]
Reader = Callable[[Waves], Array]
Writer = Callable[[Waves, Array, Mask | None], None]

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        f"{kind}{bits}": np.dtype(f"{kind}{bits // 8}")
        for kind in "uif"
        for bits in (8, 16, 32, 64)
        if kind + str(bits) != "f8"
    }
)
"""How numpy holds each type."""

SIXTEEN, THIRTY_TWO = np.uint32(16), np.uint32(32)


def width(dtype: str) -> int:
    """Bits of a type."""
    return int(dtype[1:])


def vector_reader(operand: Operand, dtype: str, *, high: bool = False) -> Reader:
    """How an operand of a vector instruction is read, its sign and absolute-value modifiers applied.

    `high` takes the upper half of the register of a type of 16 bits, as the operand itself may too.
    """
    raw = (
        _constant(operand, dtype, high) if operand.kind == "const" else _register(operand, dtype, high or operand.high)
    )
    return _modified(raw, operand)


def _modified(raw: Reader, operand: Operand) -> Reader:
    if operand.abs and operand.neg:
        return lambda waves: np.negative(np.abs(raw(waves)))
    if operand.abs:
        return lambda waves: np.abs(raw(waves))
    if operand.neg:
        return lambda waves: np.negative(raw(waves))
    return raw


def _constant(operand: Operand, dtype: str, high: bool) -> Reader:
    bits = operand.bits(dtype if dtype[0] == "f" else f"b{width(dtype)}")
    if high:
        bits = 0
    value = np.full((1, 1), bits, f"u{width(dtype) // 8}").view(DTYPES[dtype])
    return lambda waves: value


def _register(operand: Operand, dtype: str, high: bool) -> Reader:
    index, kind = operand.index, DTYPES[dtype]
    if width(dtype) == 64:
        pair = _vector_pair(index) if operand.kind == "v" else lambda waves: waves.scalar_pair(index)[:, None]
        return lambda waves: pair(waves).view(kind)
    word = _vector_word(index) if operand.kind == "v" else _scalar_word(index)
    if width(dtype) == 32:
        return lambda waves: word(waves).view(kind)
    if high:
        return lambda waves: (word(waves) >> SIXTEEN).astype(np.uint16).view(kind)
    return lambda waves: word(waves).astype(np.uint16).view(kind)


def _vector_word(index: int) -> Reader:
    return lambda waves: waves.vector(index)


def _scalar_word(index: int) -> Reader:
    return lambda waves: waves.scalar(index)[:, None]


def _vector_pair(index: int) -> Reader:
    def read(waves: Waves) -> Array:
        low, high = waves.vector(index), waves.vector(index + 1)
        return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)

    return read


def words_reader(operand: Operand, count: int) -> Callable[[Waves], list[Array]]:
    """An operand of several registers, each uint32 [waves, lanes or 1]."""
    if operand.kind == "v":
        return lambda waves: [waves.vector(operand.index + i) for i in range(count)]
    if operand.kind == "s":
        return lambda waves: [waves.scalar(operand.index + i)[:, None] for i in range(count)]
    bits = operand.bits("b32")
    return lambda waves: [np.full((1, 1), bits if i == 0 else 0, np.uint32) for i in range(count)]


def vector_writer(operand: Operand, dtype: str, *, high: bool = False) -> Writer:
    """How a result of a type is written to a vector register. Half a register leaves the other half as it is."""
    index, bits = operand.index, width(dtype)
    unsigned = np.dtype(f"u{bits // 8}")
    kind = DTYPES[dtype]
    if bits == 64:

        def write(waves: Waves, value: Array, where: Mask | None) -> None:
            whole = np.asarray(value, kind).view(unsigned)
            waves.set_vector(index, (whole & np.uint64(0xFFFFFFFF)).astype(np.uint32), where)
            waves.set_vector(index + 1, (whole >> np.uint64(32)).astype(np.uint32), where)

    elif bits == 32:

        def write(waves: Waves, value: Array, where: Mask | None) -> None:
            waves.set_vector(index, np.asarray(value, kind).view(unsigned), where)

    else:
        upper = high or operand.high
        shift, kept = (SIXTEEN, np.uint32(0xFFFF)) if upper else (np.uint32(0), np.uint32(0xFFFF0000))

        def write(waves: Waves, value: Array, where: Mask | None) -> None:
            half = np.asarray(value, kind).view(unsigned).astype(np.uint32) << shift
            waves.set_vector(index, (waves.vector(index) & kept) | half, where)

    return write


def scalar_reader(operand: Operand, dtype: str) -> Reader:
    """How an operand of a scalar instruction is read: [waves], or [1] for a constant."""
    kind = DTYPES[dtype]
    if operand.kind == "const":
        value = np.full(1, operand.bits(dtype if dtype[0] == "f" else f"b{width(dtype)}"), f"u{width(dtype) // 8}")
        return lambda waves: value.view(kind)
    index = operand.index
    if width(dtype) == 64:
        return lambda waves: waves.scalar_pair(index).view(kind)
    if width(dtype) == 16:
        return lambda waves: waves.scalar(index).astype(np.uint16).view(kind)
    return lambda waves: waves.scalar(index).view(kind)


def write_scalar(waves: Waves, operand: Operand, value: Array) -> None:
    """Write a result of 32 or 64 bits, of any type, to the scalar registers of an operand."""
    bits = value.view(f"u{value.dtype.itemsize}")
    if value.dtype.itemsize == 8:
        waves.set_scalar_pair(operand.index, bits)
    else:
        waves.set_scalar(operand.index, bits)
