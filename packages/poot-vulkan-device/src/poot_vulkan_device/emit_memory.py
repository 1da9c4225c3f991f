"""SPIR-V rules of memory, barriers, subgroups and checks."""

from __future__ import annotations

from collections.abc import Mapping

from poot_executor.dtype import DType
from poot_executor.kernel.ir import KType, Op
from poot_executor.kernel.rules import Rules
from poot_vulkan_device.emit import Emitter, Rule
from poot_vulkan_device.spirv import REDUCE, Capability, Code, Scope, Semantics

F32, I32, U32 = DType.F32, DType.I32, DType.U32


def _length(e: Emitter, op: Op) -> None:
    length = e.module.result(Code.ARRAY_LENGTH, e.type(KType(U32)), e.view(op.attrs["buffer"], 1), 0)
    e.define(op, Code.BITCAST, length)


def _offsets(e: Emitter, index: int, width: int) -> list[int]:
    """The indices of the elements of a vector access, for buffers that are accessed element by element."""
    i32 = KType(I32)
    return [
        e.module.result(Code.I_ADD, e.type(i32), index, e.constant(i32, lane)) if lane else index
        for lane in range(width)
    ]


def _load(e: Emitter, op: Op) -> None:
    place, index, type = op.attrs["buffer"], e.id(op.operands[0]), op.result.type
    if place not in e.accesses.atomic:
        e.define(op, Code.LOAD, e.element(place, index, type.width), *e.shares)
        return
    scalar, scope, semantics = e.type(KType(type.dtype)), e.word(e.device_scope), e.word(Semantics.RELAXED)
    lanes = [
        e.module.result(Code.ATOMIC_LOAD, scalar, e.element(place, at), scope, semantics)
        for at in _offsets(e, index, type.width)
    ]
    if type.width == 1:
        e.bind(op.result, lanes[0])
    else:
        e.define(op, Code.COMPOSITE_CONSTRUCT, *lanes)


def _store(e: Emitter, op: Op) -> None:
    place, (index, value), type = op.attrs["buffer"], e.ids(op), op.operands[1].type
    if place not in e.accesses.atomic:
        e.module.op(Code.STORE, e.element(place, index, type.width), value, *e.shares)
        return
    scope, semantics = e.word(e.device_scope), e.word(Semantics.RELAXED)
    for lane, at in enumerate(_offsets(e, index, type.width)):
        part = value
        if type.width > 1:
            part = e.module.result(Code.COMPOSITE_EXTRACT, e.type(KType(type.dtype)), value, lane)
        e.module.op(Code.ATOMIC_STORE, e.element(place, at), scope, semantics, part)


def _shared_load(e: Emitter, op: Op) -> None:
    index, type = e.id(op.operands[0]), op.result.type
    if type.width == 1:
        e.define(op, Code.LOAD, e.shared(op.attrs["array"], index), *e.shares)
        return
    places = [e.shared(op.attrs["array"], at) for at in _offsets(e, index, type.width)]
    lanes = [e.module.result(Code.LOAD, e.type(KType(type.dtype)), place, *e.shares) for place in places]
    e.define(op, Code.COMPOSITE_CONSTRUCT, *lanes)


def _shared_store(e: Emitter, op: Op) -> None:
    (index, value), type = e.ids(op), op.operands[1].type
    for lane, at in enumerate(_offsets(e, index, type.width)):
        part = value
        if type.width > 1:
            part = e.module.result(Code.COMPOSITE_EXTRACT, e.type(KType(type.dtype)), value, lane)
        e.module.op(Code.STORE, e.shared(op.attrs["array"], at), part, *e.shares)


_ATOMICS: Mapping[tuple[str, DType], Code] = {
    ("add", I32): Code.ATOMIC_I_ADD,
    ("add", U32): Code.ATOMIC_I_ADD,
    ("min", I32): Code.ATOMIC_S_MIN,
    ("min", U32): Code.ATOMIC_U_MIN,
    ("max", I32): Code.ATOMIC_S_MAX,
    ("max", U32): Code.ATOMIC_U_MAX,
    ("or", I32): Code.ATOMIC_OR,
    ("or", U32): Code.ATOMIC_OR,
}


def _atomic(e: Emitter, op: Op) -> None:
    index, value = e.ids(op)
    if "buffer" in op.attrs:
        pointer, scope = e.element(op.attrs["buffer"], index), e.device_scope
    else:
        pointer, scope = e.shared(op.attrs["array"], index), Scope.WORKGROUP
    code = _ATOMICS[op.attrs["operation"], op.result.dtype]
    e.define(op, code, pointer, e.word(scope), e.word(Semantics.RELAXED), value)


def _barrier(e: Emitter, op: Op) -> None:
    semantics = Semantics.ACQUIRE_RELEASE
    if e.accesses.shares_buffers:
        semantics |= Semantics.UNIFORM_MEMORY
    if e.accesses.shares_arrays or not e.accesses.shares_buffers:
        semantics |= Semantics.WORKGROUP_MEMORY
    if e.accesses.fragments:
        semantics |= Semantics.MAKE_AVAILABLE | Semantics.MAKE_VISIBLE
    scope = e.word(Scope.WORKGROUP)
    e.module.op(Code.CONTROL_BARRIER, scope, scope, e.word(semantics))


def _reduce(codes: Mapping[DType, Code]) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        e.module.capability(Capability.GROUP_ARITHMETIC)
        (value,) = op.operands
        e.define(op, codes[value.dtype], e.word(Scope.SUBGROUP), REDUCE, e.id(value))

    return rule


def _shuffle(e: Emitter, op: Op) -> None:
    value, lane = op.operands
    e.module.capability(Capability.GROUP_SHUFFLE)
    known = e.number(lane)
    # A constant lane stays one: drivers see a broadcast in it. GroupNonUniformBroadcast itself costs llvmpipe half as
    # much again.
    at = e.word(int(known)) if known is not None else e.module.result(Code.BITCAST, e.type(KType(U32)), e.id(lane))
    e.define(op, Code.GROUP_SHUFFLE, e.word(Scope.SUBGROUP), e.id(value), at)


def _shuffle_xor(e: Emitter, op: Op) -> None:
    e.module.capability(Capability.GROUP_SHUFFLE)
    (value,) = e.ids(op)
    e.define(op, Code.GROUP_SHUFFLE_XOR, e.word(Scope.SUBGROUP), value, e.word(op.attrs["mask"]))


def _check(e: Emitter, op: Op) -> None:
    (condition,) = e.ids(op)
    e.fault(e.module.result(Code.LOGICAL_NOT, e.type(KType(DType.BOOL)), condition), op.attrs["code"])


def add_memory(rules: Rules[Rule]) -> None:
    """Put the rules of memory, barriers, subgroups and checks into a table."""
    rules.rule("subgroup_sum")(_reduce({F32: Code.GROUP_F_ADD, I32: Code.GROUP_I_ADD, U32: Code.GROUP_I_ADD}))
    rules.rule("subgroup_max")(_reduce({F32: Code.GROUP_F_MAX, I32: Code.GROUP_S_MAX, U32: Code.GROUP_U_MAX}))
    rules.rule("subgroup_min")(_reduce({F32: Code.GROUP_F_MIN, I32: Code.GROUP_S_MIN, U32: Code.GROUP_U_MIN}))
    single = {
        "length": _length, "load": _load, "store": _store, "shared_load": _shared_load, "shared_store": _shared_store,
        "atomic": _atomic, "barrier": _barrier, "subgroup_shuffle": _shuffle, "subgroup_shuffle_xor": _shuffle_xor,
        "check": _check,
    }  # fmt: skip
    for name, rule in single.items():
        rules.rule(name)(rule)
