"""Operations that a target lacks, made of those that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poot_executor.dtype import DType
from poot_executor.kernel.fold import Number
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Kernel, KType, Op, Val
from poot_executor.kernel.operations import Operations
from poot_executor.kernel.rewrite import Rewriter
from poot_executor.kernel.routines import Routine
from poot_executor.kernel.signatures import result_types


def expand_routines(kernel: Kernel, routines: Mapping[str, Routine]) -> Kernel:
    """The kernel with each operation that `routines` names replaced by what its routine emits.

    The result is another kernel with another digest: a fault word names the one that was given.
    """
    if not any(op.kind in routines for op in kernel.body.walk()):
        return kernel
    return _Expand(routines).kernel(kernel)


class _Expand(Rewriter):
    def __init__(self, routines: Mapping[str, Routine]) -> None:
        super().__init__()
        self._routines = routines

    def visit(self, op: Op) -> None:
        routine = self._routines.get(op.kind)
        if routine is None:
            self.out.append(op)
            return
        inline = _Inline(self.out, op.line)
        operands = [Handle(inline, value.type, value) for value in op.operands]
        self.replaced[op.result] = routine(inline, *operands).val


class _Inline(Operations):
    """Appends operations where the replaced one stood. Only pure operations of values; constants once a routine."""

    def __init__(self, out: list[Op], line: str) -> None:
        self._out = out
        self._line = line
        self._constants: dict[tuple[DType, str], Val] = {}

    def emit(self, kind: str, *operands: Handle, dtype: DType | None = None, **attrs: Any) -> Handle:
        declared = () if dtype is None else (KType(dtype, operands[0].width if operands else 1),)
        (type,) = result_types(kind, [h.type for h in operands], attrs, declared, (), ())
        result = Val(type)
        self._out.append(Op(kind, tuple(h.val for h in operands), (result,), attrs, (), self._line))
        return Handle(self, type, result)

    def several(self, kind: str, *operands: Handle, **attrs: Any) -> list[Handle]:
        raise TypeError(f"a routine has one value, and {kind} gives several")

    def effect(self, kind: str, *operands: Handle, **attrs: Any) -> None:
        raise TypeError(f"a routine has no effects, and {kind} is one")

    def constant_val(self, dtype: DType, value: Number) -> Val:
        key = (dtype, repr(value))
        if key not in self._constants:
            val = Val(KType(dtype))
            self._out.append(Op("const", (), (val,), {"value": value}, (), self._line))
            self._constants[key] = val
        return self._constants[key]
