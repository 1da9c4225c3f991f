"""Constants of kernels: what one scalar operation gives when operands are known, bit for bit as a device gives it.

The builder folds with these rules while a kernel is made, and the folding pass folds with them afterwards. Only
operations whose result IEEE 754 or two's complement fixes are folded: never a transcendental, and never to NaN, whose
bits targets choose.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from poot_executor.dtype import DType

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class Same:
    """The result is the operand of this place."""

    operand: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The result is this constant."""

    value: Number


def wrap(value: int, dtype: DType) -> int:
    """An integer reduced to 32 bits, as i32 or u32."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if dtype is DType.I32 and value >> 31 else value


def to_f32(value: float) -> float:
    """The nearest float32 as a Python float; beyond the range it is infinite."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def fold(kind: str, dtype: DType, constants: Sequence[Number | None], result: DType) -> Same | Constant | None:
    """What a scalar operation gives. `dtype` is its operands' (of the values, for select), `constants` has None where
    unknown.

    None where nothing is known. `result` is the result's dtype, which cast and bitcast need.
    """
    if kind == "cast" and dtype is result:
        return Same(0)
    if kind == "bitcast" and dtype is result:
        return Same(0)
    if kind == "select" and constants[0] is not None:
        return Same(1 if constants[0] else 2)
    if constants and all(c is not None for c in constants):
        value = _evaluate(kind, dtype, constants, result)  # type: ignore[arg-type]
        if value is not None:
            return Constant(value)
    return _identity(kind, dtype, constants)


def _identity(kind: str, dtype: DType, constants: Sequence[Number | None]) -> Same | Constant | None:
    if len(constants) != 2:
        return None
    left, right = constants
    if left is None and right is None:
        return None
    if dtype.is_float:
        return _float_identity(kind, left, right)
    ones: Number = True if dtype is DType.BOOL else wrap(-1, dtype)
    zero: Number = False if dtype is DType.BOOL else 0
    # What leaves the other operand as it is, and what swallows it, of the operations that commute.
    neutral = {"add": zero, "or": zero, "xor": zero, "and": ones, "mul": 1}.get(kind)
    absorbing = {"mul": zero, "and": zero, "or": ones}.get(kind)
    for known, other in ((right, 0), (left, 1)):
        if known is not None and known == neutral:
            return Same(other)
        if known is not None and known == absorbing:
            return Constant(known)
    if right == {"sub": 0, "shl": 0, "shr": 0, "div": 1}.get(kind, ()):
        return Same(0)
    return Constant(0) if kind == "rem" and right == 1 else None


def _float_identity(kind: str, left: Number | None, right: Number | None) -> Same | None:
    if kind == "mul" and right == 1.0:
        return Same(0)
    if kind == "mul" and left == 1.0:
        return Same(1)
    if kind == "div" and right == 1.0:
        return Same(0)
    # x − (+0) and x + (−0) are x for every x; x + (+0) is not, where x is −0.
    if right == 0.0 and right is not None:
        negative = np.signbit(right)
        if (kind == "sub" and not negative) or (kind == "add" and negative):
            return Same(0)
    return None


def _evaluate(kind: str, dtype: DType, values: Sequence[Number], result: DType) -> Number | None:
    if kind in _COMPARE:
        return bool(_COMPARE[kind](*values))
    if kind == "cast":
        return _cast(values[0], dtype, result)
    if kind == "bitcast":
        return _bitcast(values[0], dtype, result)
    if dtype is DType.BOOL:
        rule = _BOOL.get(kind)
        return None if rule is None else bool(rule(*values))
    if dtype is DType.F32:
        return _evaluate_float(kind, values)
    return _evaluate_int(kind, dtype, [int(v) for v in values])


def _evaluate_float(kind: str, values: Sequence[Number]) -> float | None:
    rule = _FLOAT.get(kind)
    if rule is None:
        return None
    if kind in ("min", "max") and values[0] == values[1]:
        return None  # which zero comes out is the target's choice
    with np.errstate(all="ignore"):
        value = float(rule(*(np.float32(v) for v in values)))
    return None if np.isnan(value) else value


def _evaluate_int(kind: str, dtype: DType, values: Sequence[int]) -> int | float | None:
    if kind in ("div", "rem"):
        a, b = values
        if b == 0 or (dtype is DType.I32 and b == -1 and a == -(1 << 31)):
            return None
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if kind == "div" else a - quotient * b
    if kind == "half_to_float":
        value = float(np.uint16(values[0] & 0xFFFF).view(np.float16))
        return None if np.isnan(value) else value
    rule = _INT.get(kind)
    return None if rule is None else wrap(int(rule(*values)), dtype)


def _cast(value: Number, dtype: DType, result: DType) -> Number | None:
    if result is DType.BOOL:
        return value != 0
    if result is DType.F32:
        return to_f32(value)
    if dtype is not DType.F32:
        return wrap(int(value), result)
    if not np.isfinite(value):
        return None
    whole = int(value)
    return whole if wrap(whole, result) == whole else None  # out of range is the target's choice


def _bitcast(value: Number, dtype: DType, result: DType) -> Number | None:
    raw = struct.pack("<f", value) if dtype is DType.F32 else struct.pack("<I", int(value) & 0xFFFFFFFF)
    if result is DType.F32:
        number = struct.unpack("<f", raw)[0]
        return None if np.isnan(number) else number
    return wrap(struct.unpack("<I", raw)[0], result)


_Rules = Mapping[str, Callable[..., Number]]

_COMPARE: _Rules = MappingProxyType(
    {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
)
_BOOL: _Rules = MappingProxyType({"and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.not_})
_FLOAT: _Rules = MappingProxyType(
    {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": np.divide, "neg": operator.neg,
        "abs": abs, "min": min, "max": max, "floor": np.floor, "round": np.rint, "sqrt": np.sqrt,
    }
)  # fmt: skip
_INT: _Rules = MappingProxyType(
    {
        "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "abs": abs,
        "not": operator.invert, "and": operator.and_, "or": operator.or_, "xor": operator.xor, "min": min, "max": max,
        "shl": lambda a, b: a << (b & 31), "shr": lambda a, b: a >> (b & 31), "mulhi": lambda a, b: (a * b) >> 32,
    }
)  # fmt: skip
