"""Two halves a register, sums of products of small numbers, and fused multiply-adds of mixed precision.

Products of halves are exact in float32; a sum of them is added in order, each sum rounded to the
result's type: the documented pseudocode, which the hardware may fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import DTYPES, vector_reader, vector_writer
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.floats import FLOATS
from poot_eval.gfx11.integers import INTEGERS
from poot_eval.gfx11.operands import Operand, parse_operand
from poot_eval.gfx11.rules import Rule, clamp, flush, saturate
from poot_eval.gfx11.waves import Waves
from poot_eval.kernel_values import fma as fma32

Array = NDArray[Any]
Step = Callable[[Waves], None]


def flags(instruction: Instruction, name: str, count: int, default: int) -> list[bool]:
    """A modifier that is a list of bits, one an operand."""
    text = instruction.modifiers.get(name)
    if text is None:
        return [bool(default)] * count
    bits = [piece.strip() == "1" for piece in text.strip("[]").split(",")]
    return bits + [bool(default)] * (count - len(bits))


def _words(operand: Operand, dtype: str) -> Callable[[Waves], Array]:
    """A packed operand as one word. A constant is in its lower half."""
    if operand.kind == "const" and isinstance(operand.constant, float):
        bits = operand.bits("f16" if dtype in {"f16", "u16", "i16"} else "b32")
        value = np.full((1, 1), bits, np.uint32)
        return lambda waves: value
    return vector_reader(operand, "u32")


def _half(word: Array, high: bool, dtype: str) -> Array:
    return (word >> np.uint32(16) if high else word).astype(np.uint16).view(DTYPES[dtype])


def packed(instruction: Instruction) -> Step | None:
    """`v_pk_...`: the operation of one half, on both. None where there is no such operation."""
    name = instruction.base
    entry = _packed_rule(name)
    if entry is None:
        return None
    dtype = entry.result
    operands = [parse_operand(text) for text in instruction.operands]
    if len(operands) - 1 != len([s for s in entry.sources if not s.startswith("+")]):
        return None
    if len(operands) - 1 < len(entry.sources):
        operands.append(operands[0])
    count = len(operands) - 1
    readers = [_words(operand, dtype) for operand in operands[1:]]
    types = [source.lstrip("+") for source in entry.sources]
    low_from, high_from = flags(instruction, "op_sel", count, 0), flags(instruction, "op_sel_hi", count, 1)
    low_neg, high_neg = flags(instruction, "neg_lo", count, 0), flags(instruction, "neg_hi", count, 0)
    write = vector_writer(operands[0], "u32")
    finish = _finisher(instruction, entry)

    def step(waves: Waves) -> None:
        words = [read(waves) for read in readers]
        halves = []
        for chosen, negated in ((low_from, low_neg), (high_from, high_neg)):
            values = [
                _half(word, high, t) if not neg else np.negative(_half(word, high, t))
                for word, high, neg, t in zip(words, chosen, negated, types, strict=True)
            ]
            halves.append(finish(waves, values).view(np.uint16).astype(np.uint32))
        write(waves, halves[0] | halves[1] << np.uint32(16), None)

    return step


def _packed_rule(name: str) -> Rule | None:
    body = name.removeprefix("v_pk_")
    plain = {"add_u16": "add_nc_u16", "add_i16": "add_nc_i16", "sub_u16": "sub_nc_u16", "sub_i16": "sub_nc_i16"}
    full = "v_" + plain.get(body, body)
    return FLOATS.get(full) or INTEGERS.get(full)


def _finisher(instruction: Instruction, entry: Rule) -> Callable[[Waves, list[Array]], Array]:
    """One half's result: floats flushed as the mode says, sums saturated with the clamp modifier."""
    clamped = "clamp" in instruction.modifiers
    kind = DTYPES[entry.result]

    def finish(waves: Waves, values: list[Array]) -> Array:
        if entry.wide:
            total = entry.function(*(value.astype(np.int64) for value in values))
            return saturate(total, kind) if clamped else total.astype(kind)
        if kind.kind != "f":
            return np.asarray(entry.function(*values), kind)
        inputs, outputs = waves.flushes(entry.result)
        result = np.asarray(entry.function(*(flush(v) for v in values) if inputs else values), kind)
        result = flush(result) if outputs else result
        return clamp(result, bool(waves.mode >> 8 & 1)) if clamped else result

    return finish


def _parts(word: Array, bits: int, signed: bool) -> Array:
    """The numbers of `bits` bits in a word, int64, on an axis of their own at the end."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = ((word[..., None] >> shifts) & np.uint32((1 << bits) - 1)).astype(np.int64)
    return np.where(parts >> (bits - 1) & 1, parts - (1 << bits), parts) if signed else parts


def _integer_dot(instruction: Instruction, bits: int, result: str, mixed: bool) -> Step:
    operands = [parse_operand(text) for text in instruction.operands]
    a, b = (vector_reader(operand, "u32") for operand in operands[1:3])
    c = vector_reader(operands[3], result)
    signed = flags(instruction, "neg_lo", 3, 0) if mixed else [result == "i32"] * 3
    clamped = "clamp" in instruction.modifiers
    write = vector_writer(operands[0], result)

    def step(waves: Waves) -> None:
        products = _parts(a(waves), bits, signed[0]) * _parts(b(waves), bits, signed[1])
        total = products.sum(axis=-1) + c(waves)
        write(waves, saturate(total, DTYPES[result]) if clamped else total.astype(DTYPES[result]), None)

    return step


def bf16(half: Array) -> Array:
    """Bits of bf16 (uint16) as float32."""
    return (half.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(x: Array) -> Array:
    """float32 rounded to the nearest bf16, as bits (uint16)."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _float_dot(instruction: Instruction, source: str, result: str, *, accumulates: bool = False) -> Step:
    operands = [parse_operand(text) for text in instruction.operands]
    if accumulates:
        operands.append(operands[0])
    words = [_words(operand, "f16") for operand in operands[1:3]]
    count = 3
    low_from, high_from = flags(instruction, "op_sel", count, 0), flags(instruction, "op_sel_hi", count, 1)
    low_neg, high_neg = flags(instruction, "neg_lo", count, 0), flags(instruction, "neg_hi", count, 0)
    carried = vector_reader(operands[3], {"f32": "f32", "f16": "f16", "bf16": "u16"}[result])
    written = {"f32": "f32", "f16": "f16", "bf16": "u16"}[result]
    write = vector_writer(operands[0], written)

    def decode(word: Array, high: bool, negated: bool) -> Array:
        half = _half(word, high, "u16")
        value = half.view(np.float16).astype(np.float32) if source == "f16" else bf16(half)
        return -value if negated else value

    def step(waves: Waves) -> None:
        a, b = (read(waves) for read in words)
        total = carried(waves)
        total = bf16(total) if result == "bf16" else total.astype(np.float32)
        for chosen, negated in ((low_from, low_neg), (high_from, high_neg)):
            total = total + decode(a, chosen[0], negated[0]) * decode(b, chosen[1], negated[1])
            if result == "f16":
                total = total.astype(np.float16).astype(np.float32)
            elif result == "bf16":
                total = bf16(to_bf16(total))
        write(waves, to_bf16(total) if result == "bf16" else total.astype(DTYPES[written]), None)

    return step


def _mixed(instruction: Instruction) -> Step:
    """`v_fma_mix...`: operands are float32, or halves where `op_sel_hi` says so; fused, then rounded to the result."""
    operands = [parse_operand(text) for text in instruction.operands]
    halves, upper = flags(instruction, "op_sel_hi", 3, 0), flags(instruction, "op_sel", 3, 0)
    readers = [
        vector_reader(operand, "f16" if half else "f32", high=high and half)
        for operand, half, high in zip(operands[1:], halves, upper, strict=True)
    ]
    name = instruction.base
    result = "f32" if name.endswith("f32") else "f16"
    write = vector_writer(operands[0], result, high="mixhi" in name)
    clamped = "clamp" in instruction.modifiers

    def step(waves: Waves) -> None:
        inputs, outputs = waves.flushes("f32")
        values = [read(waves).astype(np.float32) for read in readers]
        total = fma32(*(flush(v) for v in values) if inputs else values)
        total = flush(total) if outputs else total
        if clamped:
            total = clamp(total, bool(waves.mode >> 8 & 1))
        write(waves, total.astype(DTYPES[result]), None)

    return step


_BUILDERS: dict[str, Callable[[Instruction], Step]] = {
    "v_dot4_i32_iu8": lambda i: _integer_dot(i, 8, "i32", True),
    "v_dot8_i32_iu4": lambda i: _integer_dot(i, 4, "i32", True),
    "v_dot4_u32_u8": lambda i: _integer_dot(i, 8, "u32", False),
    "v_dot8_u32_u4": lambda i: _integer_dot(i, 4, "u32", False),
    "v_dot2_f32_f16": lambda i: _float_dot(i, "f16", "f32"),
    "v_dot2_f32_bf16": lambda i: _float_dot(i, "bf16", "f32"),
    "v_dot2_f16_f16": lambda i: _float_dot(i, "f16", "f16"),
    "v_dot2_bf16_bf16": lambda i: _float_dot(i, "bf16", "bf16"),
    "v_dot2acc_f32_f16": lambda i: _float_dot(i, "f16", "f32", accumulates=True),
    "v_dot2c_f32_f16": lambda i: _float_dot(i, "f16", "f32", accumulates=True),
    "v_fma_mix_f32": _mixed,
    "v_fma_mixlo_f16": _mixed,
    "v_fma_mixhi_f16": _mixed,
}


def build_packed(instruction: Instruction) -> Step | None:
    """The step of an instruction on packed numbers; None for any other instruction."""
    builder = _BUILDERS.get(instruction.base)
    if builder is not None:
        return builder(instruction)
    return packed(instruction) if instruction.base.startswith("v_pk_") else None
