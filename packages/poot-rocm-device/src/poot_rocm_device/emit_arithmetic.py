"""HIP rules of values and arithmetic, a lane at a time."""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op
from poot_rocm_device.emit_scalar import ELEMENTWISE, converted, expression, literal_of
from poot_rocm_device.emitter import Emitter
from poot_rocm_device.routine_text import ROUTINES
from poot_rocm_device.rules import RULES

I32, U32 = DType.I32, DType.U32


@RULES.rule("const")
def _const(e: Emitter, op: Op) -> None:
    e.alias(op.result, (literal_of(op.result.dtype, op.attrs["value"]),))


@RULES.rule("group_id")
def _group_id(e: Emitter, op: Op) -> None:
    axis = op.attrs["axis"]
    e.alias(op.result, (e.once(f"group{axis}", f"const i32 group{axis} = poot_group<{axis}>();"),))


def thread(e: Emitter) -> str:
    """The name of the thread's place in its group."""
    return e.once("thread", "const i32 thread = poot_thread();")


@RULES.rule("thread_id")
def _thread_id(e: Emitter, op: Op) -> None:
    e.alias(op.result, (thread(e),))


@RULES.rule("lane_id")
def _lane_id(e: Emitter, op: Op) -> None:
    """Groups have one axis, so waves are runs of threads."""
    e.alias(op.result, (e.once("lane", f"const i32 lane = {thread(e)} & {e.wave - 1};"),))


@RULES.rule("subgroup_id")
def _subgroup_id(e: Emitter, op: Op) -> None:
    e.alias(op.result, (e.once("wave", f"const i32 wave = {thread(e)} / {e.wave};"),))


@RULES.rule("subgroup_size")
def _subgroup_size(e: Emitter, op: Op) -> None:
    e.alias(op.result, (str(e.wave),))


@RULES.rule(*sorted(ELEMENTWISE - {"div", "rem"}))
def _elementwise(e: Emitter, op: Op) -> None:
    dtype = op.operands[-1 if op.kind == "select" else 0].dtype
    e.define(op, [expression(op.kind, dtype, lanes) for lanes in zip(*e.operands(op), strict=True)])


@RULES.rule("div", "rem")
def _divide(e: Emitter, op: Op) -> None:
    dtype, divisor = op.operands[0].dtype, e.constant(op.operands[1])
    lanes = zip(*e.operands(op), strict=True)
    if dtype not in (I32, U32):
        e.define(op, [expression(op.kind, dtype, pair) for pair in lanes])
        return
    sign = "/" if op.kind == "div" else "%"
    # Unsigned division is shorter, and the same where neither operand is negative.
    unsigned = dtype is I32 and op.result.type.width == 1 and all(e.range_of(v).low >= 0 for v in op.operands)
    if divisor is not None and divisor > 0:
        e.define(op, [f"(i32)((u32){a} {sign} {b}u)" if unsigned else f"{a} {sign} {b}" for a, b in lanes])
    elif unsigned:
        e.define(op, [f"(i32)poot_{op.kind}((u32){a}, (u32){b})" for a, b in lanes])
    else:
        e.define(op, [expression(op.kind, dtype, pair) for pair in lanes])


@RULES.rule(*ROUTINES)
def _routine(e: Emitter, op: Op) -> None:
    e.use(op.kind)
    e.define(op, [f"poot_{op.kind}({', '.join(lanes)})" for lanes in zip(*e.operands(op), strict=True)])


@RULES.rule("cast")
def _cast(e: Emitter, op: Op) -> None:
    source, target = op.operands[0].dtype, op.result.dtype
    e.define(op, [converted(source, target, lane) for lane in e.lanes(op.operands[0])])


@RULES.rule("bitcast")
def _bitcast(e: Emitter, op: Op) -> None:
    e.define(op, [f"poot_bits<{op.result.dtype}>({lane})" for lane in e.lanes(op.operands[0])])


@RULES.rule("dot4")
def _dot4(e: Emitter, op: Op) -> None:
    e.define(op, [f"poot_dot4({', '.join(e.scalar(value) for value in op.operands)})"])


@RULES.rule("vector")
def _vector(e: Emitter, op: Op) -> None:
    e.alias(op.result, tuple(e.scalar(value) for value in op.operands))


@RULES.rule("extract")
def _extract(e: Emitter, op: Op) -> None:
    e.alias(op.result, (e.lanes(op.operands[0])[op.attrs["lane"]],))
