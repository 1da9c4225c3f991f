"""Lanes that exchange values through the crossbar of local memory: `ds_permute`, `ds_bpermute`, `ds_swizzle`.

Waves of 64 lanes exchange within each half. A lane that is not active gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import vector_reader, vector_writer
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.operands import parse_operand
from poot_eval.gfx11.waves import Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]


def build_permute(instruction: Instruction, lanes: int) -> Step | None:
    """The step of a permutation; None for any other instruction."""
    match instruction.mnemonic:
        case "ds_bpermute_b32":
            return _pull(instruction, lanes)
        case "ds_permute_b32":
            return _push(instruction, lanes)
        case "ds_swizzle_b32":
            return _swizzle(instruction, lanes)
    return None


def _offset(instruction: Instruction) -> int:
    """The 16 bits of an offset, as they are encoded."""
    return instruction.words[0] & 0xFFFF


def _pull(instruction: Instruction, lanes: int) -> Step:
    """Each lane reads from the lane that its byte address names."""
    target, address, value = (parse_operand(text) for text in instruction.operands)
    where, read, write = vector_reader(address, "u32"), vector_reader(value, "u32"), vector_writer(target, "u32")
    offset = np.uint32(_offset(instruction))
    half = np.arange(lanes) // 32 * 32

    def step(waves: Waves) -> None:
        at = half + ((where(waves) + offset) >> np.uint32(2) & np.uint32(31)).astype(np.int64)
        at = np.broadcast_to(at, (waves.count, lanes))
        given = np.where(waves.active, read(waves), np.uint32(0))
        write(waves, np.take_along_axis(given, at, axis=1), None)

    return step


def _push(instruction: Instruction, lanes: int) -> Step:
    """Each active lane writes to the lane that its byte address names; of several the last one's value stays."""
    target, address, value = (parse_operand(text) for text in instruction.operands)
    where, read, write = vector_reader(address, "u32"), vector_reader(value, "u32"), vector_writer(target, "u32")
    offset = np.uint32(_offset(instruction))
    half = np.arange(lanes) // 32 * 32

    def step(waves: Waves) -> None:
        shape = (waves.count, lanes)
        at = np.broadcast_to(half + ((where(waves) + offset) >> np.uint32(2) & np.uint32(31)).astype(np.int64), shape)
        values, active = np.broadcast_to(read(waves), shape), waves.active
        result = np.zeros(shape, np.uint32)
        for lane in range(lanes):
            rows = np.flatnonzero(active[:, lane])
            result[rows, at[rows, lane]] = values[rows, lane]
        write(waves, result, None)

    return step


def _swizzle(instruction: Instruction, lanes: int) -> Step:
    """A fixed exchange: lanes of a quad by their own table, or of 32 by and, or and xor of the lane's number."""
    target, value = (parse_operand(text) for text in instruction.operands)
    read, write = vector_reader(value, "u32"), vector_writer(target, "u32")
    offset, lane = _offset(instruction), np.arange(lanes)
    if offset >= 0xE000:
        raise ValueError("a rotation or a transform of the lanes")
    if offset & 0x8000:
        source = lane // 4 * 4 + (offset >> 2 * (lane % 4) & 3)
    else:
        within = ((lane % 32 & offset & 31) | offset >> 5 & 31) ^ (offset >> 10 & 31)
        source = lane // 32 * 32 + within

    def step(waves: Waves) -> None:
        given = np.where(waves.active, read(waves), np.uint32(0))
        write(waves, given[:, source], None)

    return step
