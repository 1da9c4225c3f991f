"""PTX rules of control flow. What a loop carries, and what an if gives, keeps its registers: every path ends in moves
to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op, Val
from poot_ptx_device.emitter import Emitter
from poot_ptx_device.instructions import moves
from poot_ptx_device.rules import RULES


def _assign(e: Emitter, targets: Sequence[Val], sources: Sequence[Val]) -> None:
    """All of these values into the registers of those."""
    dtypes = [value.dtype for value in targets for _ in range(value.type.width)]
    moves(e, dtypes, [r for value in targets for r in e.lanes(value)], [r for value in sources for r in e.lanes(value)])


def _carry(e: Emitter, results: Sequence[Val], initial: Sequence[Val]) -> None:
    for value in results:
        e.registers(value)
    _assign(e, results, initial)


def _enter(e: Emitter, args: Sequence[Val], results: Sequence[Val]) -> None:
    for arg, result in zip(args, results, strict=True):
        e.alias(arg, e.lanes(result))


@RULES.rule("for")
def _for(e: Emitter, op: Op) -> None:
    low, high, step = (e.scalar(value) for value in op.operands[:3])
    uniform = all(e.uniformity.value(value) for value in op.operands[:3])
    (body,) = op.blocks
    _carry(e, op.results, op.operands[3:])
    (index,) = e.registers(body.args[0])
    e.move(DType.I32, index, low)
    again, end = e.label(), e.label()
    if not e.ranges.surely_runs(op):
        e.branch(end, e.result("pred", f"setp.ge.s32 {{}}, {index}, {high}"), uniform=uniform)
    e.place(again)
    _enter(e, body.args[1:], op.results)
    _assign(e, op.results, e.block(body, op))
    e.line(f"add.s32 {index}, {index}, {step}")
    e.branch(again, e.result("pred", f"setp.lt.s32 {{}}, {index}, {high}"), uniform=uniform)
    e.place(end)


@RULES.rule("while")
def _while(e: Emitter, op: Op) -> None:
    head, body = op.blocks
    _carry(e, op.results, op.operands)
    again, end = e.label(), e.label()
    e.place(again)
    _enter(e, head.args, op.results)
    (condition,) = e.block(head)
    e.branch(end, f"!{e.held(DType.BOOL, e.scalar(condition))}", uniform=e.uniformity.value(condition))
    _enter(e, body.args, op.results)
    _assign(e, op.results, e.block(body))
    e.branch(again, uniform=True)
    e.place(end)


@RULES.rule("if")
def _if(e: Emitter, op: Op) -> None:
    (condition,) = op.operands
    uniform = e.uniformity.value(condition)
    for value in op.results:
        e.registers(value)
    then, other = op.blocks
    otherwise, end = e.label(), e.label()
    has_other = len(other.ops) > 1 or bool(op.results)
    e.branch(otherwise if has_other else end, f"!{e.held(DType.BOOL, e.scalar(condition))}", uniform=uniform)
    _assign(e, op.results, e.block(then))
    if has_other:
        e.branch(end, uniform=True)
        e.place(otherwise)
        _assign(e, op.results, e.block(other))
    e.place(end)
