"""What a kernel can load before the kernel ahead of it has ended: weights, at addresses that no memory decides.

A load of a buffer that no dispatch writes, whose index comes from constants and the thread's place alone, may come
first, wherever it stands outside loops: it is guarded like any other, so a branch not taken only makes it needless.
"""

from __future__ import annotations

from collections.abc import Iterator

from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, Op, Val

REGISTERS = 64
"""Registers of a thread that early loads may take: what waits in them is not there for others."""


class EarlyLoads:
    """The loads of a kernel that come early, in their order, as far as there are registers for them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._makers: dict[Val, Op] = {}
        self.loads: list[Op] = []
        self._left = REGISTERS
        self._survey(kernel.body)

    def steps(self, value: Val) -> Iterator[Op]:
        """The operations that make a value, operands first; one may come several times."""
        op = self._makers[value]
        for operand in op.operands:
            yield from self.steps(operand)
        yield op

    def _survey(self, block: Block) -> None:
        for op in block.ops:
            if op.kind == "if":
                for inner in op.blocks:
                    self._survey(inner)
            elif KERNEL_OPS[op.kind].pure and all(value in self._makers for value in op.operands):
                self._makers.update(dict.fromkeys(op.results, op))
            elif op.kind == "load" and op.operands[0] in self._makers and self._fits(op):
                self.loads.append(op)

    def _fits(self, load: Op) -> bool:
        width = load.result.type.width
        if self._kernel.params[load.attrs["buffer"]].access is not Access.READ or width > self._left:
            return False
        self._left -= width
        return True
