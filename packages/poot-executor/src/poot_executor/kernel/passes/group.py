"""Reductions over a group, made of what devices have: subgroup reductions, shared memory and barriers.

One subgroup a group: the subgroup's reduction alone. More, of a fixed width: each subgroup's result goes to shared
memory and every thread reduces them in their order. Without subgroups, or where their width is not fixed: a tree in
shared memory that halves. The order is fixed by the group's size and the subgroup's width, so equal inputs give equal
bits on one device.

Races. A reduction writes shared memory, passes a barrier and reads. The next one must not write before all have read.
In a loop or branch a second barrier after the reading sees to that. In the kernel's outermost block reductions of a
dtype take turns with two arrays instead: whoever writes an array again has passed the barrier of the one between,
which everyone reaches after reading.
"""

from __future__ import annotations

from dataclasses import replace

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Block, Kernel, KType, Op, SharedArray, Val
from poot_executor.kernel.rewrite import Rewriter

_JOIN = {"group_sum": "add", "group_max": "max", "group_min": "min"}
_I32 = KType(DType.I32)


def lower_group_reductions(kernel: Kernel, *, subgroup: bool, subgroup_width: int | None) -> Kernel:
    """Replace group_sum, group_max and group_min. `subgroup_width` is None where the target does not fix it."""
    lowering = _Lower(kernel, subgroup_width if subgroup else None)
    lowered = lowering.kernel(kernel)
    return replace(lowered, shared=(*kernel.shared, *lowering.arrays))


class _Lower(Rewriter):
    def __init__(self, kernel: Kernel, width: int | None) -> None:
        super().__init__()
        self.arrays: list[SharedArray] = []
        self._taken = {array.name for array in kernel.shared}
        self._first = len(kernel.shared)
        self._size = kernel.group_size
        self._width = width
        self._turns: dict[DType, int] = {}
        self._line = ""

    def visit(self, op: Op) -> None:
        if op.kind not in _JOIN:
            self.out.append(op)
            return
        self._line = op.line
        value = op.operands[0]
        if self._width is not None:
            value = self._op(op.kind.replace("group", "subgroup"), (value,), value.type)
        if self._width is None or self._size > self._width:
            value = self._through_shared(op, value)
        self.replaced[op.result] = value

    def _through_shared(self, op: Op, value: Val) -> Val:
        if self._size == 1:
            return value
        outermost = self.depth == 1
        turn = self._turns.get(value.dtype, 0)
        if outermost:
            self._turns[value.dtype] = 1 - turn
        array = self._array(value.dtype, str(turn) if outermost else "nested")
        reduce = self._tree if self._width is None else self._by_subgroups
        result = reduce(_JOIN[op.kind], array, value)
        if not outermost:
            self._effect("barrier", ())
        return result

    def _array(self, dtype: DType, turn: str) -> int:
        name = f"group_{dtype}_{turn}"
        while name in self._taken:
            name += "_"
        count = self._size if self._width is None else -(-self._size // self._width)
        array = SharedArray(name, dtype, count)
        if array not in self.arrays:
            self.arrays.append(array)
        return self._first + self.arrays.index(array)

    def _by_subgroups(self, join: str, array: int, value: Val) -> Val:
        assert self._width is not None
        first = self._op("eq", (self._op("lane_id", (), _I32), self._const(0)), KType(DType.BOOL))
        place = self._op("subgroup_id", (), _I32)
        self._if(first, [Op("shared_store", (place, value), (), {"array": array}, (), self._line)])
        self._effect("barrier", ())
        result = self._shared_load(array, self._const(0), value.type)
        for subgroup in range(1, -(-self._size // self._width)):
            part = self._shared_load(array, self._const(subgroup), value.type)
            result = self._op(join, (result, part), value.type)
        return result

    def _tree(self, join: str, array: int, value: Val) -> Val:
        thread = self._op("thread_id", (), _I32)
        self._effect("shared_store", (thread, value), array=array)
        half = 1 << (self._size - 1).bit_length() - 1
        while half:
            self._effect("barrier", ())
            # Where the size is no power of two the first round has fewer pairs.
            pairs = min(half, self._size - half)
            below = self._op("lt", (thread, self._const(pairs)), KType(DType.BOOL))
            outer, self.out = self.out, []
            mine = self._shared_load(array, thread, value.type)
            other = self._op("add", (thread, self._const(half)), _I32)
            theirs = self._shared_load(array, other, value.type)
            joined = self._op(join, (mine, theirs), value.type)
            self._effect("shared_store", (thread, joined), array=array)
            ops, self.out = self.out, outer
            self._if(below, ops)
            half //= 2
        self._effect("barrier", ())
        return self._shared_load(array, self._const(0), value.type)

    def _const(self, number: int) -> Val:
        return self._op("const", (), _I32, value=number)

    def _shared_load(self, array: int, index: Val, type: KType) -> Val:
        return self._op("shared_load", (index,), type, array=array)

    def _op(self, kind: str, operands: tuple[Val, ...], type: KType, **attrs: int) -> Val:
        op = Op(kind, operands, (Val(type),), attrs, (), self._line)
        self.out.append(op)
        return op.result

    def _effect(self, kind: str, operands: tuple[Val, ...], **attrs: int) -> None:
        self.out.append(Op(kind, operands, (), attrs, (), self._line))

    def _if(self, condition: Val, ops: list[Op]) -> None:
        end = Op("yield", (), (), {}, (), self._line)
        blocks = (Block((), (*ops, end)), Block((), (end,)))
        self.out.append(Op("if", (condition,), (), {}, blocks, self._line))
