"""Loads of scalar registers, and what scalar instructions ask of the hardware: the program counter, the mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import scalar_reader
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.operands import parse_operand
from poot_eval.gfx11.reach import GLOBAL, Access, Actors
from poot_eval.gfx11.waves import Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]

_LOAD = re.compile(r"s_(buffer_)?load_b(\d+)$")
_REGISTER = re.compile(r"hwreg\((\w+)(?:, *(\d+), *(\d+))?\)$")

_NOTHING = (
    "s_nop", "s_clause", "s_delay_alu", "s_sleep", "s_setprio", "s_icache_inv", "s_dcache_inv", "s_inst_prefetch",
    "s_set_inst_prefetch_distance", "s_sendmsg", "s_waitcnt", "s_waitcnt_depctr", "s_waitcnt_vscnt", "s_waitcnt_vmcnt",
    "s_waitcnt_lgkmcnt", "s_waitcnt_expcnt", "s_code_end", "buffer_gl0_inv", "buffer_gl1_inv", "s_ttracedata",
    "s_wait_event",
)  # fmt: skip
"""Instructions that change no register here: memory is coherent, and what was loaded has arrived."""


def build_scalar_memory(instruction: Instruction) -> Step | None:
    """The step of a scalar load, or of an instruction about the hardware's state; None where it is not known."""
    name = instruction.mnemonic
    if name in _NOTHING:
        return lambda waves: None
    match = _LOAD.match(name)
    if match is not None:
        return _load(instruction, int(match[2]) // 32, match[1] is not None)
    match name:
        case "s_getpc_b64":
            target, after = parse_operand(instruction.operands[0]).index, instruction.address + instruction.size
            return lambda waves: waves.set_scalar_pair(
                target, np.full(waves.count, waves.reach.code + after, np.uint64)
            )
        case "s_denorm_mode" | "s_round_mode":
            value = int(instruction.operands[0], 0)
            shift = 4 if name == "s_denorm_mode" else 0
            return _mode_fields([(shift, 4, value)], instruction)
        case "s_setreg_imm32_b32" | "s_setreg_b32" | "s_getreg_b32":
            return _hardware_register(instruction)
    return None


def _load(instruction: Instruction, count: int, buffer: bool) -> Step:
    """`count` words from a base and an offset, which is a constant, a register, or both."""
    target, base, *offsets = (parse_operand(text) for text in instruction.operands)
    readers = [scalar_reader(operand, "u32") for operand in offsets if operand.kind != "const"]
    fixed = instruction.offset + sum(int(operand.constant) for operand in offsets if operand.kind == "const")
    fixed_bits = np.uint64(fixed & 0xFFFFFFFFFFFFFFFF)
    access = Access("load", GLOBAL, instruction.address)
    keep = np.uint64(0xFFFFFFFFFFFF if buffer else 0xFFFFFFFFFFFFFFFF)

    def step(waves: Waves) -> None:
        at = (waves.scalar_pair(base.index) & keep) + fixed_bits
        for read in readers:
            at = at + read(waves)
        wave = np.arange(waves.count) if waves.rows is None else waves.rows
        words = waves.reach.load(access, at & ~np.uint64(3), Actors(wave, np.zeros_like(wave)), 4 * count)
        values = np.ascontiguousarray(words).view(np.uint32)
        for i in range(count):
            waves.set_scalar(target.index + i, values[:, i])

    return step


def _hardware_register(instruction: Instruction) -> Step | None:
    """Reads and writes of the MODE register; of no other one."""
    reads = instruction.mnemonic == "s_getreg_b32"
    text, other = reversed(instruction.operands) if reads else instruction.operands
    match = _REGISTER.match(text)
    if match is None or match[1] != "HW_REG_MODE":
        return None
    first, count = int(match[2] or 0), int(match[3] or 32)
    operand = parse_operand(other)
    if not reads:
        if operand.kind != "const":
            return None
        return _mode_fields([(first, count, operand.bits("b32"))], instruction)
    keep = np.uint32((1 << count) - 1)

    def read(waves: Waves) -> None:
        modes = waves.modes if waves.rows is None else waves.modes[waves.rows]
        waves.set_scalar(operand.index, modes >> np.uint32(first) & keep)

    return read


def _mode_fields(fields: list[tuple[int, int, int]], instruction: Instruction) -> Step | None:
    """Sets bits of the mode. Any rounding but to the nearest is not interpreted."""
    for first, count, value in fields:
        if (value << first) & 0xF & ((1 << first + count) - 1):
            return None

    def step(waves: Waves) -> None:
        mode = waves.mode
        for first, count, value in fields:
            keep = ((1 << count) - 1) << first
            mode = (mode & ~keep) | (value << first & keep)
        if waves.rows is None:
            waves.modes[...] = mode
        else:
            waves.modes[waves.rows] = mode
        waves.mode = mode

    return step
