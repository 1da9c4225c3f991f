"""Atomic operations: one lane after another, in the order of waves and lanes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.floats import maximum, minimum
from poot_eval.gfx11.operands import parse_operand
from poot_eval.gfx11.reach import FLAT, GLOBAL, LOCAL, Access
from poot_eval.gfx11.waves import Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]
Address = Callable[[Waves], Array]
FindAddress = Callable[[Instruction, int], Address | None]

_GLOBAL = re.compile(r"(global|flat|buffer)_atomic_(\w+?)_([uifb])(\d+)$")
_LOCAL = re.compile(r"ds_(\w+?)(_rtn)?_([uifb])(\d+)$")

_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "rsub": lambda old, x: x - old,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "swap": lambda old, x: x, "storexchg": lambda old, x: x,
    "inc": lambda old, x: np.where(old >= x, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, x: np.where((old == 0) | (old > x), x, old - old.dtype.type(1)),
}  # fmt: skip


def build_atomic(instruction: Instruction, address: FindAddress) -> Step | None:
    """The step of an atomic operation; None where the instruction is none."""
    name = instruction.mnemonic
    found = _GLOBAL.match(name)
    if found is not None:
        space, operation, kind, bits = found.groups()
        returns = "glc" in instruction.modifiers
        memory = FLAT if space == "flat" else GLOBAL
    else:
        found = _LOCAL.match(name)
        if found is None:
            return None
        operation, given, kind, bits = found.groups()
        returns, memory = given is not None, LOCAL
    size = int(bits) // 8
    function = _function(operation, kind)
    if function is None:
        return None
    operands = [parse_operand(text) for text in instruction.operands]
    first = 1 if returns else 0
    if name.startswith("buffer"):
        # The data register is also where the old value goes.
        first, data, target = 1, operands[0].index, operands[0].index
    else:
        data, target = operands[first + 1].index, operands[0].index
    where = address(instruction, first)
    if where is None:
        return None
    compared = _compared(operation, memory, data, operands, first, size)
    dtype = np.dtype(f"{'u' if kind == 'b' else kind}{size}")
    access = Access("atomic", memory, instruction.address)
    return _step(access, where, function, data, compared, dtype, target if returns else None)


def _function(operation: str, kind: str) -> Callable[[Array, Array], Array] | None:
    if kind == "f" and operation in {"min", "max"}:
        return minimum if operation == "min" else maximum
    if operation in {"cmpswap", "cmpstore"}:
        return lambda old, new: new
    return _OPERATIONS.get(operation)


def _compared(operation: str, memory: str, data: int, operands: list[Any], first: int, size: int) -> int | None:
    """The register that an exchange compares with: after the new value, or in local memory an operand of its own."""
    if operation not in {"cmpswap", "cmpstore"}:
        return None
    return operands[first + 2].index if memory == LOCAL else data + size // 4


def _step(
    access: Access,
    where: Address,
    function: Callable[[Array, Array], Array],
    data: int,
    compared: int | None,
    dtype: np.dtype[Any],
    target: int | None,
) -> Step:
    size = dtype.itemsize
    words = size // 4

    def read(waves: Waves, register: int, mask: Array) -> Array:
        values = np.stack([waves.vector(register + i)[mask] for i in range(words)], axis=1)
        return np.ascontiguousarray(values).view(dtype)[:, 0]

    def step(waves: Waves) -> None:
        mask = waves.active
        row, lane = np.nonzero(mask)
        if not lane.size:
            return
        wave = row if waves.rows is None else waves.rows[row]
        addresses = where(waves)[mask]
        operand = read(waves, data, mask)
        expected = None if compared is None else read(waves, compared, mask)
        old = np.empty(lane.size, dtype)
        for i in range(lane.size):
            word = waves.reach.word(access, int(addresses[i]), int(wave[i]), int(lane[i]), size).view(dtype)
            old[i] = word[0]
            if expected is None or old[i] == expected[i]:
                word[:] = function(old[i : i + 1], operand[i : i + 1])
        if target is None:
            return
        bits = old.view(np.uint32).reshape(-1, words)
        for i in range(words):
            whole = np.zeros(mask.shape, np.uint32)
            whole[mask] = bits[:, i]
            waves.set_vector(target + i, whole)

    return step
