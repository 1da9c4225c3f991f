"""Loop rounds of a kernel, as far as constants tell: llvmpipe ends all loops of a thread after 65,535 rounds
together, silently.

Where the rounds are not known to stay below that, the emitter notes each loop that ends although its condition still
holds, and the kernel faults with code `CUT_SHORT`.
"""

from __future__ import annotations

from poot_executor.compile.target import Caps
from poot_executor.kernel.ir import Block, Kernel, Op, Val

FEATURE = "unbounded_loops"
"""Among the caps' features where loops run for as long as they are told to."""

LIMIT = 65_535
"""Rounds of all loops of a thread together, nested ones multiplied (LP_MAX_TGSI_LOOP_ITERATIONS in Mesa's gallivm)."""

CUT_SHORT = 0
"""The fault code of a loop that the device ended early; a kernel's own checks have codes from 1."""


def watches_loops(kernel: Kernel, caps: Caps) -> bool:
    """Whether the kernel has to find out if the device ends a loop early."""
    if FEATURE in caps.features:
        return False
    rounds = loop_rounds(kernel)
    return rounds is None or rounds >= LIMIT


def binds_fault(kernel: Kernel, caps: Caps) -> bool:
    """Whether the kernel has the fault word as one more binding."""
    return kernel.checks or watches_loops(kernel, caps)


def loop_rounds(kernel: Kernel) -> int | None:
    """The most rounds of all loops of a thread; None where a bound is not a constant."""
    constants = {op.result: op.attrs["value"] for op in kernel.body.walk() if op.kind == "const"}
    return _block(kernel.body, constants)


def _block(block: Block, constants: dict[Val, int]) -> int | None:
    total = 0
    for op in block.ops:
        rounds = _op(op, constants)
        if rounds is None:
            return None
        total += rounds
    return total


def _op(op: Op, constants: dict[Val, int]) -> int | None:
    inner = [_block(block, constants) for block in op.blocks]
    if None in inner or op.kind == "while":
        return None
    inside = sum(rounds for rounds in inner if rounds is not None)
    if op.kind != "for":
        return inside
    low, high, step = (constants.get(value) for value in op.operands[:3])
    if low is None or high is None or step is None:
        return None
    return max(0, -(-(high - low) // step)) * (1 + inside)
