"""Types of operations: what each takes and gives. The builder infers with them, the verifier checks with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.fragments import FragmentType, fragment_results
from poot_executor.kernel.ir import Access, KType, Param, SharedArray
from poot_executor.kernel.warpgroups import OPERATIONS, warpgroup_results

VALUE_DTYPES = (DType.F32, DType.I32, DType.U32, DType.BOOL)
"""The dtypes that values of a kernel have."""

WORD_DTYPES = (DType.F32, DType.I32, DType.U32)
"""The dtypes that elements of buffers and shared arrays have."""

F32, I32, U32, BOOL = (KType(dtype) for dtype in VALUE_DTYPES)

_NUMBERS = WORD_DTYPES
_INTS = (DType.I32, DType.U32)
_BITS = (DType.I32, DType.U32, DType.BOOL)
_FLOATS = (DType.F32,)

_NO_OPERANDS = {
    name: I32 for name in ("group_id", "thread_id", "lane_id", "subgroup_id", "subgroup_size", "length")
}  # fmt: skip
_SAME = {
    "neg": (1, _NUMBERS), "abs": (1, _NUMBERS), "not": (1, _BITS),
    **{k: (1, _FLOATS) for k in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "round")},
    **{k: (2, _NUMBERS) for k in ("add", "sub", "mul", "div", "min", "max")},
    **{k: (2, _BITS) for k in ("and", "or", "xor")},
    **{k: (2, _INTS) for k in ("rem", "shl", "shr")},
    "pow": (2, _FLOATS), "mulhi": (2, (DType.U32,)), "fma": (3, _FLOATS),
}  # fmt: skip
"""Operations on values of one type that give that type: how many operands, which dtypes."""

_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_CROSS = ("subgroup_sum", "subgroup_max", "subgroup_min", "subgroup_shuffle_xor", "group_sum", "group_max", "group_min")


def result_types(
    kind: str,
    operands: Sequence[KType],
    attrs: Mapping[str, Any],
    declared: Sequence[KType],
    params: Sequence[Param],
    shared: Sequence[SharedArray],
) -> tuple[KType, ...]:
    """The result types of an operation without blocks. `declared` names the result of const, cast and bitcast.

    Raises KernelError, without the line, where operands or attributes do not fit the operation.
    """
    if kind.startswith("fragment_") or any(isinstance(type, FragmentType) for type in operands):
        return fragment_results(kind, operands, attrs, params, shared)
    if kind in OPERATIONS:
        return warpgroup_results(kind, operands, attrs, params, shared)
    if kind in _NO_OPERANDS:
        _arity(kind, operands, 0)
        if kind == "group_id" and attrs.get("axis") not in (0, 1, 2):
            raise KernelError(f"group_id has axes 0, 1 and 2, not {attrs.get('axis')}")
        if kind == "length":
            _buffer(kind, attrs, params)
        return (_NO_OPERANDS[kind],)
    if kind in _SAME:
        arity, allowed = _SAME[kind]
        return (_same(kind, operands, arity, allowed),)
    if kind in _COMPARE:
        ordered = kind not in ("eq", "ne")
        return (KType(DType.BOOL, _same(kind, operands, 2, _NUMBERS if ordered else VALUE_DTYPES).width),)
    if kind in _CROSS:
        type = _scalar(kind, _same(kind, operands, 1, _NUMBERS))
        return (type,)
    if kind in _CONVERSIONS:
        source, target = _CONVERSIONS[kind]
        return (KType(target, _same(kind, operands, 1, (source,)).width),)
    rule = _OTHER.get(kind)
    if rule is None:
        raise KernelError(f"there is no operation {kind!r}")
    return rule(_Use(kind, operands, attrs, declared, params, shared))


_CONVERSIONS = {"half_to_float": (DType.U32, DType.F32), "float_to_half": (DType.F32, DType.U32)}


@dataclass(frozen=True, slots=True)
class _Use:
    """An operation as a rule sees it."""

    kind: str
    operands: Sequence[KType]
    attrs: Mapping[str, Any]
    declared: Sequence[KType]
    params: Sequence[Param]
    shared: Sequence[SharedArray]


def _words(types: Sequence[KType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _arity(kind: str, operands: Sequence[KType], count: int) -> None:
    if len(operands) != count:
        raise KernelError(f"{kind} takes {count} operands, not {len(operands)}")


def _same(kind: str, operands: Sequence[KType], arity: int, allowed: Sequence[DType]) -> KType:
    _arity(kind, operands, arity)
    if any(type != operands[0] for type in operands):
        raise KernelError(f"{kind} takes operands of one type, not {_words(operands)}: cast one of them")
    if operands[0].dtype not in allowed:
        raise KernelError(f"{kind} takes {' or '.join(map(str, allowed))}, not {operands[0]}")
    return operands[0]


def _scalar(kind: str, type: KType) -> KType:
    if type.width != 1:
        raise KernelError(f"{kind} takes scalars, not {type}")
    return type


def _expect(kind: str, operands: Sequence[KType], *expected: KType) -> None:
    if tuple(operands) != expected:
        raise KernelError(f"{kind} takes ({_words(expected)}), not ({_words(operands)})")


def _buffer(kind: str, attrs: Mapping[str, Any], params: Sequence[Param]) -> Param:
    index = attrs.get("buffer")
    if not isinstance(index, int) or not 0 <= index < len(params):
        raise KernelError(f"{kind}: buffer {index} is none of the {len(params)} parameters")
    return params[index]


def _array(kind: str, attrs: Mapping[str, Any], shared: Sequence[SharedArray]) -> SharedArray:
    index = attrs.get("array")
    if not isinstance(index, int) or not 0 <= index < len(shared):
        raise KernelError(f"{kind}: array {index} is none of the {len(shared)} shared arrays")
    return shared[index]


def _written(kind: str, attrs: Mapping[str, Any], params: Sequence[Param]) -> Param:
    param = _buffer(kind, attrs, params)
    if param.access is Access.READ:
        raise KernelError(f"{kind} to {param.name}, which is read only")
    return param


def _only(kind: str, declared: Sequence[KType]) -> KType:
    if len(declared) != 1:
        raise KernelError(f"{kind} has one result, not {len(declared)}")
    if declared[0].dtype not in VALUE_DTYPES or declared[0].width not in (1, 2, 4):
        raise KernelError(f"{kind}: no value of a kernel is {declared[0]}")
    return declared[0]


def _const(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 0)
    type, value = _scalar(use.kind, _only(use.kind, use.declared)), use.attrs.get("value")
    wanted = {DType.BOOL: bool, DType.F32: float}.get(type.dtype, int)
    if value.__class__ is not wanted:
        raise KernelError(f"const of {type} has a value of {wanted.__name__}, not {value!r}")
    limits = {DType.I32: (-(1 << 31), (1 << 31) - 1), DType.U32: (0, (1 << 32) - 1)}.get(type.dtype)
    if limits is not None and not limits[0] <= value <= limits[1]:
        raise KernelError(f"const {value} does not fit {type}")
    return (type,)


def _cast(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 1)
    result = _only(use.kind, use.declared)
    if result.width != use.operands[0].width:
        raise KernelError(f"{use.kind} keeps the width: {use.operands[0]} is not made {result}")
    if use.kind == "bitcast" and DType.BOOL in (result.dtype, use.operands[0].dtype):
        raise KernelError("bitcast has no bool")
    return (result,)


def _select(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 3)
    result = _same(use.kind, use.operands[1:], 2, VALUE_DTYPES)
    if use.operands[0].dtype is not DType.BOOL or use.operands[0].width not in (1, result.width):
        raise KernelError(f"select takes a bool condition, not {use.operands[0]}")
    return (result,)


def _dot4(use: _Use) -> tuple[KType, ...]:
    _expect(use.kind, use.operands, U32, U32, I32)
    return (I32,)


def _vector(use: _Use) -> tuple[KType, ...]:
    if len(use.operands) not in (2, 4):
        raise KernelError(f"a vector has 2 or 4 scalars, not {len(use.operands)}")
    type = _scalar(use.kind, _same(use.kind, use.operands, len(use.operands), VALUE_DTYPES))
    return (KType(type.dtype, len(use.operands)),)


def _extract(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 1)
    if use.attrs.get("lane") not in range(use.operands[0].width) or use.operands[0].width == 1:
        raise KernelError(f"extract of lane {use.attrs.get('lane')} from {use.operands[0]}")
    return (KType(use.operands[0].dtype),)


def _load(use: _Use) -> tuple[KType, ...]:
    _expect(use.kind, use.operands, I32)
    width = use.attrs.get("width", 1)
    if width not in (1, 2, 4):
        raise KernelError(f"load of width {width}: 1, 2 or 4")
    return (KType(_buffer(use.kind, use.attrs, use.params).dtype, width),)


def _store(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 2)
    param = _written(use.kind, use.attrs, use.params)
    _expect(use.kind, use.operands, I32, KType(param.dtype, use.operands[1].width))
    return ()


def _shared_load(use: _Use) -> tuple[KType, ...]:
    _expect(use.kind, use.operands, I32)
    width = use.attrs.get("width", 1)
    if width not in (1, 2, 4):
        raise KernelError(f"shared_load of width {width}: 1, 2 or 4")
    return (KType(_array(use.kind, use.attrs, use.shared).dtype, width),)


def _shared_store(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 2)
    dtype = _array(use.kind, use.attrs, use.shared).dtype
    _expect(use.kind, use.operands, I32, KType(dtype, use.operands[1].width))
    return ()


def _half_kind(use: _Use) -> None:
    if use.attrs.get("half") not in ("bf16", "f16"):
        raise KernelError(f"{use.kind} has halves of bf16 or f16, not {use.attrs.get('half')}")


def _pack_bf16(use: _Use) -> tuple[KType, ...]:
    _expect(use.kind, use.operands, F32, F32)
    return (U32,)


def _packed_fma(use: _Use) -> tuple[KType, ...]:
    _half_kind(use)
    _expect(use.kind, use.operands, U32, U32, U32)
    return (U32,)


def _mma(use: _Use) -> tuple[KType, ...]:
    _half_kind(use)
    _expect(use.kind, use.operands, KType(DType.U32, 4), KType(DType.U32, 2), KType(DType.F32, 4))
    return (KType(DType.F32, 4),)


def _atomic(use: _Use) -> tuple[KType, ...]:
    if ("buffer" in use.attrs) == ("array" in use.attrs):
        raise KernelError("atomic has either a buffer or a shared array")
    place = (
        _written(use.kind, use.attrs, use.params) if "buffer" in use.attrs else _array(use.kind, use.attrs, use.shared)
    )
    if use.attrs.get("operation") not in ("add", "min", "max", "or"):
        raise KernelError(f"atomic has operations add, min, max and or, not {use.attrs.get('operation')!r}")
    if place.dtype not in _INTS:
        raise KernelError(f"atomic works on i32 and u32, and {place.name} is {place.dtype}")
    _expect(use.kind, use.operands, I32, KType(place.dtype))
    return (KType(place.dtype),)


def _barrier(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 0)
    return ()


def _shuffle(use: _Use) -> tuple[KType, ...]:
    _arity(use.kind, use.operands, 2)
    type = _scalar(use.kind, _same(use.kind, use.operands[:1], 1, _NUMBERS))
    _expect(use.kind, use.operands, type, I32)
    return (type,)


def _check(use: _Use) -> tuple[KType, ...]:
    _expect(use.kind, use.operands, BOOL)
    if use.attrs.get("code") not in range(1, 256):
        raise KernelError(f"check has a code of 1 to 255, not {use.attrs.get('code')}")
    return ()


_OTHER = {
    "const": _const, "cast": _cast, "bitcast": _cast, "select": _select, "dot4": _dot4, "vector": _vector,
    "extract": _extract, "load": _load, "store": _store, "shared_load": _shared_load, "shared_store": _shared_store,
    "atomic": _atomic, "barrier": _barrier, "subgroup_shuffle": _shuffle, "check": _check,
    "pack_bf16": _pack_bf16, "packed_fma": _packed_fma, "mma": _mma,
}  # fmt: skip
