"""Scalar instructions: one value a wave, and the condition SCC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import DTYPES, scalar_reader, width, write_scalar
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.operands import EXEC, NULL, Operand, parse_operand
from poot_eval.gfx11.scalar_integers import COMPARISONS, SCALAR_RULES, ScalarRule, add_i32
from poot_eval.gfx11.waves import Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]


def build_scalar(instruction: Instruction) -> Step | None:
    """The step of a scalar instruction that touches no memory and jumps nowhere; None where it is not known."""
    name = instruction.mnemonic
    if name.startswith("s_cmp_"):
        _, _, how, dtype = name.split("_")
        return _comparison(instruction, COMPARISONS[how], dtype)
    if name.startswith("s_bitcmp"):
        return _bit_comparison(instruction, int(name[8]), f"u{name[-2:]}")
    if "saveexec" in name or "wrexec" in name:
        return _save_exec(instruction)
    if name in {"s_movk_i32", "s_addk_i32", "s_mulk_i32", "s_cmovk_i32"} or name.startswith("s_cmpk_"):
        return _immediate(instruction)
    entry = SCALAR_RULES.get(name)
    return None if entry is None else _step(instruction, entry)


def _step(instruction: Instruction, entry: ScalarRule) -> Step | None:
    operands = [parse_operand(text) for text in instruction.operands]
    target, given = operands[0], iter(operands[1:])
    readers: list[Callable[[Waves], Array]] = []
    for source in entry.types[1:]:
        if source == "scc":
            readers.append(lambda waves: waves.get_scc())
        elif source.startswith("+"):
            readers.append(scalar_reader(target, source[1:]))
        else:
            operand = next(given, None)
            if operand is None:
                return None
            readers.append(scalar_reader(operand, source))
    function, condition, kind = entry.function, entry.condition, DTYPES[entry.types[0]]

    def step(waves: Waves) -> None:
        value = function(*[read(waves) for read in readers])
        scc = None
        if condition == "given":
            value, scc = value
        value = np.asarray(value, kind)
        if condition == "some":
            scc = value != 0
        write_scalar(waves, target, value)
        if scc is not None:
            waves.set_scc(scc)

    return step


def _comparison(instruction: Instruction, compare: Callable[[Array, Array], Array], dtype: str) -> Step:
    a, b = (scalar_reader(parse_operand(text), dtype) for text in instruction.operands)
    return lambda waves: waves.set_scc(compare(a(waves), b(waves)))


def _bit_comparison(instruction: Instruction, wanted: int, dtype: str) -> Step:
    value, at = instruction.operands
    read, place = scalar_reader(parse_operand(value), dtype), scalar_reader(parse_operand(at), "u32")
    limit = np.uint32(width(dtype) - 1)

    def step(waves: Waves) -> None:
        bits = read(waves)
        bit = (bits >> (place(waves) & limit).astype(bits.dtype)) & bits.dtype.type(1)
        waves.set_scc(bit == wanted)

    return step


def _save_exec(instruction: Instruction) -> Step | None:
    """`s_OP_saveexec D, S`: D gets EXEC, EXEC becomes S OP EXEC; `not0` and `not1` negate the first or the second."""
    name = instruction.mnemonic
    body, _, suffix = name.removeprefix("s_").rpartition("_")
    operation = body.removesuffix("_saveexec").removesuffix("_wrexec")
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "and": lambda s, e: s & e, "or": lambda s, e: s | e, "xor": lambda s, e: s ^ e, "nand": lambda s, e: ~(s & e),
        "nor": lambda s, e: ~(s | e), "xnor": lambda s, e: ~(s ^ e), "and_not0": lambda s, e: ~s & e,
        "and_not1": lambda s, e: s & ~e, "or_not0": lambda s, e: ~s | e, "or_not1": lambda s, e: s | ~e,
    }  # fmt: skip
    function = functions.get(operation)
    if function is None:
        return None
    dtype = f"u{suffix.lstrip('b')}"
    target, source = (parse_operand(text) for text in instruction.operands)
    read, execution = scalar_reader(source, dtype), Operand("s", EXEC, 2 if dtype == "u64" else 1)
    old_of = scalar_reader(execution, dtype)
    saves = "saveexec" in name

    def step(waves: Waves) -> None:
        old = old_of(waves).copy()
        new = function(read(waves), old)
        write_scalar(waves, execution, new)
        if target.index != NULL:
            write_scalar(waves, target, old if saves else new)
        waves.set_scc(new != 0)

    return step


def _immediate(instruction: Instruction) -> Step | None:
    """Instructions with a constant of 16 bits in them."""
    name = instruction.mnemonic
    target, constant = (parse_operand(text) for text in instruction.operands)
    value = int(constant.constant) & 0xFFFF
    if name.startswith("s_cmpk_"):
        _, _, how, dtype = name.split("_")
        number = value - 0x10000 if dtype[0] == "i" and value & 0x8000 else value
        fixed = np.full(1, number, DTYPES[dtype])
        read = scalar_reader(target, dtype)
        return lambda waves: waves.set_scc(COMPARISONS[how](read(waves), fixed))
    number = np.full(1, value - 0x10000 if value & 0x8000 else value, np.int32)
    read = scalar_reader(target, "i32")
    if name == "s_movk_i32":
        return lambda waves: write_scalar(waves, target, number)
    if name == "s_mulk_i32":
        return lambda waves: write_scalar(waves, target, read(waves) * number)
    if name == "s_cmovk_i32":
        return lambda waves: write_scalar(waves, target, np.where(waves.get_scc(), number, read(waves)))

    def add(waves: Waves) -> None:
        total, scc = add_i32(read(waves), number)
        write_scalar(waves, target, total)
        waves.set_scc(scc)

    return add
