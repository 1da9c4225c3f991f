"""SPIR-V rules of opaque matrix fragments: cooperative matrices of a subgroup (SPV_KHR_cooperative_matrix).

A module with fragments is in the Vulkan memory model, as every compiler of shading languages makes it. Memory that
threads of a group share is then marked access by access, and barriers make it available and visible (`Emitter.shares`).
Factors are read from arrays of words: a stride counts elements of the array that a pointer points into.
"""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.fragments import FragmentShape, FragmentType
from poot_executor.kernel.ir import KType, Op
from poot_executor.kernel.rules import Rules
from poot_vulkan_device.emit import Emitter, Rule
from poot_vulkan_device.features import FRAGMENT_BUFFERS
from poot_vulkan_device.spirv import SIGNED_FACTORS, Code

_MAJOR = {"row": 0, "column": 1}
"""Memory layouts of a cooperative matrix."""


def _type_of(op: Op) -> FragmentType:
    type = op.result.type
    assert isinstance(type, FragmentType)
    return type


def _zero(e: Emitter, op: Op) -> None:
    type = _type_of(op)
    zero = e.constant(KType(type.dtype), 0)
    e.bind(op.result, e.module.constant(Code.CONSTANT_COMPOSITE, e.type(type), zero))


def _pointer(e: Emitter, op: Op) -> int:
    if "buffer" in op.attrs and FRAGMENT_BUFFERS not in e.caps.features:
        reason = f"this device lacks {FRAGMENT_BUFFERS}: robust access does not cover them"
        raise Unsupported(f"vulkan: {op.kind} of a buffer in kernel {e.kernel.name}", reason)
    index = e.id(op.operands[0])
    return e.element(op.attrs["buffer"], index) if "buffer" in op.attrs else e.shared(op.attrs["array"], index)


def _load(e: Emitter, op: Op) -> None:
    layout, stride = e.word(_MAJOR[op.attrs["major"]]), e.word(op.attrs["stride"])
    e.define(op, Code.COOPERATIVE_MATRIX_LOAD, _pointer(e, op), layout, stride, *e.shares)


def _store(e: Emitter, op: Op) -> None:
    layout, stride = e.word(_MAJOR[op.attrs["major"]]), e.word(op.attrs["stride"])
    value = e.id(op.operands[1])
    e.module.op(Code.COOPERATIVE_MATRIX_STORE, _pointer(e, op), value, layout, stride, *e.shares)


def _mma(e: Emitter, op: Op) -> None:
    a, b, c = (value.type for value in op.operands)
    assert isinstance(a, FragmentType) and isinstance(b, FragmentType)
    shape = FragmentShape(a.rows, b.columns, a.columns, a.dtype, c.dtype)
    if shape not in e.caps.fragments:
        raise Unsupported(f"vulkan: {op.kind} in kernel {e.kernel.name}", f"this device has no product {shape}")
    signed = (SIGNED_FACTORS,) if a.dtype is DType.I8 else ()
    e.define(op, Code.COOPERATIVE_MATRIX_MUL_ADD, *e.ids(op), *signed)


def _fma(e: Emitter, op: Op) -> None:
    a, b, c = e.ids(op)
    type = _type_of(op)
    integer = type.dtype is DType.I32
    # Free to be contracted, so that it is one instruction.
    product = e.module.result(Code.I_MUL if integer else Code.F_MUL, e.type(type), a, b)
    e.define(op, Code.I_ADD if integer else Code.F_ADD, product, c)


def add_fragments(rules: Rules[Rule]) -> None:
    """Put the rules of fragments into a table."""
    table = {
        "fragment_zero": _zero, "fragment_load": _load, "fragment_store": _store, "fragment_mma": _mma,
        "fragment_fma": _fma,
    }  # fmt: skip
    for name, rule in table.items():
        rules.rule(name)(rule)
