"""WGSL rules of memory, barriers, subgroups and checks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from poot_executor.kernel.ir import Op
from poot_wgpu_device.emit import Emitter, type_name
from poot_wgpu_device.emit_arith import Rule


def _length(e: Emitter, op: Op) -> None:
    e.define(op, f"i32(arrayLength(&{e.buffer(op.attrs['buffer'])}))")


def _elements(index: str, width: int) -> list[str]:
    return [index if k == 0 else f"{index} + {k}i" for k in range(width)]


def _load(e: Emitter, op: Op) -> None:
    place, (index,), type = op.attrs["buffer"], (e.operand(op.operands[0]),), op.result.type
    name = e.buffer(place)
    if place in e.accesses.vector_buffers:
        e.define(op, f"{name}[{index} >> 2u]")
    elif place in e.accesses.atomic_buffers:
        loads = [f"atomicLoad(&{name}[{i}])" for i in _elements(index, type.width)]
        e.define(op, loads[0] if type.width == 1 else f"{type_name(type)}({', '.join(loads)})")
    elif type.width == 1:
        e.define(op, f"{name}[{index}]")
    else:
        e.define(op, f"{type_name(type)}({', '.join(f'{name}[{i}]' for i in _elements(index, type.width))})")


def _store(e: Emitter, op: Op) -> None:
    place, index, value = op.attrs["buffer"], e.operand(op.operands[0]), e.operand(op.operands[1])
    name, width = e.buffer(place), op.operands[1].type.width
    if place in e.accesses.vector_buffers:
        e.line(f"{name}[{index} >> 2u] = {value};")
        return
    for k, i in enumerate(_elements(index, width)):
        part = value if width == 1 else f"{value}.{'xyzw'[k]}"
        e.line(
            f"atomicStore(&{name}[{i}], {part});" if place in e.accesses.atomic_buffers else f"{name}[{i}] = {part};"
        )


def _shared_load(e: Emitter, op: Op) -> None:
    place, index = op.attrs["array"], e.operand(op.operands[0])
    parts = [f"{e.array(place)}[{i}]" for i in _elements(index, op.result.type.width)]
    parts = [f"atomicLoad(&{part})" if place in e.accesses.atomic_arrays else part for part in parts]
    e.define(op, parts[0] if len(parts) == 1 else f"{type_name(op.result.type)}({', '.join(parts)})")


def _shared_store(e: Emitter, op: Op) -> None:
    place, index, value = op.attrs["array"], e.operand(op.operands[0]), e.operand(op.operands[1])
    width = op.operands[1].type.width
    for k, i in enumerate(_elements(index, width)):
        part, where = value if width == 1 else f"{value}.{'xyzw'[k]}", f"{e.array(place)}[{i}]"
        e.line(f"atomicStore(&{where}, {part});" if place in e.accesses.atomic_arrays else f"{where} = {part};")


def _atomic(e: Emitter, op: Op) -> None:
    name = e.buffer(op.attrs["buffer"]) if "buffer" in op.attrs else e.array(op.attrs["array"])
    index, value = (e.operand(operand) for operand in op.operands)
    e.define(op, f"atomic{op.attrs['operation'].capitalize()}(&{name}[{index}], {value})")


def _barrier(e: Emitter, op: Op) -> None:
    # Each is an execution barrier by itself and costs one: emit only what the kernel's memory needs.
    if e.kernel.shared or not e.accesses.exchanges:
        e.line("workgroupBarrier();")
    if e.accesses.exchanges:
        e.line("storageBarrier();")


def _subgroup(function: str) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        e.define(op, f"{function}({e.operand(op.operands[0])})")

    return rule


def _shuffle(e: Emitter, op: Op) -> None:
    value, lane = (e.operand(operand) for operand in op.operands)
    known = e.constant_value(op.operands[1])
    if known is None:
        e.define(op, f"subgroupShuffle({value}, u32({lane}))")
    else:
        # One lane for all is cheaper everywhere, and several times so on llvmpipe.
        e.define(op, f"subgroupBroadcast({value}, {known}u)")


def _shuffle_xor(e: Emitter, op: Op) -> None:
    e.define(op, f"subgroupShuffleXor({e.operand(op.operands[0])}, {op.attrs['mask']}u)")


def _check(e: Emitter, op: Op) -> None:
    e.fault(f"!{e.operand(op.operands[0])}", op.attrs["code"])


MEMORY: Mapping[str, Rule] = MappingProxyType(
    {
        "length": _length,
        "load": _load,
        "store": _store,
        "shared_load": _shared_load,
        "shared_store": _shared_store,
        "atomic": _atomic,
        "barrier": _barrier,
        "subgroup_sum": _subgroup("subgroupAdd"),
        "subgroup_max": _subgroup("subgroupMax"),
        "subgroup_min": _subgroup("subgroupMin"),
        "subgroup_shuffle": _shuffle,
        "subgroup_shuffle_xor": _shuffle_xor,
        "check": _check,
    }
)
