"""What a kernel can load before the kernel ahead of it has ended: weights, at addresses that no memory decides.

A load of a buffer that no dispatch writes, whose index comes from constants and the thread's place alone, may come
first, wherever it stands outside loops: it is guarded like any other, so a branch not taken only makes it needless.
Where what steers the branch is known as early, it is not even made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, Op, Val

REGISTERS = 64
"""Registers of a thread that early loads may take: what waits in them is not there for others."""
FEW_GROUPS = 256
"""Groups of a kernel, about two for each multiprocessor, up to which every branch may take so many for itself."""

Guard = tuple[tuple[Val, bool], ...]
"""The conditions of the branches that a load is in, the outermost first, and what each has to be."""


@dataclass(frozen=True, slots=True, eq=False)
class EarlyLoad:
    """A load, and where it is needed at all."""

    op: Op
    guard: Guard


class EarlyLoads:
    """The loads of a kernel that come early, in their order, as far as there are registers for them.

    `guarded`: they are made only where the branches that they are in are taken; a branch then has registers of its own.
    """

    def __init__(self, kernel: Kernel, *, guarded: bool = False) -> None:
        self._kernel = kernel
        self._guarded = guarded
        self._apart = guarded and kernel.groups is not None and _count(kernel.groups) <= FEW_GROUPS
        self._makers: dict[Val, Op] = {}
        self.loads: list[EarlyLoad] = []
        self._left: dict[Guard, int] = {}
        self._survey(kernel.body, ())

    def steps(self, value: Val) -> Iterator[Op]:
        """The operations that make a value, operands first; one may come several times."""
        op = self._makers[value]
        for operand in op.operands:
            yield from self.steps(operand)
        yield op

    def _survey(self, block: Block, guard: Guard) -> None:
        for op in block.ops:
            if op.kind == "if":
                known = self._guarded and op.operands[0] in self._makers
                for inner, taken in zip(op.blocks, (True, False), strict=True):
                    self._survey(inner, (*guard, (op.operands[0], taken)) if known else guard)
            elif KERNEL_OPS[op.kind].pure and all(value in self._makers for value in op.operands):
                self._makers.update(dict.fromkeys(op.results, op))
            elif op.kind == "load" and op.operands[0] in self._makers and self._fits(op, guard):
                self.loads.append(EarlyLoad(op, guard))

    def _fits(self, load: Op, guard: Guard) -> bool:
        width = load.result.type.width
        branch = guard[:1] if self._apart else ()
        left = self._left.get(branch, REGISTERS)
        if self._kernel.params[load.attrs["buffer"]].access is not Access.READ or width > left:
            return False
        self._left[branch] = left - width
        return True


def _count(groups: tuple[int, int, int]) -> int:
    x, y, z = groups
    return x * y * z
