"""Operands of PTX instructions: which registers hold a dtype, and how a constant is written where it is used."""

from __future__ import annotations

import struct

from poot_executor.dtype import DType

CLASSES = {"pred": "%p", "f32": "%f", "b32": "%r", "b64": "%rd", "b16": "%h"}
"""Register types and the names of their registers."""

Lanes = tuple[str, ...]
"""A value's operands: a register or a literal for each lane."""


def register_class(dtype: DType) -> str:
    """The type of the registers that hold a dtype."""
    return {DType.F32: "f32", DType.BOOL: "pred"}.get(dtype, "b32")


def suffix(dtype: DType) -> str:
    """The instruction suffix of a number: f32, s32 or u32."""
    return {DType.F32: "f32", DType.I32: "s32"}.get(dtype, "u32")


def literal(dtype: DType, value: float) -> str:
    """A constant as an operand. A bool is 0 or 1."""
    if dtype is DType.F32:
        # Packing a Python float as f32 raises for one that is too large; a constant is exact, so it is not.
        return f"0f{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
    return str(int(value))


def is_literal(operand: str) -> bool:
    """Whether an operand is a constant and no register."""
    return not operand.startswith("%")
