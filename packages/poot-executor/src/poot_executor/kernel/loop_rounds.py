"""How many rounds the loops of a kernel take, as far as constants tell."""

from __future__ import annotations

from poot_executor.kernel.ir import Block, Kernel, Op, Val
from poot_executor.kernel.stored import StoredKernel


def loop_rounds(kernel: Kernel) -> int | None:
    """The most rounds that all loops of one thread take together, nested ones multiplied; None where a bound is no
    constant.
    """
    if isinstance(kernel, StoredKernel) and kernel.facts is not None:
        return kernel.facts.loop_rounds
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
