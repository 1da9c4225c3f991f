"""What a kernel can ask for before the kernel ahead of it has ended: weights, at addresses that no memory decides.

A load of a buffer that no dispatch writes, whose index comes from constants and the thread's place alone, may be
brought to the second-level cache early. In a loop the first round's loads are.
"""

from __future__ import annotations

from collections.abc import Iterator

from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, Op, Val

MOST = 12
"""Loads of one kernel that are asked for early."""


class EarlyLoads:
    """The loads of a kernel that may come early, and in what order their indices are computed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._makers: dict[Val, Op] = {}
        self._lows: dict[Val, Val] = {}
        self._loads: list[Op] = []
        self._survey(kernel.body)
        self.loads = tuple(load for load in self._loads if self._free(load.operands[0]))[:MOST]

    def steps(self, value: Val) -> Iterator[Op | tuple[Val, Val]]:
        """What makes a value, operands first: operations, and (a loop's index, what it starts at)."""
        if value in self._lows:
            yield from self.steps(self._lows[value])
            yield value, self._lows[value]
            return
        op = self._makers[value]
        for operand in op.operands:
            yield from self.steps(operand)
        yield op

    def _survey(self, block: Block) -> None:
        for op in block.ops:
            if op.kind == "for":
                self._lows[op.blocks[0].args[0]] = op.operands[0]
            for inner in op.blocks:
                self._survey(inner)
            if KERNEL_OPS[op.kind].pure:
                self._makers.update(dict.fromkeys(op.results, op))
            elif op.kind == "load" and self._kernel.params[op.attrs["buffer"]].access is Access.READ:
                self._loads.append(op)

    def _free(self, value: Val) -> bool:
        """Whether a value needs no memory and nothing that a loop carries."""
        if value in self._lows:
            return self._free(self._lows[value])
        op = self._makers.get(value)
        return op is not None and all(self._free(operand) for operand in op.operands)
