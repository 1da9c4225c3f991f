"""Making OpenVINO nodes: constants, shapes and exact integer arithmetic that the CPU plug-in lacks.

How a value is carried inside a model: every float as f32 (already rounded to its dtype), every integer as i32 (a u32 as
the same 32 bits), a bool as OpenVINO's boolean. The CPU plug-in compares, selects and reduces i32 in float32, which is
exact below 2^24 alone; what may be larger goes through halves of 16 bits here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset15 as op

from poot_executor.dtype import DType, to_bytes

Node = Any
"""An output of an OpenVINO node."""

SMALL = 1 << 24
"""Integers below this are exact in float32."""
WORD_TYPES = {
    DType.F32: openvino.Type.f32,
    DType.F16: openvino.Type.f16,
    DType.BF16: openvino.Type.bf16,
    DType.I32: openvino.Type.i32,
    DType.U32: openvino.Type.i32,
    DType.I8: openvino.Type.i8,
    DType.U8: openvino.Type.u8,
    DType.BOOL: openvino.Type.i32,
}
"""How elements lie in device memory, as OpenVINO names it."""


def carried_type(dtype: DType) -> openvino.Type:
    """The type in which a model carries values of a dtype."""
    if dtype is DType.BOOL:
        return openvino.Type.boolean
    return openvino.Type.f32 if dtype.is_float else openvino.Type.i32


def longs(values: Sequence[int] | int) -> Node:
    """Shapes, axes and the like: i64."""
    return op.constant(np.array(values, np.int64))


def constant(values: NDArray[Any], dtype: DType) -> Node:
    """A constant as it is carried, of values that numpy holds. Equal elements are one, broadcast."""
    if dtype is DType.BOOL:
        return op.constant(np.asarray(values, np.bool_))
    held = np.frombuffer(to_bytes(values, dtype), np.uint32) if dtype is DType.U32 else np.asarray(values)
    wanted = np.float32 if dtype.is_float else np.int32
    data = held.view(np.int32) if dtype is DType.U32 else held.astype(wanted)
    return op.constant(np.ascontiguousarray(data.reshape(np.shape(values))))


def integer(value: int) -> Node:
    """An i32 scalar."""
    return op.constant(np.array(value, np.int64).astype(np.int32))


def real(value: float) -> Node:
    """An f32 scalar."""
    return op.constant(np.float32(value))


def reshaped(x: Node, shape: Sequence[int]) -> Node:
    """The same elements in row-major order."""
    return op.reshape(x, longs(list(shape)), False)


def loaded(x: Node, dtype: DType) -> Node:
    """From how memory holds a value to how a model carries it."""
    if dtype is DType.BOOL:
        return op.not_equal(x, integer(0))
    return x if dtype in (DType.F32, DType.I32, DType.U32) else op.convert(x, carried_type(dtype))


def stored(x: Node, dtype: DType) -> Node:
    """From how a model carries a value to how memory holds it."""
    return x if dtype in (DType.F32, DType.I32, DType.U32) else op.convert(x, WORD_TYPES[dtype])


def bit_select(condition: Node, a: Node, b: Node) -> Node:
    """The choice between any i32, by masks."""
    mask = op.negative(op.convert(condition, openvino.Type.i32))
    return op.bitwise_or(op.bitwise_and(a, mask), op.bitwise_and(b, op.bitwise_not(mask)))


def ordered(x: Node, dtype: DType) -> Node:
    """i32 whose order is that of the values: of a u32 the highest bit is flipped."""
    return op.bitwise_xor(x, integer(-(1 << 31))) if dtype is DType.U32 else x


def halves(x: Node) -> tuple[Node, Node]:
    """(x >> 16, x & 0xffff) of an i32: both exact in float32, and ordered as x is."""
    return op.bitwise_right_shift(x, integer(16)), op.bitwise_and(x, integer(0xFFFF))


def logical_shift_right(x: Node, count: Node) -> Node:
    """An i32 shifted right by 0 to 31 bits, zeros coming in."""
    mask = op.bitwise_not(
        op.bitwise_left_shift(op.bitwise_left_shift(integer(-1), op.bitwise_xor(count, integer(31))), integer(1))
    )
    return op.bitwise_and(op.bitwise_right_shift(x, count), mask)


def narrowed(x: Node, dtype: DType) -> Node:
    """An f32 rounded to the nearest number of a narrower dtype, ties to even."""
    if dtype is DType.BF16:
        return _brain(x)
    return _half(x) if dtype is DType.F16 else x


def absolute(x: Node) -> Node:
    """|x|. The plug-in computes its own in place where x is a concatenation, and others that read x lose its sign."""
    if x.get_element_type() == openvino.Type.f32:
        return op.maximum(x, op.negative(x))
    return op.multiply(x, op.select(op.less(x, integer(0)), integer(-1), integer(1)))


def _half(x: Node) -> Node:
    """To f16 by arithmetic, since the CPU plug-in drops a conversion to f16 and back.

    Normal numbers by Veltkamp's splitting (Dekker 1971): with t = x · (2^13 + 1), t - (t - x) is x in 11 bits. Below
    2^-14 the numbers of f16 are whole multiples of 2^-24. From 65,520 on they are infinite.
    """
    size = absolute(x)
    inside = op.clamp(x, -131072.0, 131072.0)
    scaled = op.multiply(inside, real(8193.0))
    normal = op.subtract(scaled, op.subtract(scaled, inside))
    tiny = op.multiply(op.round(op.multiply(inside, real(2.0**24)), "half_to_even"), real(2.0**-24))
    finite = op.select(op.less(size, real(2.0**-14)), tiny, normal)
    infinite = op.select(op.less(x, real(0.0)), real(-np.inf), real(np.inf))
    rounded = op.select(op.less(size, real(65520.0)), finite, infinite)
    return op.select(op.equal(x, x), rounded, x)


def _brain(x: Node) -> Node:
    """To bf16 by arithmetic, likewise: where a processor has no instruction for it, the plug-in's conversions there and
    back leave all bits.

    Normal numbers by Veltkamp's splitting in 8 bits, the greatest ones 2^-40 as great meanwhile, so that what becomes
    infinite does so at the end. Below 2^-126 the numbers of bf16 are whole multiples of 2^-133.
    """
    size = absolute(x)
    far = op.greater_equal(size, real(2.0**100))
    inside = op.multiply(x, op.select(far, real(2.0**-40), real(1.0)))
    scaled = op.multiply(inside, real(65537.0))
    split = op.subtract(scaled, op.subtract(scaled, inside))
    normal = op.multiply(split, op.select(far, real(2.0**40), real(1.0)))
    low = op.clamp(op.multiply(x, real(2.0**126)), -2.0, 2.0)
    tiny = op.multiply(op.round(op.multiply(low, real(2.0**7)), "half_to_even"), real(2.0**-133))
    rounded = op.select(op.less(size, real(2.0**-126)), tiny, normal)
    return op.select(op.less(size, real(np.inf)), rounded, x)
