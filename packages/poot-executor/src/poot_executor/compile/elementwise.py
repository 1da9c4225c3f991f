"""Elementwise graph operations as kernel operations on one element.

Within a kernel an f16 or bf16 element is an f32 that has been rounded to its dtype, and an i8 or u8 element an i32 that
has been wrapped, so that storing it is exact.
"""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.packing import from_bf16, round_bf16, to_bf16

HELD = {
    DType.F32: DType.F32, DType.F16: DType.F32, DType.BF16: DType.F32, DType.I32: DType.I32, DType.U32: DType.U32,
    DType.I8: DType.I32, DType.U8: DType.I32, DType.BOOL: DType.BOOL,
}  # fmt: skip
"""The kernel dtype that holds an element of a graph dtype."""

_FUNCTIONS = frozenset("exp log sqrt tanh erf sin cos floor round abs".split())
_COMPARISONS = frozenset("eq ne lt le gt ge".split())


def narrowed(b: KernelBuilder, value: Handle, dtype: DType) -> Handle:
    """A held value rounded or wrapped to the graph dtype: f16 and bf16 to nearest even, i8 and u8 modulo 256."""
    match dtype:
        case DType.F16:
            return b.half_to_float(b.float_to_half(value))
        case DType.BF16:
            return round_bf16(value)
        case DType.I8:
            return (value << 24) >> 24
        case DType.U8:
            return value & 0xFF
    return value


def converted(b: KernelBuilder, value: Handle, source: DType, target: DType) -> Handle:
    """The graph's cast: floats round to nearest even, float to integer truncates, integers wrap, x to bool is x !=
    0."""
    held = HELD[target]
    if held is not value.dtype:
        value = b.cast(value, held)
    return value if source is target else narrowed(b, value, target)


def emit_elementwise(b: KernelBuilder, equation: Equation, operands: list[Handle]) -> Handle:
    """One element of an elementwise equation. Raises Unsupported by operation and dtype."""
    op, dtype = equation.op, equation.output.dtype
    match op:
        case "cast":
            return converted(b, operands[0], equation.inputs[0].dtype, dtype)
        case "bitcast":
            return _bitcast(b, equation, operands[0])
        case "select":
            return b.select(*operands)
        case "not" | "and" | "or" | "xor" if dtype is DType.BOOL:
            return ~operands[0] if op == "not" else b.apply(op, *operands)
        case _ if op in _COMPARISONS:
            return b.apply(op, *operands)
    return narrowed(b, _number(b, op, operands), dtype)


def _number(b: KernelBuilder, op: str, operands: list[Handle]) -> Handle:
    first = operands[0]
    match op:
        case "neg":
            return -first
        case "not":
            return ~first
        case "recip":
            return 1.0 / first
        case "min":
            return b.min(*operands)
        case "max":
            return b.max(*operands)
        case "pow":
            return b.pow(*operands)
        case "div":
            return b.apply(op, *operands)  # not //, which promises that no operand is negative
        case "rem" | "shl" | "shr" | "add" | "sub" | "mul" | "and" | "or" | "xor":
            return b.apply(op, *operands)
        case _ if op in _FUNCTIONS:
            return getattr(b, op)(first)
    raise Unsupported(f"elementwise {op}", "no kernel operation")


def _bitcast(b: KernelBuilder, equation: Equation, value: Handle) -> Handle:
    source, target = equation.inputs[0].dtype, equation.output.dtype
    if source is target:
        return value
    if source.size == 4 and target.size == 4:
        return b.bitcast(value, HELD[target])
    if {source, target} == {DType.I8, DType.U8}:
        return narrowed(b, value, target)
    if {source, target} == {DType.F16, DType.BF16}:
        bits = b.float_to_half(value) if source is DType.F16 else to_bf16(value)
        return b.half_to_float(bits) if target is DType.F16 else from_bf16(bits)
    raise Unsupported(f"bitcast {source} to {target}", "their sizes differ")
