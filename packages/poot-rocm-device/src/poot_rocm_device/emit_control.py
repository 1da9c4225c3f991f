"""HIP rules of control flow. What a loop carries, and what an if gives, are variables: every path ends in setting
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.kernel.ir import Op, Val
from poot_rocm_device.emitter import Emitter, assign, lane_types
from poot_rocm_device.rules import RULES


def _set(e: Emitter, targets: Sequence[Val], sources: Sequence[Val]) -> None:
    """All of these values into the variables of those."""
    types = [type for value in targets for type in lane_types(value.type)]
    assign(e, types, [n for value in targets for n in e.lanes(value)], [n for value in sources for n in e.lanes(value)])


def _carry(e: Emitter, results: Sequence[Val], initial: Sequence[Val]) -> None:
    for value in results:
        e.variables(value)
    _set(e, results, initial)


def _enter(e: Emitter, args: Sequence[Val], results: Sequence[Val]) -> None:
    for arg, result in zip(args, results, strict=True):
        e.alias(arg, e.lanes(result))


@RULES.rule("for")
def _for(e: Emitter, op: Op) -> None:
    low, high, step = (e.scalar(value) for value in op.operands[:3])
    (body,) = op.blocks
    _carry(e, op.results, op.operands[3:])
    index = e.fresh()
    e.alias(body.args[0], (index,))
    with e.braces(f"for (i32 {index} = {low}; {index} < {high}; {index} += {step})"):
        _enter(e, body.args[1:], op.results)
        _set(e, op.results, e.block(body))


@RULES.rule("while")
def _while(e: Emitter, op: Op) -> None:
    head, body = op.blocks
    _carry(e, op.results, op.operands)
    with e.braces("for (;;)"):
        e.line("POOT_ROUND()")
        _enter(e, head.args, op.results)
        (condition,) = e.block(head)
        e.line(f"if (!{e.scalar(condition)}) break;")
        _enter(e, body.args, op.results)
        _set(e, op.results, e.block(body))


@RULES.rule("if")
def _if(e: Emitter, op: Op) -> None:
    for value in op.results:
        e.variables(value)
    then, other = op.blocks
    with e.braces(f"if ({e.scalar(op.operands[0])})"):
        _set(e, op.results, e.block(then))
    if len(other.ops) > 1 or op.results:
        with e.braces("else"):
            _set(e, op.results, e.block(other))
