"""PTX rules across the lanes of a warp. A group whose threads are no whole warps has a last warp of fewer lanes."""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op
from poot_ptx_device.caps import WARP
from poot_ptx_device.emit_arithmetic import instruction, select
from poot_ptx_device.emitter import Emitter
from poot_ptx_device.operands import register_class, suffix
from poot_ptx_device.rules import RULES

_ALL = "0xffffffff"
_JOIN = {"subgroup_sum": "add", "subgroup_max": "max", "subgroup_min": "min"}


def _rest(e: Emitter) -> int:
    """Lanes of the last warp where they are fewer than 32, else 0."""
    return e.kernel.group_size % WARP


def _members(e: Emitter) -> str:
    """The mask of the warp's lanes."""
    rest = _rest(e)
    if not rest:
        return _ALL
    few = f"{(1 << rest) - 1:#x}"
    if e.kernel.group_size < WARP:
        return few
    thread = e.once(("tid", 0, 0), "b32", "mov.u32 {}, %tid.x")
    in_last = e.once(("last warp", 0, 0), "pred", f"setp.ge.u32 {{}}, {thread}, {e.kernel.group_size - rest}")
    return e.once(("members", 0, 0), "b32", f"selp.b32 {{}}, {few}, {_ALL}, {in_last}")


def _shuffled(e: Emitter, dtype: DType, mode: str, value: str, lane_or_mask: str) -> str:
    name = register_class(dtype)
    return e.result(name, f"shfl.sync.{mode}.b32 {{}}, {value}, {lane_or_mask}, {WARP - 1:#x}, {_members(e)}")


@RULES.rule("subgroup_sum", "subgroup_max", "subgroup_min")
def _reduce(e: Emitter, op: Op) -> None:
    dtype, join = op.result.dtype, _JOIN[op.kind]
    value = e.held(dtype, e.scalar(op.operands[0]))
    rest = _rest(e)
    if not rest and dtype is not DType.F32:
        e.alias(op.result, (e.result("b32", f"redux.sync.{join}.{suffix(dtype)} {{}}, {value}, {_ALL}"),))
        return
    size = rest if e.kernel.group_size < WARP else WARP
    if not rest or (size & (size - 1) == 0 and e.kernel.group_size < WARP):
        # Each lane adds the same pairs, so that all get the same bits.
        distance = size // 2
        while distance:
            value = instruction(e, join, dtype, [value, _shuffled(e, dtype, "bfly", value, str(distance))])
            distance //= 2
    else:
        value = _one_by_one(e, dtype, join, value, size)
    e.alias(op.result, (value,))


def _one_by_one(e: Emitter, dtype: DType, join: str, value: str, size: int) -> str:
    """Every lane in turn, those that the warp lacks left out."""
    members = _members(e)
    total = _shuffled(e, dtype, "idx", value, "0")
    for place in range(1, size):
        joined = instruction(e, join, dtype, [total, _shuffled(e, dtype, "idx", value, str(place))])
        if place < _rest(e):
            total = joined
        else:
            bit = e.result("b32", f"and.b32 {{}}, {members}, {1 << place}")
            there = e.result("pred", f"setp.ne.u32 {{}}, {bit}, 0")
            total = select(e, dtype, there, joined, total)
    return total


@RULES.rule("subgroup_shuffle")
def _shuffle(e: Emitter, op: Op) -> None:
    value, source = op.operands
    e.alias(op.result, (_shuffled(e, value.dtype, "idx", e.held(value.dtype, e.scalar(value)), e.scalar(source)),))


@RULES.rule("subgroup_shuffle_xor")
def _shuffle_xor(e: Emitter, op: Op) -> None:
    (value,) = op.operands
    register = e.held(value.dtype, e.scalar(value))
    e.alias(op.result, (_shuffled(e, value.dtype, "bfly", register, str(op.attrs["mask"])),))
