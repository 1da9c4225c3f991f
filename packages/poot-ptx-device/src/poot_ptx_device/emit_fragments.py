"""PTX rules of packed halves and matrix fragments."""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op
from poot_ptx_device.emitter import Emitter
from poot_ptx_device.rules import RULES

F32, U32 = DType.F32, DType.U32


@RULES.rule("pack_bf16")
def _pack_bf16(e: Emitter, op: Op) -> None:
    low, high = (e.held(F32, e.scalar(value)) for value in op.operands)
    e.alias(op.result, (e.result("b32", f"cvt.rn.bf16x2.f32 {{}}, {high}, {low}"),))


@RULES.rule("packed_fma")
def _packed_fma(e: Emitter, op: Op) -> None:
    operands = ", ".join(e.held(U32, e.scalar(value)) for value in op.operands)
    e.alias(op.result, (e.result("b32", f"fma.rn.{op.attrs['half']}x2 {{}}, {operands}"),))


@RULES.rule("mma")
def _mma(e: Emitter, op: Op) -> None:
    a, b, c = (tuple(e.held(value.dtype, lane) for lane in e.lanes(value)) for value in op.operands)
    half, d = op.attrs["half"], e.registers(op.result)
    fragments = ", ".join("{" + ", ".join(lanes) + "}" for lanes in (d, a, b, c))
    e.line(f"mma.sync.aligned.m16n8k16.row.col.f32.{half}.{half}.f32 {fragments}")
