"""HIP rules of buffers, shared memory, atomics, barriers and checks."""

from __future__ import annotations

from poot_executor.kernel.ir import Access, Op, Val
from poot_rocm_device.emitter import Emitter, type_name
from poot_rocm_device.rules import RULES


@RULES.rule("length")
def _length(e: Emitter, op: Op) -> None:
    e.define(op, [f"(i32)n{op.attrs['buffer']}"])


def _take(e: Emitter, result: Val, address: str, *, constant: bool) -> None:
    """A result's lanes from an address: one access whatever the width."""
    width, type = result.type.width, type_name(result.type)
    if width == 1:
        e.alias(result, (e.result(type, f"*({address})"),))
        return
    name = e.result(type, f"*({'const ' if constant else ''}{type} *)({address})")
    e.alias(result, tuple(f"{name}.{lane}" for lane in "xyzw"[:width]))


def _put(e: Emitter, value: Val, address: str) -> str:
    pointer = f"({type_name(value.type)} *)" if value.type.width > 1 else ""
    return f"*{pointer}({address}) = {e.vector(value)};"


@RULES.rule("load")
def _load(e: Emitter, op: Op) -> None:
    place, width, index = op.attrs["buffer"], op.result.type.width, op.operands[0]
    constant = e.kernel.params[place].access is Access.READ
    if e.inside(place, index, width):
        address = e.element(place, index)
    else:
        address = f"poot_at(p{place}, poot_near({e.scalar(index)}, {e.last(place, width)}))"
    _take(e, op.result, address, constant=constant)


def _guarded(e: Emitter, place: int, index: Val, width: int) -> tuple[str, str]:
    """The condition under which something may happen in a buffer, "" where it always may, and the address. An index
    below 0 is a large one, unsigned."""
    if e.inside(place, index, width):
        return "", e.element(place, index)
    index_text = f"(u32){e.scalar(index)}"
    return f"{index_text} < {e.end(place, width)}", f"poot_at(p{place}, {index_text})"


@RULES.rule("store")
def _store(e: Emitter, op: Op) -> None:
    index, value = op.operands
    condition, address = _guarded(e, op.attrs["buffer"], index, value.type.width)
    e.line(f"{f'if ({condition}) ' if condition else ''}{_put(e, value, address)}")


def _shared(e: Emitter, array: int, index: Val, width: int) -> tuple[str, str, int]:
    """The condition that an access of shared memory is in range, "" where it is known to be, the index, and the end."""
    known, end = e.range_of(index), e.kernel.shared[array].count // width * width
    text = e.scalar(index)
    inside = known.low >= 0 and known.high + width <= e.kernel.shared[array].count
    return "" if inside else f"(u32){text} < {end}u", text, end


@RULES.rule("shared_load")
def _shared_load(e: Emitter, op: Op) -> None:
    array, width = op.attrs["array"], op.result.type.width
    condition, index, end = _shared(e, array, op.operands[0], width)
    if condition:
        index = f"poot_near({index}, {end - width}u)"
    _take(e, op.result, f"s{array} + {index}", constant=False)


@RULES.rule("shared_store")
def _shared_store(e: Emitter, op: Op) -> None:
    array, (where, value) = op.attrs["array"], op.operands
    condition, index, _ = _shared(e, array, where, value.type.width)
    e.line(f"{f'if ({condition}) ' if condition else ''}{_put(e, value, f's{array} + {index}')}")


@RULES.rule("atomic")
def _atomic(e: Emitter, op: Op) -> None:
    index, value = op.operands
    if "buffer" in op.attrs:
        condition, address = _guarded(e, op.attrs["buffer"], index, 1)
    else:
        condition, where, _ = _shared(e, op.attrs["array"], index, 1)
        address = f"s{op.attrs['array']} + {where}"
    # The type of the value decides which function it is: a literal's may be another.
    call = f"poot_atomic_{op.attrs['operation']}({address}, ({value.dtype}){e.scalar(value)})"
    if op.result not in e.uses:
        e.alias(op.result, ("0",))
        e.line(f"{f'if ({condition}) ' if condition else ''}{call};")
    elif condition:
        # Not a choice of two expressions, whose other side the compiler would have to keep from happening.
        (old,) = e.variables(op.result)
        e.line(f"{old} = 0;")
        e.line(f"if ({condition}) {old} = {call};")
    else:
        e.define(op, [call])


@RULES.rule("barrier")
def _barrier(e: Emitter, op: Op) -> None:
    """It orders shared and buffer memory among the group's threads."""
    e.line("poot_barrier();")


@RULES.rule("check")
def _check(e: Emitter, op: Op) -> None:
    """The host finds kernel and code in its own memory once the trap has ended everything."""
    word = e.kernel.identity << 8 | op.attrs["code"]
    e.line(f"if (!{e.scalar(op.operands[0])}) poot_fail(fault, {word:#010x}u);")
