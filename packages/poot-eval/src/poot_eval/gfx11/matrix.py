"""Products of 16×16 matrices in the registers of a wave (WMMA).

Lane l has row l mod 16 of A and column l mod 16 of B, all of its depth of 16, so that every 16 lanes
hold the same; of C and D it has column l mod 16, in register r row 2r + ⌊l/16⌋ (of 64 lanes 4r +
⌊l/16⌋). Products are summed in float64 and the sum is rounded once: what the hardware adds in which
order, and how it rounds between, is not documented.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import words_reader
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.faults import MatrixFault
from poot_eval.gfx11.operands import Operand, parse_operand
from poot_eval.gfx11.packed import bf16, flags, to_bf16
from poot_eval.gfx11.rules import saturate
from poot_eval.gfx11.waves import Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]

SIDE = 16
_FORM = re.compile(r"v_wmma_(f32|f16|bf16|i32)_16x16x16_(f16|bf16|iu8|iu4)$")
_BITS = {"f16": 16, "bf16": 16, "iu8": 8, "iu4": 4}


def build_matrix(instruction: Instruction, lanes: int) -> Step | None:
    """The step of a matrix product; None for any other instruction, or for a form that is not interpreted."""
    match = _FORM.match(instruction.base)
    if match is None:
        return None
    result, source = match.groups()
    operands = [parse_operand(text) for text in instruction.operands]
    count = _BITS[source] * SIDE // 32
    signed = flags(instruction, "neg_lo", 3, 0) if source.startswith("iu") else [False] * 3
    if not source.startswith("iu") and ("neg_lo" in instruction.modifiers or "neg_hi" in instruction.modifiers):
        return None
    a, b = (_side(operand, count, source, sign) for operand, sign in zip(operands[1:3], signed, strict=False))
    upper = flags(instruction, "op_sel", 3, 0)[2]
    registers = SIDE * SIDE // lanes
    carried = words_reader(operands[3], registers)
    row = np.arange(registers)[:, None] * (lanes // SIDE) + np.arange(lanes) // SIDE
    column = np.broadcast_to(np.arange(lanes) % SIDE, row.shape)
    clamped = "clamp" in instruction.modifiers

    def step(waves: Waves) -> None:
        where = waves.reach.kernel, instruction.text, instruction.address
        if waves.mask is not None:
            raise MatrixFault(*where, "not all lanes are active")
        left, right = a(waves), b(waves)
        if left is None or right is None:
            raise MatrixFault(*where, "every 16 lanes hold the same of A, and of B")
        words = np.stack([np.broadcast_to(w, (waves.count, lanes)) for w in carried(waves)], axis=1)
        start = _decode(words, result, upper)
        total = (left @ right.swapaxes(1, 2))[:, row, column] + start
        finished = _encode(total, words, result, upper, clamped)
        for i in range(registers):
            waves.set_vector(operands[0].index + i, finished[:, i])

    return step


def _side(operand: Operand, count: int, source: str, signed: bool) -> Callable[[Waves], Array | None]:
    """A's rows or B's columns as [waves, 16, depth]; None where lanes that hold the same differ."""
    read = words_reader(operand, count)
    bits = _BITS[source]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)

    def side(waves: Waves) -> Array | None:
        words = np.stack([np.broadcast_to(w, (waves.count, waves.lanes)) for w in read(waves)], axis=2)
        groups = words.reshape(waves.count, -1, SIDE, count)
        if (groups != groups[:, :1]).any():
            return None
        parts = (groups[:, 0, :, :, None] >> shifts) & np.uint32((1 << bits) - 1)
        numbers = parts.reshape(waves.count, SIDE, SIDE)
        if source == "f16":
            return numbers.astype(np.uint16).view(np.float16).astype(np.float64)
        if source == "bf16":
            return bf16(numbers.astype(np.uint16)).astype(np.float64)
        whole = numbers.astype(np.int64)
        return np.where(whole >> (bits - 1) & 1, whole - (1 << bits), whole) if signed else whole

    return side


def _decode(words: Array, result: str, upper: bool) -> Array:
    match result:
        case "f32":
            return words.view(np.float32).astype(np.float64)
        case "i32":
            return words.view(np.int32).astype(np.int64)
    half = (words >> np.uint32(16) if upper else words).astype(np.uint16)
    return (half.view(np.float16) if result == "f16" else bf16(half)).astype(np.float64)


def _encode(total: Array, old: Array, result: str, upper: bool, clamped: bool) -> Array:
    match result:
        case "f32":
            return total.astype(np.float32).view(np.uint32)
        case "i32":
            return (saturate(total, np.dtype(np.int32)) if clamped else total.astype(np.int32)).view(np.uint32)
    half = total.astype(np.float16).view(np.uint16) if result == "f16" else to_bf16(total.astype(np.float32))
    wide = half.astype(np.uint32)
    return (old & np.uint32(0xFFFF)) | wide << np.uint32(16) if upper else (old & np.uint32(0xFFFF0000)) | wide
