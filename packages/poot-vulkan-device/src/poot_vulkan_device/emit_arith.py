"""SPIR-V rules of values and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from poot_executor.dtype import DType
from poot_executor.kernel.ir import KType, Op, Val
from poot_executor.kernel.rules import Rules
from poot_vulkan_device.emit import Emitter, Rule
from poot_vulkan_device.spirv import PACKED_4X8, BuiltIn, Capability, Code, Decoration, Ext

F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL


def _by_dtype(codes: Mapping[DType, Code]) -> Rule:
    """One instruction, by the dtype of the first operand."""

    def rule(e: Emitter, op: Op) -> None:
        e.define(op, codes[op.operands[0].dtype], *e.ids(op))

    return rule


def _exact(codes: Mapping[DType, Code]) -> Rule:
    """As `_by_dtype`; a float product or sum is rounded by itself and never fused with another."""

    def rule(e: Emitter, op: Op) -> None:
        result = e.define(op, codes[op.operands[0].dtype], *e.ids(op))
        if op.operands[0].dtype is F32:
            e.module.decorate(result, Decoration.NO_CONTRACTION)

    return rule


def _ext(functions: Mapping[DType, Ext]) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        e.bind(op.result, e.module.ext(functions[op.operands[0].dtype], e.type(op.result.type), *e.ids(op)))

    return rule


def _const(e: Emitter, op: Op) -> None:
    e.remember(op.result, op.attrs["value"])


def _abs(e: Emitter, op: Op) -> None:
    if op.result.dtype is U32:
        e.bind(op.result, e.id(op.operands[0]))
    else:
        _ext({F32: Ext.F_ABS, I32: Ext.S_ABS})(e, op)


def _shift(codes: Mapping[DType, Code]) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        value, count = op.operands
        known = e.number(count)
        if known is not None:
            by = e.constant(count.type, int(known) & 31)
        else:
            # A count of 32 or more is undefined.
            by = e.module.result(Code.BITWISE_AND, e.type(count.type), e.id(count), e.constant(count.type, 31))
        e.define(op, codes[value.dtype], e.id(value), by)

    return rule


def _rem(e: Emitter, op: Op) -> None:
    if op.result.dtype is U32:
        e.define(op, Code.U_MOD, *e.ids(op))
    elif op.attrs.get("nonnegative"):
        e.define(op, Code.S_REM, *e.ids(op))
    else:
        # Of negative operands Vulkan leaves OpSRem undefined, and drivers give something else.
        left, right = e.ids(op)
        type = e.type(op.result.type)
        quotient = e.module.result(Code.S_DIV, type, left, right)
        e.define(op, Code.I_SUB, left, e.module.result(Code.I_MUL, type, quotient, right))


def _mulhi(e: Emitter, op: Op) -> None:
    type = e.type(op.result.type)
    pair = e.module.result(Code.U_MUL_EXTENDED, e.module.declare(Code.TYPE_STRUCT, type, type), *e.ids(op))
    e.define(op, Code.COMPOSITE_EXTRACT, pair, 1)


def _select(e: Emitter, op: Op) -> None:
    condition, chosen, other = e.ids(op)
    width = op.result.type.width
    if op.operands[0].type.width != width:
        condition = e.module.result(Code.COMPOSITE_CONSTRUCT, e.type(KType(BOOL, width)), *[condition] * width)
    e.define(op, Code.SELECT, condition, chosen, other)


_CASTS = {
    (F32, I32): Code.CONVERT_F_TO_S,
    (F32, U32): Code.CONVERT_F_TO_U,
    (I32, F32): Code.CONVERT_S_TO_F,
    (U32, F32): Code.CONVERT_U_TO_F,
    (I32, U32): Code.BITCAST,
    (U32, I32): Code.BITCAST,
}


def _cast(e: Emitter, op: Op) -> None:
    (value,), type = op.operands, op.result.type
    if value.dtype is type.dtype:
        e.bind(op.result, e.id(value))
    elif value.dtype is BOOL:
        e.define(op, Code.SELECT, e.id(value), e.constant(type, 1), e.constant(type, 0))
    elif type.dtype is BOOL:
        code = Code.F_UNORD_NOT_EQUAL if value.dtype is F32 else Code.I_NOT_EQUAL
        e.define(op, code, e.id(value), e.constant(value.type, 0))
    else:
        e.define(op, _CASTS[value.dtype, type.dtype], e.id(value))


def _bitcast(e: Emitter, op: Op) -> None:
    (value,) = op.operands
    if value.dtype is op.result.dtype:
        e.bind(op.result, e.id(value))
    else:
        e.define(op, Code.BITCAST, e.id(value))


def _lanes(e: Emitter, value: Val) -> list[int]:
    """The scalars of a value."""
    if value.type.width == 1:
        return [e.id(value)]
    type = e.type(KType(value.dtype))
    return [e.module.result(Code.COMPOSITE_EXTRACT, type, e.id(value), lane) for lane in range(value.type.width)]


def _join(e: Emitter, op: Op, lanes: list[int]) -> None:
    if len(lanes) == 1:
        e.bind(op.result, lanes[0])
    else:
        e.define(op, Code.COMPOSITE_CONSTRUCT, *lanes)


def _half_to_float(e: Emitter, op: Op) -> None:
    pair, single, lanes = e.type(KType(F32, 2)), e.type(KType(F32)), []
    for word in _lanes(e, op.operands[0]):
        both = e.module.ext(Ext.UNPACK_HALF, pair, word)
        lanes.append(e.module.result(Code.COMPOSITE_EXTRACT, single, both, 0))
    _join(e, op, lanes)


def _float_to_half(e: Emitter, op: Op) -> None:
    pair, word, zero, lanes = e.type(KType(F32, 2)), e.type(KType(U32)), e.constant(KType(F32), 0.0), []
    for value in _lanes(e, op.operands[0]):
        both = e.module.result(Code.COMPOSITE_CONSTRUCT, pair, value, zero)
        lanes.append(e.module.ext(Ext.PACK_HALF, word, both))
    _join(e, op, lanes)


def _dot4(e: Emitter, op: Op) -> None:
    left, right, start = e.ids(op)
    extension = "SPV_KHR_integer_dot_product"
    e.module.capability(Capability.DOT_PRODUCT, extension)
    e.module.capability(Capability.DOT_PRODUCT_INPUT_4X8_PACKED, extension)
    type = e.type(op.result.type)
    e.define(op, Code.I_ADD, e.module.result(Code.S_DOT, type, left, right, PACKED_4X8), start)


def _vector(e: Emitter, op: Op) -> None:
    e.define(op, Code.COMPOSITE_CONSTRUCT, *e.ids(op))


def _extract(e: Emitter, op: Op) -> None:
    e.define(op, Code.COMPOSITE_EXTRACT, e.id(op.operands[0]), op.attrs["lane"])


def _group_id(e: Emitter, op: Op) -> None:
    groups = e.input(BuiltIn.WORKGROUP_ID, KType(U32, 3))
    e.define(op, Code.BITCAST, e.module.result(Code.COMPOSITE_EXTRACT, e.type(KType(U32)), groups, op.attrs["axis"]))


def _index(builtin: BuiltIn) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        if builtin is not BuiltIn.LOCAL_INVOCATION_INDEX:
            e.module.capability(Capability.GROUP_NON_UNIFORM)
        e.define(op, Code.BITCAST, e.input(builtin, KType(U32)))

    return rule


def _ints(signed: Code, unsigned: Code) -> dict[DType, Code]:
    return {I32: signed, U32: unsigned}


def _both(code: Code) -> dict[DType, Code]:
    return {I32: code, U32: code}


_BY_DTYPE: Mapping[str, Mapping[DType, Code]] = {
    "neg": {F32: Code.F_NEGATE, **_both(Code.S_NEGATE)},
    "not": {BOOL: Code.LOGICAL_NOT, **_both(Code.NOT)},
    "div": {F32: Code.F_DIV, **_ints(Code.S_DIV, Code.U_DIV)},
    "and": {BOOL: Code.LOGICAL_AND, **_both(Code.BITWISE_AND)},
    "or": {BOOL: Code.LOGICAL_OR, **_both(Code.BITWISE_OR)},
    "xor": {BOOL: Code.LOGICAL_NOT_EQUAL, **_both(Code.BITWISE_XOR)},
    "eq": {F32: Code.F_ORD_EQUAL, BOOL: Code.LOGICAL_EQUAL, **_both(Code.I_EQUAL)},
    "ne": {F32: Code.F_UNORD_NOT_EQUAL, BOOL: Code.LOGICAL_NOT_EQUAL, **_both(Code.I_NOT_EQUAL)},
    "lt": {F32: Code.F_ORD_LESS_THAN, **_ints(Code.S_LESS_THAN, Code.U_LESS_THAN)},
    "le": {F32: Code.F_ORD_LESS_THAN_EQUAL, **_ints(Code.S_LESS_THAN_EQUAL, Code.U_LESS_THAN_EQUAL)},
    "gt": {F32: Code.F_ORD_GREATER_THAN, **_ints(Code.S_GREATER_THAN, Code.U_GREATER_THAN)},
    "ge": {F32: Code.F_ORD_GREATER_THAN_EQUAL, **_ints(Code.S_GREATER_THAN_EQUAL, Code.U_GREATER_THAN_EQUAL)},
}

_EXACT: Mapping[str, Mapping[DType, Code]] = {
    "add": {F32: Code.F_ADD, **_both(Code.I_ADD)},
    "sub": {F32: Code.F_SUB, **_both(Code.I_SUB)},
    "mul": {F32: Code.F_MUL, **_both(Code.I_MUL)},
}

_EXT: Mapping[str, Mapping[DType, Ext]] = {
    "sqrt": {F32: Ext.SQRT},
    "rsqrt": {F32: Ext.INVERSE_SQRT},
    "floor": {F32: Ext.FLOOR},
    "round": {F32: Ext.ROUND_EVEN},
    "fma": {F32: Ext.FMA},
    "min": {F32: Ext.F_MIN, I32: Ext.S_MIN, U32: Ext.U_MIN},
    "max": {F32: Ext.F_MAX, I32: Ext.S_MAX, U32: Ext.U_MAX},
}


def add_arithmetic(rules: Rules[Rule]) -> None:
    """Put the rules of values and arithmetic into a table."""
    for name, codes in _BY_DTYPE.items():
        rules.rule(name)(_by_dtype(codes))
    for name, codes in _EXACT.items():
        rules.rule(name)(_exact(codes))
    for name, functions in _EXT.items():
        rules.rule(name)(_ext(functions))
    rules.rule("shl")(_shift(_both(Code.SHIFT_LEFT_LOGICAL)))
    rules.rule("shr")(_shift(_ints(Code.SHIFT_RIGHT_ARITHMETIC, Code.SHIFT_RIGHT_LOGICAL)))
    rules.rule("thread_id")(_index(BuiltIn.LOCAL_INVOCATION_INDEX))
    rules.rule("lane_id")(_index(BuiltIn.SUBGROUP_LOCAL_INVOCATION_ID))
    rules.rule("subgroup_id")(_index(BuiltIn.SUBGROUP_ID))
    rules.rule("subgroup_size")(_index(BuiltIn.SUBGROUP_SIZE))
    single = {
        "const": _const, "abs": _abs, "rem": _rem, "mulhi": _mulhi, "select": _select, "cast": _cast,
        "bitcast": _bitcast, "half_to_float": _half_to_float, "float_to_half": _float_to_half, "dot4": _dot4,
        "vector": _vector, "extract": _extract, "group_id": _group_id,
    }  # fmt: skip
    for name, rule in single.items():
        rules.rule(name)(rule)
