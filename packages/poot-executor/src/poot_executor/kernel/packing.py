"""Narrow numbers in 32-bit words: bf16, f16 and byte lanes packed and read with integer operations, the same on every
device. Where a kernel's target rounds to bf16 by one operation (`packs_bf16`), that is used in place of ten.
"""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.handle import Handle


def from_bf16(bits: Handle) -> Handle:
    """The bf16 in the low 16 bits of a u32, as f32, exactly."""
    return bits.builder.bitcast(bits << 16, DType.F32)


def round_bf16(value: Handle) -> Handle:
    """An f32, or each of a vector, rounded to bf16, as f32: nearest, ties to even; NaN stays NaN."""
    b = value.builder
    if not _by_one_operation(value):
        return from_bf16(to_bf16(value))
    if value.width > 1:
        return b.vector(*(round_bf16(value[i]) for i in range(value.width)))
    return b.bitcast(b.pack_bf16(0.0, value), DType.F32)


def _by_one_operation(*values: Handle) -> bool:
    """Whether one operation of the target rounds them. What is known already needs none at all."""
    return all(value.builder.packs_bf16 and value.constant is None for value in values)


def to_bf16(value: Handle) -> Handle:
    """An f32 as bf16 bits in the low 16 of a u32: nearest, ties to even; NaN stays NaN, made quiet."""
    b = value.builder
    if _by_one_operation(value) and value.width == 1:
        return b.pack_bf16(value, 0.0)
    bits = b.bitcast(value, DType.U32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return b.select((bits & 0x7FFFFFFF) > 0x7F800000, quiet, rounded)


def pack_half2(low: Handle, high: Handle) -> Handle:
    """Two f32 as f16 in one u32 word, nearest even."""
    b = low.builder
    return b.float_to_half(low) | (b.float_to_half(high) << 16)


def pack_bf16x2(low: Handle, high: Handle) -> Handle:
    """Two f32 as bf16 in one u32 word, nearest even, NaN kept."""
    if _by_one_operation(low, high) and low.width == high.width == 1:
        return low.builder.pack_bf16(low, high)
    return to_bf16(low) | (to_bf16(high) << 16)


def pack_bytes4(a: Handle, b: Handle, c: Handle, d: Handle) -> Handle:
    """The low 8 bits of four i32 or u32 in one u32 word, `a` lowest: signed bytes in two's complement."""
    builder = a.builder
    bytes_ = [builder.cast(part, DType.U32) & 0xFF for part in (a, b, c, d)]
    return bytes_[0] | (bytes_[1] << 8) | (bytes_[2] << 16) | (bytes_[3] << 24)


def unpack_half2(word: Handle) -> tuple[Handle, Handle]:
    """The two f16 of a u32 word as f32, low first."""
    b = word.builder
    return b.half_to_float(word & 0xFFFF), b.half_to_float(word >> 16)


def unpack_bf16x2(word: Handle) -> tuple[Handle, Handle]:
    """The two bf16 of a u32 word as f32, low first."""
    b = word.builder
    return b.bitcast(word << 16, DType.F32), b.bitcast(word & 0xFFFF0000, DType.F32)


def unpack_byte(word: Handle, shift: Handle | int, *, signed: bool) -> Handle:
    """The byte at bit `shift` of a u32 word as i32."""
    b = word.builder
    if not signed:
        return b.bitcast((word >> shift) & 0xFF, DType.I32)
    return b.bitcast(word << (24 - b.as_handle(shift, DType.U32)), DType.I32) >> 24
