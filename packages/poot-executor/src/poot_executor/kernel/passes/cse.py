"""Common subexpressions: one value for equal pure operations, where the first encloses the second."""

from __future__ import annotations

from collections.abc import Hashable

from poot_executor.dtype import DType
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, Op, Val
from poot_executor.kernel.rewrite import Rewriter

_COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor", "eq", "ne", "mulhi"})


def share_subexpressions(kernel: Kernel) -> Kernel:
    """Replace a pure operation, or a load of a READ buffer, by an equal one before it in an enclosing block."""
    return _Share(kernel).kernel(kernel)


class _Share(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._params = kernel.params
        self._known: list[dict[Hashable, Op]] = []
        self._numbers: dict[Val, int] = {}

    def enter(self, block: Block) -> None:
        self._known.append({})
        for value in block.args:
            self._numbers[value] = len(self._numbers)

    def leave(self, block: Block) -> None:
        self._known.pop()

    def visit(self, op: Op) -> None:
        if self._shareable(op):
            key = self._key(op)
            for scope in reversed(self._known):
                if key in scope:
                    self.replaced.update(zip(op.results, scope[key].results, strict=True))
                    return
            self._known[-1][key] = op
        for value in op.results:
            self._numbers[value] = len(self._numbers)
        self.out.append(op)

    def _shareable(self, op: Op) -> bool:
        if op.kind == "load":
            return self._params[op.attrs["buffer"]].access is Access.READ
        return KERNEL_OPS[op.kind].pure

    def _key(self, op: Op) -> Hashable:
        operands = op.operands
        # Float sums and products commute too, but for which NaN comes out of two: no device fixes that.
        if op.kind in _COMMUTATIVE or (op.kind in {"min", "max"} and op.result.dtype is not DType.F32):
            operands = tuple(sorted(operands, key=lambda value: self._numbers[value]))
        attrs = tuple([(name, repr(op.attrs[name])) for name in sorted(op.attrs)]) if op.attrs else ()
        return op.kind, operands, attrs, op.result.type
