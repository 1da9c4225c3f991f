"""PTX rules of buffers, shared memory, atomics, barriers and checks."""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op, Val
from poot_ptx_device.emitter import Emitter
from poot_ptx_device.operands import is_literal, register_class, suffix
from poot_ptx_device.rules import RULES

I32 = DType.I32


def _vectors(width: int) -> str:
    return "" if width == 1 else f".v{width}"


def _braced(lanes: tuple[str, ...]) -> str:
    return lanes[0] if len(lanes) == 1 else "{" + ", ".join(lanes) + "}"


def _guard(e: Emitter, place: int, width: int, index: Val) -> tuple[str, str]:
    """ "@%p ", where something must only happen inside the buffer, and the address. An index below 0 is a large one,
    unsigned."""
    if e.inside(place, index, width):
        return "", e.element(place, index)
    guard = _compared(e, place, width, e.scalar(index)) if e.guarded else ""
    return guard, e.computed(place, e.scalar(index))


def _compared(e: Emitter, place: int, width: int, index: str) -> str:
    return f"@{e.result('pred', f'setp.lt.u32 {{}}, {e.held(I32, index)}, {e.end(place, width)}')} "


@RULES.rule("length")
def _length(e: Emitter, op: Op) -> None:
    e.alias(op.result, (e.count(op.attrs["buffer"]),))


def guarded_address(e: Emitter, place: int, width: int, index: Val) -> str:
    """The address that a load reads, in brackets: of the nearest elements that there are."""
    if e.inside(place, index, width):
        return e.element(place, index)
    found = e.scalar(index)
    if e.guarded:
        found = e.result("b32", f"min.u32 {{}}, {found}, {e.last(place, width)}")
    return e.computed(place, found)


@RULES.rule("load")
def _load(e: Emitter, op: Op) -> None:
    place, width = op.attrs["buffer"], op.result.type.width
    # Without L1::no_allocate, which on an H200 made packed weights five times as slow.
    path = ".nc" if e.reads_only(place) else ""
    address = guarded_address(e, place, width, op.operands[0])
    lanes = e.registers(op.result)
    e.line(f"ld.global{path}{_vectors(width)}.{register_class(op.result.dtype)} {_braced(lanes)}, {address}")


@RULES.rule("store")
def _store(e: Emitter, op: Op) -> None:
    place, (index, value) = op.attrs["buffer"], op.operands
    width = value.type.width
    lanes = tuple(e.held(value.dtype, lane) for lane in e.lanes(value))
    guard, address = _guard(e, place, width, index)
    e.line(f"{guard}st.global{_vectors(width)}.{register_class(value.dtype)} {address}, {_braced(lanes)}")


def _inside(e: Emitter, array: int, index: Val, width: int) -> bool:
    """Whether an access of shared memory is known to be in range."""
    known = e.range_of(index)
    return known.low >= 0 and known.high + width <= e.kernel.shared[array].count


def shared_address(e: Emitter, array: int, index: str) -> str:
    """The address of an element of shared memory, in brackets."""
    name, offset = e.shared_place(array)
    if is_literal(index):
        return f"[{name}+{offset + 4 * int(index)}]"
    start = e.shared_start(array)
    return f"[{e.result('b32', f'mad.lo.u32 {{}}, {index}, 4, {start}')}]"


def shared_guard(e: Emitter, array: int, index: Val, width: int) -> str:
    """ "@%p ", where something must only happen inside the array."""
    if _inside(e, array, index, width):
        return ""
    bound = e.kernel.shared[array].count // width * width
    return f"@{e.result('pred', f'setp.lt.u32 {{}}, {e.held(I32, e.scalar(index))}, {bound}')} "


@RULES.rule("shared_load")
def _shared_load(e: Emitter, op: Op) -> None:
    array, index = op.attrs["array"], e.scalar(op.operands[0])
    width = op.result.type.width
    if not _inside(e, array, op.operands[0], width):
        index = e.result("b32", f"min.u32 {{}}, {index}, {e.kernel.shared[array].count // width * width - width}")
    address = shared_address(e, array, index)
    lanes = e.registers(op.result)
    e.line(f"ld.shared{_vectors(len(lanes))}.{register_class(op.result.dtype)} {_braced(lanes)}, {address}")


@RULES.rule("shared_store")
def _shared_store(e: Emitter, op: Op) -> None:
    array, index, value = op.attrs["array"], op.operands[0], op.operands[1]
    lanes = tuple(e.held(value.dtype, lane) for lane in e.lanes(value))
    guard, address = shared_guard(e, array, index, len(lanes)), shared_address(e, array, e.scalar(index))
    e.line(f"{guard}st.shared{_vectors(len(lanes))}.{register_class(value.dtype)} {address}, {_braced(lanes)}")


@RULES.rule("atomic")
def _atomic(e: Emitter, op: Op) -> None:
    index, value = op.operands
    register, dtype = e.held(value.dtype, e.scalar(value)), value.dtype
    operation = op.attrs["operation"]
    # Addition and bits are the same for both signs, and PTX names them so.
    type = {"add": "u32", "or": "b32"}.get(operation, suffix(dtype))
    if "buffer" in op.attrs:
        place = op.attrs["buffer"]
        space = "global"
        guard, address = _guard(e, place, 1, index)
    else:
        place = op.attrs["array"]
        space, guard, address = "shared", shared_guard(e, place, index, 1), shared_address(e, place, e.scalar(index))
    (old,) = e.registers(op.result)
    if op.result not in e.uses:
        e.line(f"{guard}red.{space}.{operation}.{type} {address}, {register}")
        return
    if guard:
        e.move(dtype, old, "0")
    e.line(f"{guard}atom.{space}.{operation}.{type} {old}, {address}, {register}")


@RULES.rule("barrier")
def _barrier(e: Emitter, op: Op) -> None:
    """It orders shared and global memory among the group's threads, and what they wrote before products."""
    if e.multiplies:
        e.line("fence.proxy.async.shared::cta")
    e.line("bar.sync 0")


@RULES.rule("check")
def _check(e: Emitter, op: Op) -> None:
    """The host finds kernel and code in its own memory once the trap has ended everything."""
    holds = e.held(DType.BOOL, e.scalar(op.operands[0]))
    fine = e.label()
    e.branch(fine, holds)
    e.line(f"st.volatile.global.u32 [{e.fault()}], {e.kernel.identity << 8 | op.attrs['code']}")
    e.line("membar.sys")
    e.line("trap")
    e.place(fine)
