"""Elementwise operations on one lane, as C expressions. Nothing here is contracted or reassociated by the compiler."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from poot_executor.dtype import DType

F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL

_INTEGERS = (I32, U32)

_PATTERNS: Mapping[tuple[str, DType], str] = MappingProxyType(
    {
        ("neg", F32): "-{0}", ("neg", I32): "0 - {0}", ("neg", U32): "0u - {0}",
        ("abs", F32): "__builtin_fabsf({0})", ("abs", I32): "{0} < 0 ? 0 - {0} : {0}", ("abs", U32): "{0}",
        ("not", BOOL): "!{0}", **{("not", dtype): "~{0}" for dtype in _INTEGERS},
        ("sqrt", F32): "poot_sqrt({0})",
        ("floor", F32): "__builtin_floorf({0})", ("round", F32): "__builtin_rintf({0})",
        **{(kind, dtype): f"{{0}} {sign} {{1}}" for kind, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))
           for dtype in (F32, *_INTEGERS)},
        ("div", F32): "{0} / {1}",
        **{(kind, dtype): f"poot_{kind}({{0}}, {{1}})" for kind in ("div", "rem") for dtype in _INTEGERS},
        **{(kind, dtype): f"poot_{kind}::of({{0}}, {{1}})" for kind in ("min", "max") for dtype in (F32, *_INTEGERS)},
        **{(kind, dtype): f"{{0}} {sign} {{1}}" for kind, sign in (("and", "&"), ("or", "|"), ("xor", "^"))
           for dtype in (*_INTEGERS, BOOL)},
        ("shl", U32): "{0} << ({1} & 31)", ("shl", I32): "(i32)((u32){0} << ({1} & 31))",
        **{("shr", dtype): "{0} >> ({1} & 31)" for dtype in _INTEGERS},
        ("mulhi", U32): "(u32)((u64){0} * {1} >> 32)",
        ("fma", F32): "__builtin_fmaf({0}, {1}, {2})",
        **{(kind, dtype): f"{{0}} {sign} {{1}}"
           for kind, sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))
           for dtype in (F32, *_INTEGERS, BOOL)},
        **{("select", dtype): "{0} ? {1} : {2}" for dtype in (F32, *_INTEGERS, BOOL)},
        ("half_to_float", U32): "poot_half({0})", ("float_to_half", F32): "poot_to_half({0})",
    }
)  # fmt: skip
"""Expressions over the operands by the last operand's dtype."""

ELEMENTWISE = frozenset(kind for kind, _ in _PATTERNS)
"""Operations that `expression` writes."""


def expression(kind: str, dtype: DType, operands: Sequence[str]) -> str:
    """An operation on operands, of which the last has that dtype."""
    return _PATTERNS[kind, dtype].format(*operands)


def literal_of(dtype: DType, value: float) -> str:
    """A constant as C writes it, exactly."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype is U32:
        return f"{value}u"
    if dtype is I32:
        # −2³¹ has no literal: its digits alone do not fit.
        return "(-2147483647 - 1)" if value == -(1 << 31) else f"({value})" if value < 0 else str(value)
    # A constant is an f32, and its Python float exactly that.
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    if not math.isfinite(rounded):
        return f"poot_bits<f32>({struct.unpack('<I', struct.pack('<f', value))[0]:#010x}u)"
    digits = f"{_short_hex(rounded)}f"
    return f"({digits})" if math.copysign(1.0, rounded) < 0 else digits


def _short_hex(value: float) -> str:
    """A hexadecimal literal without the zeros at its end."""
    mantissa, exponent = value.hex().split("p")
    return f"{mantissa.rstrip('0').removesuffix('.')}p{exponent}" if "." in mantissa else f"{mantissa}p{exponent}"


def converted(source: DType, target: DType, operand: str) -> str:
    """A number conversion."""
    if source is target:
        return operand
    if target is BOOL:
        return f"{operand} != {literal_of(source, 0)}"
    return f"({target}){operand}"
