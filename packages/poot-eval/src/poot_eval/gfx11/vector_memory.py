"""Loads, stores and atomics of vector registers: global, flat, scratch, raw buffers, and local memory (`ds`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import scalar_reader, vector_reader
from poot_eval.gfx11.atomics import build_atomic
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.operands import Operand, parse_operand
from poot_eval.gfx11.reach import FLAT, GLOBAL, LOCAL, PRIVATE, Access, Actors
from poot_eval.gfx11.waves import Mask, Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]
Address = Callable[[Waves], Array]

_FORM = re.compile(r"(global|flat|scratch|buffer|ds)_(load|store)_(.+)$")
_PAIRED = re.compile(r"2addr(_stride64)?_b(32|64)$")
_KIND = re.compile(r"(?:(d16)(_hi)?_)?([uib])(\d+)$")
_MEMORIES = {"global": GLOBAL, "flat": FLAT, "scratch": PRIVATE, "buffer": GLOBAL, "ds": LOCAL}


def build_memory(instruction: Instruction) -> Step | None:
    """The step of a vector load, store or atomic; None where it is not known."""
    match = _FORM.match(instruction.mnemonic)
    if match is None:
        return build_atomic(instruction, address)
    space, kind, what = match.groups()
    access = Access(kind, _MEMORIES[space], instruction.address)
    paired = _PAIRED.match(what)
    if paired is not None:
        return _two(instruction, access, int(paired[2]) // 8, 64 if paired[1] else 1)
    form = _KIND.match(what)
    if form is None:
        return None
    half, upper, sign, bits = form.groups()
    where = address(instruction, 1 if kind == "load" else 0)
    if where is None:
        return None
    size = int(bits) // 8
    if kind == "load":
        target = parse_operand(instruction.operands[0])
        return _load(access, where, target.index, size, sign == "i", None if half is None else bool(upper))
    source = parse_operand(instruction.operands[_data_operand(instruction)])
    return _store(access, where, source.index, size, bool(upper))


def _data_operand(instruction: Instruction) -> int:
    """Which operand a store writes: after the address, but first for buffers."""
    return 0 if instruction.mnemonic.startswith("buffer") else 1


def active(waves: Waves) -> tuple[Mask, Actors]:
    """The active lanes of a batch, and who they are."""
    mask = waves.active
    row, lane = np.nonzero(mask)
    return mask, Actors(row if waves.rows is None else waves.rows[row], lane)


def _load(access: Access, where: Address, target: int, size: int, signed: bool, half: bool | None) -> Step:
    """`half` says to which half of the register a d16 load goes: the upper one if True."""
    words = max(1, size // 4)

    def step(waves: Waves) -> None:
        mask, by = active(waves)
        if not by.lane.size:
            return
        loaded = waves.reach.load(access, where(waves)[mask], by, size)
        if size < 4:
            narrow = loaded.view(f"{'i' if signed else 'u'}{size}")
            loaded = narrow.astype(np.int32 if signed else np.uint32).view(np.uint8)
        values = np.ascontiguousarray(loaded).view(np.uint32)
        for i in range(words):
            whole = np.zeros(mask.shape, np.uint32)
            whole[mask] = values[:, i]
            if half is not None:
                old = waves.vector(target)
                low = np.uint32(0xFFFF)
                whole = (old & low) | whole << np.uint32(16) if half else (old & ~low) | (whole & low)
            waves.set_vector(target + i, whole)

    return step


def _store(access: Access, where: Address, source: int, size: int, upper: bool) -> Step:
    words = max(1, size // 4)

    def step(waves: Waves) -> None:
        mask, by = active(waves)
        if not by.lane.size:
            return
        values = np.stack([waves.vector(source + i)[mask] for i in range(words)], axis=1)
        if upper:
            values = values >> np.uint32(16)
        data = np.ascontiguousarray(values).view(np.uint8)[:, :size]
        waves.reach.store(access, where(waves)[mask], by, data)

    return step


def _two(instruction: Instruction, access: Access, size: int, stride: int) -> Step:
    """Two accesses of local memory, at offsets that count elements."""
    offsets = [int(instruction.modifiers.get(f"offset{i}", "0")) * size * stride for i in (0, 1)]
    operands = [parse_operand(text) for text in instruction.operands]
    if access.kind == "load":
        return _load_two(access, vector_reader(operands[1], "u32"), offsets, operands[0].index, size)
    base = vector_reader(operands[0], "u32")
    steps = [
        _store(access, _local(base, offset), operand.index, size, False)
        for offset, operand in zip(offsets, operands[1:], strict=True)
    ]

    def step(waves: Waves) -> None:
        for each in steps:
            each(waves)

    return step


def _load_two(access: Access, base: Callable[[Waves], Array], offsets: list[int], target: int, size: int) -> Step:
    """Both are read before either is written: the address may lie in the result."""
    words = size // 4
    places = [_local(base, offset) for offset in offsets]

    def step(waves: Waves) -> None:
        mask, by = active(waves)
        if not by.lane.size:
            return
        loaded = [waves.reach.load(access, where(waves)[mask], by, size) for where in places]
        values = np.concatenate(loaded, axis=1).view(np.uint32)
        for i in range(2 * words):
            whole = np.zeros(mask.shape, np.uint32)
            whole[mask] = values[:, i]
            waves.set_vector(target + i, whole)

    return step


def _local(base: Callable[[Waves], Array], offset: int) -> Address:
    def where(waves: Waves) -> Array:
        at = (base(waves) + np.uint32(offset)).astype(np.uint64)
        return np.broadcast_to(at, (waves.count, waves.lanes))

    return where


def address(instruction: Instruction, first: int) -> Address | None:
    """Where each lane's access is, uint64 [waves, lanes]; `first` is the operand that begins the address.

    None for a form that is not interpreted: structured or swizzled buffers.
    """
    name, operands = instruction.mnemonic, [parse_operand(text) for text in instruction.operands]
    offset = np.uint64(instruction.offset & 0xFFFFFFFFFFFFFFFF)
    if name.startswith("ds_"):
        return _local(vector_reader(operands[first], "u32"), instruction.offset)
    if name.startswith("buffer_"):
        return _buffer(instruction, operands)
    scalar = operands[-1]
    vector = operands[first]
    if name.startswith("scratch_"):
        return _scratch(vector, scalar, instruction.offset)
    if name.startswith("flat_") or scalar.kind == "off":
        pair = vector_reader(vector, "u64")
        return lambda waves: np.broadcast_to(pair(waves) + offset, (waves.count, waves.lanes))
    base, index = scalar_reader(scalar, "u64"), vector_reader(vector, "u32")

    def where(waves: Waves) -> Array:
        return base(waves)[:, None] + index(waves).astype(np.uint64) + offset

    return where


def _scratch(vector: Operand, scalar: Operand, offset: int) -> Address:
    readers = [vector_reader(operand, "u32") for operand in (vector, scalar) if operand.kind != "off"]

    def where(waves: Waves) -> Array:
        at = np.full((waves.count, waves.lanes), offset, np.int64)
        for read in readers:
            at = at + read(waves).astype(np.int64)
        return at.astype(np.uint64)

    return where


def _buffer(instruction: Instruction, operands: list[Operand]) -> Address | None:
    """A raw buffer: a base and a count of bytes in four scalar registers. What is past the count faults here, so that
    nothing leans on the hardware's own dropping of it.
    """
    if "idxen" in instruction.modifiers:
        return None
    index, resource = operands[1], operands[2]
    constant = scalar_reader(operands[3], "u32")
    read = vector_reader(index, "u32") if "offen" in instruction.modifiers else None
    offset = instruction.offset

    def where(waves: Waves) -> Array:
        base = waves.scalar_pair(resource.index) & np.uint64(0xFFFFFFFFFFFF)
        at = (base + constant(waves) + np.uint64(offset))[:, None]
        return np.broadcast_to(at if read is None else at + read(waves), (waves.count, waves.lanes))

    return where
