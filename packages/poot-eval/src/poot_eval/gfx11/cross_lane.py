"""Lanes of a wave that see each other: data-parallel primitives (DPP), permutations within rows, reads of one lane.

A row is 16 lanes. A lane whose source is outside its row, or is not active, takes zero where the
instruction says so (`bound_ctrl`), and else is not written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import DTYPES, Reader, scalar_reader, vector_reader, vector_writer
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.integers import bit_count
from poot_eval.gfx11.operands import Operand, parse_operand
from poot_eval.gfx11.waves import Mask, Waves

Array = NDArray[Any]
Ints = NDArray[np.int64]
Step = Callable[[Waves], None]


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Which lane each lane reads. `valid` is False where that is outside the row."""

    source: Ints
    valid: Mask
    zeroes: bool
    fetches_inactive: bool
    written: Mask

    def sees(self, waves: Waves) -> Mask:
        """The lanes whose source can be read."""
        if self.fetches_inactive:
            return np.broadcast_to(self.valid, (waves.count, waves.lanes))
        return waves.active[:, self.source] & self.valid

    def reader(self, operand: Operand, dtype: str) -> Reader:
        """How the operand is read through the exchange."""
        plain = vector_reader(operand, dtype.lstrip("+"))
        zero = DTYPES[dtype.lstrip("+")].type(0)
        return lambda waves: np.where(
            self.sees(waves), np.broadcast_to(plain(waves), (waves.count, waves.lanes))[:, self.source], zero
        )

    def writes(self, waves: Waves) -> Mask:
        """The lanes that are written, if they are active."""
        return (
            np.broadcast_to(self.written, (waves.count, waves.lanes))
            if self.zeroes
            else self.sees(waves) & self.written
        )


def exchange(instruction: Instruction, lanes: int) -> Exchange | None:
    """The exchange that an instruction's modifiers ask for; None where they ask for none."""
    modifiers = instruction.modifiers
    if not modifiers:
        return None
    lane = np.arange(lanes)
    if "dpp8" in modifiers:
        choice = np.array(_numbers(modifiers["dpp8"]))
        everywhere = np.ones(lanes, np.bool_)
        return Exchange(lane // 8 * 8 + choice[lane % 8], everywhere, True, "fi" in modifiers, everywhere)
    found = _row_source(modifiers, lane)
    if found is None:
        return None
    source, valid = found
    rows, banks = int(modifiers.get("row_mask", "0xf"), 0), int(modifiers.get("bank_mask", "0xf"), 0)
    written = (rows >> (lane // 16) & 1 & (banks >> (lane % 16 // 4) & 1)).astype(np.bool_)
    zeroes = "bound_ctrl" in modifiers
    return Exchange(np.where(valid, source, 0), valid, zeroes, "fi" in modifiers, written)


def _row_source(modifiers: Any, lane: Ints) -> tuple[Ints, Mask] | None:
    at = lane % 16
    everywhere = np.ones(lane.size, np.bool_)
    if "quad_perm" in modifiers:
        return lane // 4 * 4 + np.array(_numbers(modifiers["quad_perm"]))[lane % 4], everywhere
    if "row_mirror" in modifiers:
        return lane - at + 15 - at, everywhere
    if "row_half_mirror" in modifiers:
        return lane // 8 * 8 + 7 - lane % 8, everywhere
    for name, place, bounded in (
        ("row_shl", lambda n: at + n, True), ("row_shr", lambda n: at - n, True),
        ("row_ror", lambda n: (at - n) % 16, False), ("row_share", lambda n: np.full_like(at, n), False),
        ("row_xmask", lambda n: at ^ n, False),
    ):  # fmt: skip
        if name in modifiers:
            wanted = place(int(modifiers[name], 0))
            return lane - at + wanted, (wanted >= 0) & (wanted < 16) if bounded else everywhere
    return None


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _first_active(waves: Waves) -> Ints:
    """The first active lane of each wave; 0 where none is."""
    return waves.active.argmax(axis=1)


def _read_first_lane(instruction: Instruction, lanes: int) -> Step:
    target, source = (parse_operand(text) for text in instruction.operands)
    read = vector_reader(source, "u32")

    def step(waves: Waves) -> None:
        whole = np.broadcast_to(read(waves), (waves.count, waves.lanes))
        waves.set_scalar(target.index, whole[np.arange(waves.count), _first_active(waves)])

    return step


def _read_lane(instruction: Instruction, lanes: int) -> Step:
    target, source, lane = (parse_operand(text) for text in instruction.operands)
    read, which = vector_reader(source, "u32"), scalar_reader(lane, "u32")

    def step(waves: Waves) -> None:
        at = np.broadcast_to(which(waves).astype(np.int64) % lanes, waves.count)
        whole = np.broadcast_to(read(waves), (waves.count, waves.lanes))
        waves.set_scalar(target.index, whole[np.arange(waves.count), at])

    return step


def _write_lane(instruction: Instruction, lanes: int) -> Step:
    target, value, lane = (parse_operand(text) for text in instruction.operands)
    read, which = scalar_reader(value, "u32"), scalar_reader(lane, "u32")

    def step(waves: Waves) -> None:
        at = np.broadcast_to(which(waves).astype(np.int64) % lanes, waves.count)
        # One lane is written whether or not it is active.
        rows = np.arange(waves.count) if waves.rows is None else waves.rows
        waves.v[target.index, rows, at] = read(waves)

    return step


def _masked_count(instruction: Instruction, lanes: int) -> Step:
    """Bits of a mask below the lane, in the mask's lower or upper half of the wave, added to a base."""
    target, mask, base = (parse_operand(text) for text in instruction.operands)
    lane = np.arange(lanes)
    below = np.clip(lane - 32, 0, 32) if "_hi_" in instruction.base else np.minimum(lane, 32)
    kept = ((np.uint64(1) << below.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
    read, add, write = vector_reader(mask, "u32"), vector_reader(base, "u32"), vector_writer(target, "u32")
    return lambda waves: write(waves, bit_count(read(waves) & kept) + add(waves), None)


def _permute_rows(instruction: Instruction, lanes: int) -> Step:
    """Each lane reads one of its row (or, with `x16`, of the other row of the pair), by a nibble of two scalars."""
    target, source, low, high = (parse_operand(text) for text in instruction.operands)
    selectors = [scalar_reader(operand, "u32") for operand in (low, high)]
    read, write = vector_reader(source, "u32"), vector_writer(target, "u32")
    lane = np.arange(lanes)
    row = lane // 16 * 16
    if "permlanex16" in instruction.base:
        row = row ^ 16
    modes = _numbers(instruction.modifiers.get("op_sel", "[0,0]"))
    fetches, zeroes = bool(modes[0]), bool(modes[1])

    def step(waves: Waves) -> None:
        words = np.stack([np.broadcast_to(select(waves), waves.count) for select in selectors], axis=1)
        nibbles = (words[:, lane % 16 // 8] >> (4 * (lane % 8)).astype(np.uint32) & np.uint32(15)).astype(np.int64)
        at = row + nibbles
        value = np.take_along_axis(np.broadcast_to(read(waves), at.shape), at, axis=1)
        sees = np.ones(at.shape, np.bool_) if fetches else np.take_along_axis(waves.active, at, axis=1)
        write(waves, np.where(sees, value, np.uint32(0)), None if zeroes else sees)

    return step


def _swap_halves(instruction: Instruction, lanes: int) -> Step:
    target, source = (parse_operand(text) for text in instruction.operands)
    read, write = vector_reader(source, "u32"), vector_writer(target, "u32")
    at = np.arange(lanes) ^ 32 if lanes == 64 else np.arange(lanes)
    return lambda waves: write(waves, np.broadcast_to(read(waves), (waves.count, lanes))[:, at], None)


CROSS_LANE: dict[str, Callable[[Instruction, int], Step]] = {
    "v_readfirstlane_b32": _read_first_lane, "v_readlane_b32": _read_lane, "v_writelane_b32": _write_lane,
    "v_mbcnt_lo_u32_b32": _masked_count, "v_mbcnt_hi_u32_b32": _masked_count,
    "v_permlane16_b32": _permute_rows, "v_permlanex16_b32": _permute_rows, "v_permlane64_b32": _swap_halves,
}  # fmt: skip
"""Builders by mnemonic."""
