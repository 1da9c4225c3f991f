"""PTX rules of asynchronous copies into shared memory, and of products of warpgroups (`wgmma`).

A matrix descriptor says where a tile begins, in units of 16 bytes, that its groups of eight lines are 1,024 bytes
apart, and that its vectors are swizzled over 128 bytes. What comes next in the depth is 32 bytes further on.
"""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op, Val
from poot_executor.kernel.warpgroups import COLUMNS, DEPTH, ROWS
from poot_ptx_device.emit_memory import guarded_address, shared_address, shared_guard
from poot_ptx_device.emitter import Emitter
from poot_ptx_device.operands import Lanes, is_literal
from poot_ptx_device.rules import RULES

STEP = 16
"""Depth of one instruction."""
STEP_UNITS = STEP * 2 // 16
"""Units of 16 bytes between the steps of a line."""
DESCRIPTOR = 1 << 62 | (1024 >> 4) << 32 | 1 << 16
"""Swizzled over 128 bytes, groups of lines 1,024 bytes apart; the offset in a line is not used."""
ADDRESS_BITS = 0x3FFFF


@RULES.rule("shared_copy")
def _shared_copy(e: Emitter, op: Op) -> None:
    place, word = op.operands
    source = guarded_address(e, op.attrs["buffer"], 4, word)
    guard = shared_guard(e, op.attrs["array"], place, 4)
    e.line(f"{guard}cp.async.cg.shared.global {shared_address(e, op.attrs['array'], e.scalar(place))}, {source}, 16")


@RULES.rule("copy_commit")
def _copy_commit(e: Emitter, op: Op) -> None:
    e.line("cp.async.commit_group")


@RULES.rule("copy_wait")
def _copy_wait(e: Emitter, op: Op) -> None:
    e.line(f"cp.async.wait_group {op.attrs['pending']}")


@RULES.rule("warpgroup_mma")
def _warpgroup_mma(e: Emitter, op: Op) -> None:
    a, c = (_descriptor(e, op.attrs["array"], value) for value in op.operands[:2])
    for value, result in zip(op.operands[2:], op.results, strict=True):
        _same_registers(e, op, value, result)
    sums = ", ".join(lane for result in op.results for lane in e.lanes(result))
    half, columns = op.attrs["half"], COLUMNS * len(op.results)
    yes = e.once(("true", 0, 0), "pred", "setp.eq.u32 {}, 0, 0")
    e.line("wgmma.fence.sync.aligned")
    for step in range(DEPTH // STEP):
        if step:
            a, c = (e.result("b64", f"add.s64 {{}}, {d}, {STEP_UNITS}") for d in (a, c))
        e.line(
            f"wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{STEP}.f32.{half}.{half} "
            f"{{{sums}}}, {a}, {c}, {yes}, 1, 1, 0, 0"
        )
    e.line("wgmma.commit_group.sync.aligned")
    e.line(f"wgmma.wait_group.sync.aligned {e.flights.begin(op)}")


def _descriptor(e: Emitter, array: int, index: Val) -> str:
    at = e.result("b32", f"mad.lo.u32 {{}}, {e.scalar(index)}, 4, {e.shared_start(array)}")
    bits = e.result("b32", f"and.b32 {{}}, {at}, {ADDRESS_BITS}")
    units = e.result("b64", f"cvt.u64.u32 {{}}, {e.result('b32', f'shr.u32 {{}}, {bits}, 4')}")
    return e.result("b64", f"or.b64 {{}}, {units}, {DESCRIPTOR}")


def _same_registers(e: Emitter, op: Op, value: Val, result: Val) -> None:
    """The sums stay where they are, as long as nothing else needs what was there."""
    lanes: Lanes = e.lanes(value)
    if e.ends_in(value, op) and not any(is_literal(lane) for lane in lanes):
        e.alias(result, lanes)
        return
    for target, lane in zip(e.registers(result), lanes, strict=True):
        e.move(DType.F32, target, lane)
