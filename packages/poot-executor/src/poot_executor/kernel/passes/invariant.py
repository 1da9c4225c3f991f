"""Loop-invariant motion: what a loop computes alike in every round is computed before it."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.dtype import DType
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, Op, Val
from poot_executor.kernel.passes.ranges import Ranges
from poot_executor.kernel.rewrite import Rewriter


def hoist_invariants(kernel: Kernel) -> Kernel:
    """Move pure operations out of loops whose operands come from outside, innermost loops first.

    A load of a READ buffer, and an integer division that may be by zero, move only out of a `for` that surely runs.
    Operations in an `if` stay in it.
    """
    return _Hoist(kernel).kernel(kernel)


class _Hoist(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._params = kernel.params
        self._ranges = Ranges(kernel)

    def visit(self, op: Op) -> None:
        if op.kind in {"for", "while"}:
            surely = op.kind == "for" and self._ranges.surely_runs(op)
            op = replace(op, blocks=tuple(self._hoisted(block, surely) for block in op.blocks))
        self.out.append(op)

    def _hoisted(self, block: Block, surely: bool) -> Block:
        """The block without its invariant operations, which are appended here, before the loop."""
        inside: set[Val] = set(block.args)
        kept = []
        for op in block.ops:
            if not any(v in inside for v in op.operands) and self._movable(op, surely):
                self.out.append(op)
            else:
                kept.append(op)
                inside.update(op.results)
        return Block(block.args, tuple(kept))

    def _movable(self, op: Op, surely: bool) -> bool:
        if op.blocks:
            return False
        if op.kind == "load":
            return surely and self._params[op.attrs["buffer"]].access is Access.READ
        if op.kind in {"div", "rem"} and op.result.dtype is not DType.F32:
            divisor = op.operands[1]
            nonzero = divisor.type.width == 1 and self._ranges.of(divisor).low > 0
            return surely or nonzero
        return KERNEL_OPS[op.kind].pure
