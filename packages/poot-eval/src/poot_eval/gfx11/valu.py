"""Vector instructions as steps: operands read, a rule applied, the active lanes written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import DTYPES, Reader, vector_reader, vector_writer, width
from poot_eval.gfx11.conversions import CONVERSIONS
from poot_eval.gfx11.cross_lane import CROSS_LANE, Exchange, exchange
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.division import DIVISIONS
from poot_eval.gfx11.floats import FLOATS
from poot_eval.gfx11.integers import INTEGERS
from poot_eval.gfx11.lanes import LANES
from poot_eval.gfx11.matrix import build_matrix
from poot_eval.gfx11.operands import EXEC, VCC, Operand, parse_operand
from poot_eval.gfx11.packed import build_packed, flags
from poot_eval.gfx11.rules import Rule, clamp, flush, saturate
from poot_eval.gfx11.transcendental import TRANSCENDENTALS
from poot_eval.gfx11.waves import Mask, Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]
Compute = Callable[[Waves], tuple[Any, Mask | None]]
Commit = Callable[[Waves, Any, Mask | None], None]

RULES: Mapping[str, Rule] = MappingProxyType(
    {**FLOATS, **INTEGERS, **CONVERSIONS, **TRANSCENDENTALS, **DIVISIONS, **LANES}
)
"""Every vector instruction that is a rule, by mnemonic without the suffix of its encoding."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """An instruction in two halves, so that one that is issued with another reads before either writes."""

    compute: Compute
    commit: Commit


def build_vector(instruction: Instruction, lanes: int) -> Step | None:
    """The step of a vector instruction that touches no memory; None where it is not known."""
    if instruction.pair is not None:
        first, second = _parts(instruction, lanes), _parts(instruction.pair, lanes)
        return None if first is None or second is None else _both(first, second)
    special = CROSS_LANE.get(instruction.base)
    if special is not None:
        return special(instruction, lanes)
    if instruction.base.startswith(("v_pk_", "v_dot", "v_fma_mix")):
        return build_packed(instruction)
    if instruction.base.startswith("v_wmma_"):
        return build_matrix(instruction, lanes)
    if instruction.base == "v_swap_b32":
        return _swap(instruction)
    parts = _parts(instruction, lanes)
    if parts is None:
        return None

    def step(waves: Waves) -> None:
        parts.commit(waves, *parts.compute(waves))

    return step


def _both(first: _Parts, second: _Parts) -> Step:
    def step(waves: Waves) -> None:
        (a, where_a), (b, where_b) = first.compute(waves), second.compute(waves)
        # What a move read is the register itself, which the other half may write.
        b = np.array(b)
        first.commit(waves, a, where_a)
        second.commit(waves, b, where_b)

    return step


def _swap(instruction: Instruction) -> Step:
    a, b = (parse_operand(text).index for text in instruction.operands)

    def step(waves: Waves) -> None:
        old = waves.vector(a).copy()
        waves.set_vector(a, waves.vector(b).copy())
        waves.set_vector(b, old)

    return step


def _parts(instruction: Instruction, lanes: int) -> _Parts | None:
    name = instruction.base
    extra = name.startswith("v_cmpx_")
    entry = RULES.get(name.replace("v_cmpx_", "v_cmp_"))
    if name.startswith("v_dot2"):
        return _dual_dot(instruction)
    if entry is None:
        return None
    operands = [parse_operand(text) for text in instruction.operands]
    results = entry.result.split(",")
    if extra:
        operands.insert(0, Operand("s", EXEC))
    elif entry.result == "lanes" and len(operands) == len(entry.sources):
        operands.insert(0, Operand("s", VCC))
    sources = operands[len(results) :]
    sources.extend(operands[0] for source in entry.sources if source.startswith("+"))
    if len(sources) == len(entry.sources) - 1 and entry.sources[-1] == "lanes":
        sources.append(Operand("s", VCC))
    if len(sources) != len(entry.sources):
        return None
    half_flags = flags(instruction, "op_sel", len(entry.sources) + 1, 0)
    moved = exchange(instruction, lanes)
    readers = [
        _reader(operand, source.lstrip("+"), high)
        for operand, source, high in zip(sources, entry.sources, half_flags, strict=False)
    ]
    if moved is not None:
        readers[0] = moved.reader(sources[0], entry.sources[0])
    high_result = len(entry.sources) < len(half_flags) and half_flags[_destination_flag(entry)]
    return _Parts(_compute(entry, readers, instruction, moved), _commit(results, operands, high_result))


def _destination_flag(entry: Rule) -> int:
    """Which bit of op_sel chooses the destination's half: the one after the operands that the encoding has."""
    return len([source for source in entry.sources if source != "lanes" and not source.startswith("+")])


def _reader(operand: Operand, dtype: str, high: bool) -> Reader:
    if dtype == "lanes":
        return lambda waves: waves.lane_mask(operand.index)
    return vector_reader(operand, dtype, high=high and width(dtype) == 16)


def _compute(entry: Rule, readers: list[Reader], instruction: Instruction, moved: Exchange | None) -> Compute:
    function, result = entry.function, entry.result.split(",")[0]
    where = _everywhere if moved is None else moved.writes
    if entry.exact or (result == "lanes" and entry.sources[0][0] != "f"):
        return lambda waves: (function(*[read(waves) for read in readers]), where(waves))
    clamped = "clamp" in instruction.modifiers
    if entry.wide:

        def compute_wide(waves: Waves) -> tuple[Any, Mask | None]:
            total = function(*(read(waves).astype(np.int64) for read in readers))
            kind = DTYPES[result]
            return saturate(total, kind) if clamped else total.astype(kind), where(waves)

        return compute_wide
    factor = _factor(instruction)
    floats = [source.lstrip("+") if source.lstrip("+")[0] == "f" else None for source in entry.sources]

    def compute(waves: Waves) -> tuple[Any, Mask | None]:
        values = [read(waves) for read in readers]
        if waves.mode & 0xF0 != 0xF0:
            values = [flush(v) if t and waves.flushes(t)[0] else v for v, t in zip(values, floats, strict=True)]
        value = function(*values)
        if result[0] != "f" or isinstance(value, tuple):
            return value, where(waves)
        if factor != 1:
            value = value * value.dtype.type(factor)
        if waves.mode & 0xF0 != 0xF0 and waves.flushes(result)[1]:
            value = flush(value)
        if clamped:
            value = clamp(value, bool(waves.mode >> 8 & 1))
        return value, where(waves)

    return compute


def _everywhere(waves: Waves) -> Mask | None:
    return None


def _factor(instruction: Instruction) -> float:
    if "mul" in instruction.modifiers:
        return float(instruction.modifiers["mul"])
    return 1 / float(instruction.modifiers["div"]) if "div" in instruction.modifiers else 1.0


def _commit(results: list[str], operands: list[Operand], high: bool) -> Commit:
    if results == ["lanes"]:
        index = operands[0].index
        return lambda waves, value, where: waves.set_lane_mask(index, value if where is None else value & where)
    write = vector_writer(operands[0], results[0], high=high and width(results[0]) == 16)
    if len(results) == 1:
        return write
    mask_index = operands[1].index

    def commit(waves: Waves, value: tuple[Array, Mask], where: Mask | None) -> None:
        write(waves, value[0], where)
        waves.set_lane_mask(mask_index, value[1])

    return commit


def _dual_dot(instruction: Instruction) -> _Parts | None:
    """A dot product that is issued with another instruction: both read first, so this one keeps what it computed."""
    a, b, carried = (parse_operand(text) for text in (*instruction.operands[1:], instruction.operands[0]))
    if not instruction.base.startswith(("v_dot2acc_f32_f16", "v_dot2c_f32_f16")):
        return None
    readers = [vector_reader(operand, "u32") for operand in (a, b)]
    total = vector_reader(carried, "f32")

    def compute(waves: Waves) -> tuple[Any, Mask | None]:
        x, y = (read(waves) for read in readers)
        result = total(waves)
        for shift in (np.uint32(0), np.uint32(16)):
            left, right = ((w >> shift).astype(np.uint16).view(np.float16).astype(np.float32) for w in (x, y))
            result = result + left * right
        return result, None

    return _Parts(compute, vector_writer(carried, "f32"))
