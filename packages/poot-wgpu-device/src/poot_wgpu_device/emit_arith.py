"""WGSL rules of values and arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op, Val
from poot_wgpu_device.emit import Emitter, type_name

Rule = Callable[[Emitter, Op], None]


def _format(pattern: str) -> Rule:
    """An expression over the operands, `{0}` the first."""

    def rule(e: Emitter, op: Op) -> None:
        e.define(op, pattern.format(*e.operands(op)))

    return rule


def _routine(name: str) -> Rule:
    """A routine of scalars, a lane at a time for a vector."""

    def rule(e: Emitter, op: Op) -> None:
        e.use(name)
        operands, type = e.operands(op), op.result.type
        if type.width == 1:
            e.define(op, f"{name}({', '.join(operands)})")
        else:
            lanes = (f"{name}({', '.join(f'{value}.{lane}' for value in operands)})" for lane in "xyzw"[: type.width])
            e.define(op, f"{type_name(type)}({', '.join(lanes)})")

    return rule


def _neg(e: Emitter, op: Op) -> None:
    (value,) = e.operands(op)
    e.define(op, f"{type_name(op.result.type)}() - {value}" if op.result.dtype is DType.U32 else f"-{value}")


def _not(e: Emitter, op: Op) -> None:
    (value,) = e.operands(op)
    e.define(op, f"{'!' if op.result.dtype is DType.BOOL else '~'}{value}")


def _xor(e: Emitter, op: Op) -> None:
    left, right = e.operands(op)
    e.define(op, f"{left} {'!=' if op.result.dtype is DType.BOOL else '^'} {right}")


def _shift(sign: str) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        value, count = e.operands(op)
        known = e.constant_value(op.operands[1])
        if known is not None:
            count = f"{int(known) & 31}u"
        else:
            unsigned = count if op.operands[1].dtype is DType.U32 else f"{_unsigned(op.operands[1])}({count})"
            # WGSL takes the count modulo 32 at run time; saying so keeps every implementation honest.
            count = f"({unsigned} & {_splat(op.operands[1], '31u')})"
        e.define(op, f"{value} {sign} {count}")

    return rule


def _unsigned(value: Val) -> str:
    return "u32" if value.type.width == 1 else f"vec{value.type.width}<u32>"


def _splat(value: Val, literal: str) -> str:
    return literal if value.type.width == 1 else f"{_unsigned(value)}({literal})"


def _divide(sign: str) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        left, right = e.operands(op)
        # A constant zero divisor is an error in WGSL; where the IR has one, it stands behind a guard.
        right = e.named(right) if e.constant_value(op.operands[1]) == 0 else right
        e.define(op, f"{left} {sign} {right}")

    return rule


def _select(e: Emitter, op: Op) -> None:
    condition, chosen, other = e.operands(op)
    e.define(op, f"select({other}, {chosen}, {condition})")


def _cast(e: Emitter, op: Op) -> None:
    (value,) = e.operands(op)
    e.define(op, f"{type_name(op.result.type)}({value})")


def _bitcast(e: Emitter, op: Op) -> None:
    (value,) = e.operands(op)
    e.define(op, f"bitcast<{type_name(op.result.type)}>({value})")


def _half(pattern: str) -> Rule:
    """A builtin of scalars, a lane at a time for a vector."""

    def rule(e: Emitter, op: Op) -> None:
        (value,), type = e.operands(op), op.result.type
        if type.width == 1:
            e.define(op, pattern.format(value))
        else:
            lanes = ", ".join(pattern.format(f"{value}.{lane}") for lane in "xyzw"[: type.width])
            e.define(op, f"{type_name(type)}({lanes})")

    return rule


def _dot4(e: Emitter, op: Op) -> None:
    left, right, start = e.operands(op)
    e.define(op, f"dot4I8Packed({left}, {right}) + {start}")


def _vector(e: Emitter, op: Op) -> None:
    e.define(op, f"{type_name(op.result.type)}({', '.join(e.operand(value) for value in op.operands)})")


def _extract(e: Emitter, op: Op) -> None:
    e.define(op, f"{e.operand(op.operands[0])}.{'xyzw'[op.attrs['lane']]}")


def _group_id(e: Emitter, op: Op) -> None:
    e.define(op, f"i32({e.builtin('group')}.{'xyz'[op.attrs['axis']]})")


def _index(builtin: str) -> Rule:
    def rule(e: Emitter, op: Op) -> None:
        e.define(op, f"i32({e.builtin(builtin)})")

    return rule


ARITHMETIC: Mapping[str, Rule] = MappingProxyType(
    {
        "const": Emitter.constant,
        "group_id": _group_id,
        "thread_id": _index("thread"),
        "lane_id": _index("lane"),
        "subgroup_id": _index("subgroup"),
        "subgroup_size": _index("subgroup_width"),
        "neg": _neg,
        "not": _not,
        "xor": _xor,
        "shl": _shift("<<"),
        "shr": _shift(">>"),
        "div": _divide("/"),
        "rem": _divide("%"),
        "select": _select,
        "cast": _cast,
        "bitcast": _bitcast,
        "dot4": _dot4,
        "vector": _vector,
        "extract": _extract,
        "half_to_float": _half("unpack2x16float({0}).x"),
        "float_to_half": _half("pack2x16float(vec2<f32>({0}, 0.0f))"),
        "rsqrt": _format("inverseSqrt({0})"),
        **{name: _format(f"{name}({{0}})") for name in ("abs", "sqrt", "floor", "round")},
        **{name: _format(f"{name}({{0}}, {{1}})") for name in ("min", "max")},
        "fma": _format("fma({0}, {1}, {2})"),
        "mulhi": _routine("poot_mulhi"),
        **{
            name: _format(f"{{0}} {sign} {{1}}")
            for name, sign in (
                ("add", "+"), ("sub", "-"), ("mul", "*"), ("and", "&"), ("or", "|"),
                ("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="),
            )
        },
    }
)  # fmt: skip
