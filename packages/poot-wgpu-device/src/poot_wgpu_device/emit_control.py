"""WGSL rules of control flow. What a loop carries is a `var`; each round starts by copying it to `let`s, so that the
assignments at its end may come in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from poot_executor.kernel.ir import Op, Val
from poot_wgpu_device.emit import Emitter, type_name
from poot_wgpu_device.emit_arith import Rule


def _carry(e: Emitter, results: Sequence[Val], initial: Sequence[Val]) -> list[str]:
    names = []
    for result, start in zip(results, initial, strict=True):
        text = e.operand(start)
        name = e.fresh(result)
        e.line(f"var {name}: {type_name(result.type)} = {text};")
        names.append(name)
    return names


def _enter(e: Emitter, args: Sequence[Val], names: Sequence[str]) -> None:
    for arg, name in zip(args, names, strict=True):
        e.line(f"let {e.fresh(arg)} = {name};")


def _assign(e: Emitter, names: Sequence[str], values: Sequence[Val]) -> None:
    for name, value in zip(names, values, strict=True):
        e.line(f"{name} = {e.operand(value)};")


def _for(e: Emitter, op: Op) -> None:
    low, high, step = (e.operand(value) for value in op.operands[:3])
    names = _carry(e, op.results, op.operands[3:])
    (body,) = op.blocks
    index = e.fresh(body.args[0])
    start = f"var {index}: i32 = {low};"
    if e.watched:
        e.line(start)
    with e.braces(f"for ({';' if e.watched else start} {index} < {high}; {index} += {step})"):
        _enter(e, body.args[1:], names)
        _assign(e, names, e.block(body))
    if e.watched:
        e.line(f"cut_short = cut_short || {index} < {high};")


def _while(e: Emitter, op: Op) -> None:
    names = _carry(e, op.results, op.operands)
    head, body = op.blocks
    more = e.named_var("bool", "true") if e.watched else ""
    with e.braces("loop"):
        _enter(e, head.args, names)
        (condition,) = e.block(head)
        if e.watched:
            e.line(f"{more} = {e.operand(condition)};")
        e.line(f"if (!{e.operand(condition)}) {{ break; }}")
        for arg, same in zip(body.args, head.args, strict=True):
            e.alias(arg, e.operand(same))
        _assign(e, names, e.block(body))
    if e.watched:
        e.line(f"cut_short = cut_short || {more};")


def _if(e: Emitter, op: Op) -> None:
    names = []
    for result in op.results:
        names.append(e.fresh(result))
        e.line(f"var {names[-1]}: {type_name(result.type)};")
    then, other = op.blocks
    with e.braces(f"if ({e.operand(op.operands[0])})"):
        _assign(e, names, e.block(then))
    if len(other.ops) > 1 or names:
        with e.braces("else"):
            _assign(e, names, e.block(other))


CONTROL: Mapping[str, Rule] = MappingProxyType({"for": _for, "while": _while, "if": _if})
