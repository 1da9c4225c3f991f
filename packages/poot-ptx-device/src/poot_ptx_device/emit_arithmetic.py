"""PTX rules of values and arithmetic, a lane at a time. Roundings are written out: the assembler contracts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from poot_executor.dtype import DType
from poot_executor.kernel import fused_routines as routines
from poot_executor.kernel.ir import Op
from poot_ptx_device.caps import WARP
from poot_ptx_device.emitter import Emitter
from poot_ptx_device.operands import is_literal, literal, register_class, suffix
from poot_ptx_device.rules import RULES

F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL

_INSTRUCTIONS: Mapping[tuple[str, DType], str] = MappingProxyType(
    {
        ("neg", F32): "neg.f32", ("neg", I32): "neg.s32", ("neg", U32): "neg.s32",
        ("abs", F32): "abs.f32", ("abs", I32): "abs.s32", ("abs", U32): "mov.b32",
        ("not", I32): "not.b32", ("not", U32): "not.b32", ("not", BOOL): "not.pred",
        ("sqrt", F32): "sqrt.rn.f32", ("floor", F32): "cvt.rmi.f32.f32", ("round", F32): "cvt.rni.f32.f32",
        ("add", F32): "add.rn.f32", ("sub", F32): "sub.rn.f32", ("mul", F32): "mul.rn.f32", ("div", F32): "div.rn.f32",
        ("fma", F32): "fma.rn.f32", ("mulhi", U32): "mul.hi.u32",
        **{(kind, dtype): f"{kind}.s32" for kind in ("add", "sub") for dtype in (I32, U32)},
        ("mul", I32): "mul.lo.s32", ("mul", U32): "mul.lo.s32",
        **{(kind, dtype): f"{kind}.{suffix(dtype)}" for kind in ("div", "rem") for dtype in (I32, U32)},
        **{(kind, dtype): f"{kind}.{suffix(dtype)}" for kind in ("min", "max") for dtype in (F32, I32, U32)},
        **{(kind, dtype): f"{kind}.b32" for kind in ("and", "or", "xor") for dtype in (I32, U32)},
        **{(kind, BOOL): f"{kind}.pred" for kind in ("and", "or", "xor")},
    }
)  # fmt: skip
"""Operations that are one instruction of the operands, by the operands' dtype."""

_COMPARISONS = MappingProxyType({"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"})


def instruction(e: Emitter, kind: str, dtype: DType, operands: list[str]) -> str:
    """The register of an elementwise operation on one lane; `dtype` is the first operand's."""
    if kind in _COMPARISONS:
        return _compare(e, kind, dtype, operands)
    if kind in ("shl", "shr"):
        return _shift(e, kind, dtype, operands)
    name = register_class(dtype)
    if all(map(is_literal, operands)) or name == "pred":
        operands = [e.held(dtype, operand) for operand in operands]
    return e.result(name, f"{_INSTRUCTIONS[kind, dtype]} {{}}, {', '.join(operands)}")


def _compare(e: Emitter, kind: str, dtype: DType, operands: list[str]) -> str:
    left, right = operands
    if dtype is BOOL:
        left, right = (e.held(dtype, operand) for operand in operands)
        differ = e.result("pred", f"xor.pred {{}}, {left}, {right}")
        return differ if kind == "ne" else e.result("pred", f"not.pred {{}}, {differ}")
    # A NaN differs from everything: of the comparisons only `ne` is true for it.
    relation = "neu" if kind == "ne" and dtype is F32 else _COMPARISONS[kind]
    return e.result("pred", f"setp.{relation}.{suffix(dtype)} {{}}, {e.held(dtype, left)}, {right}")


def _shift(e: Emitter, kind: str, dtype: DType, operands: list[str]) -> str:
    value, count = operands
    # PTX takes counts above 31 as they are.
    count = str(int(count) & 31) if is_literal(count) else e.result("b32", f"and.b32 {{}}, {count}, 31")
    name = "shl.b32" if kind == "shl" else f"shr.{suffix(dtype)}"
    return e.result("b32", f"{name} {{}}, {e.held(dtype, value)}, {count}")


def select(e: Emitter, dtype: DType, condition: str, chosen: str, other: str) -> str:
    """The register of a choice on one lane."""
    condition = e.held(BOOL, condition)
    if dtype is not BOOL:
        return e.result(register_class(dtype), f"selp.{register_class(dtype)} {{}}, {chosen}, {other}, {condition}")
    chosen, other = e.held(BOOL, chosen), e.held(BOOL, other)
    first = e.result("pred", f"and.pred {{}}, {chosen}, {condition}")
    inverse = e.result("pred", f"not.pred {{}}, {condition}")
    second = e.result("pred", f"and.pred {{}}, {other}, {inverse}")
    return e.result("pred", f"or.pred {{}}, {first}, {second}")


class Lane:
    """The machine that routines run on: each operation emits an instruction. An operand's dtype is its register's."""

    def __init__(self, e: Emitter) -> None:
        self._e = e
        self._integers: set[str] = set()

    def number(self, value: float) -> str:
        """An f32 literal."""
        return literal(F32, value)

    def integer(self, value: int) -> str:
        """An i32 literal."""
        return str(value)

    def apply(self, kind: str, *operands: str) -> str:
        """One instruction."""
        if kind == "select":
            return select(self._e, self._dtype(operands[1:]), *operands)
        return instruction(self._e, kind, self._dtype(operands), list(operands))

    @staticmethod
    def _dtype(operands: tuple[str, ...]) -> DType:
        for operand in operands:
            if operand.startswith(("%f", "0f")):
                return F32
            if operand.startswith("%p"):
                return BOOL
        return I32

    def bits(self, x: str) -> str:
        """A move between register types."""
        return self._e.result("b32", f"mov.b32 {{}}, {x}")

    def real(self, i: str) -> str:
        """A move between register types."""
        return self._e.result("f32", f"mov.b32 {{}}, {self._e.held(I32, i)}")

    def converted(self, i: str) -> str:
        """Rounded to nearest."""
        return self._e.result("f32", f"cvt.rn.f32.s32 {{}}, {i}")


@RULES.rule("const")
def _const(e: Emitter, op: Op) -> None:
    e.alias(op.result, (literal(op.result.dtype, op.attrs["value"]),))


@RULES.rule("group_id")
def _group_id(e: Emitter, op: Op) -> None:
    axis = op.attrs["axis"]
    e.alias(op.result, (e.once(("ctaid", axis, 0), "b32", f"mov.u32 {{}}, %ctaid.{'xyz'[axis]}"),))


def _thread(e: Emitter) -> str:
    return e.once(("tid", 0, 0), "b32", "mov.u32 {}, %tid.x")


@RULES.rule("thread_id")
def _thread_id(e: Emitter, op: Op) -> None:
    e.alias(op.result, (_thread(e),))


@RULES.rule("lane_id")
def _lane_id(e: Emitter, op: Op) -> None:
    e.alias(op.result, (lane(e),))


def lane(e: Emitter) -> str:
    """The register with the thread's place in its warp: groups have one axis, so warps are runs of threads."""
    return e.once(("lane", 0, 0), "b32", f"and.b32 {{}}, {_thread(e)}, {WARP - 1}")


@RULES.rule("subgroup_id")
def _subgroup_id(e: Emitter, op: Op) -> None:
    e.alias(op.result, (e.once(("warp", 0, 0), "b32", f"shr.u32 {{}}, {_thread(e)}, 5"),))


@RULES.rule("subgroup_size")
def _subgroup_size(e: Emitter, op: Op) -> None:
    e.alias(op.result, (str(WARP),))


_AND_OR = "0xEA"
"""The table of (a and b) or c."""


_HALVES = {("and", 0xFFFF, "shl", 16): "0x5410", ("shr", 16, "and", 0xFFFF0000): "0x7632"}
"""How a half of each of two words becomes a word, and the bytes that it takes."""


def _halves(e: Emitter, op: Op) -> str | None:
    """A word of the low, or of the high, halves of two as one instruction; None for any other."""
    if op.result.dtype is not U32 or op.result.type.width != 1:
        return None
    for (low, first, high, second), selected in _HALVES.items():
        parts = [e.maker(value, kind) for value, kind in zip(op.operands, (low, high), strict=True)]
        if all(p is not None and e.constant(p.operands[1]) == n for p, n in zip(parts, (first, second), strict=True)):
            words = (e.held(U32, e.scalar(part.operands[0])) for part in parts if part is not None)
            return e.result("b32", f"prmt.b32 {{}}, {', '.join(words)}, {selected}")
    return None


@RULES.rule("or")
def _or(e: Emitter, op: Op) -> None:
    """(a and mask) or bits is one instruction: it takes one literal, so the other constant waits in a register."""
    left, right = op.operands
    if (permuted := _halves(e, op)) is not None:
        e.alias(op.result, (permuted,))
        return
    masked, bits = e.maker(left, "and"), e.constant(right) if right.dtype is not BOOL else None
    mask = None if masked is None or bits is None else e.constant(masked.operands[1])
    if masked is None or bits is None or mask is None or e.uses[left] != 1:
        _elementwise(e, op)
        return
    held = e.once(("bits", bits, 0), "b32", f"mov.b32 {{}}, {bits}")
    value = e.held(U32, e.scalar(masked.operands[0]))
    e.alias(op.result, (e.result("b32", f"lop3.b32 {{}}, {value}, {mask}, {held}, {_AND_OR}"),))


@RULES.rule(*sorted({kind for kind, _ in _INSTRUCTIONS} - {"div", "rem", "or"}), *_COMPARISONS, "shl", "shr")
def _elementwise(e: Emitter, op: Op) -> None:
    dtype = op.operands[0].dtype
    e.alias(
        op.result, tuple(instruction(e, op.kind, dtype, list(lanes)) for lanes in zip(*e.operands(op), strict=True))
    )


@RULES.rule("div", "rem")
def _divide(e: Emitter, op: Op) -> None:
    dtype = op.operands[0].dtype
    # Unsigned division is shorter, and the same where neither operand is negative.
    if dtype is I32 and op.result.type.width == 1 and all(e.range_of(value).low >= 0 for value in op.operands):
        dtype = U32
    e.alias(
        op.result, tuple(instruction(e, op.kind, dtype, list(lanes)) for lanes in zip(*e.operands(op), strict=True))
    )


@RULES.rule("select")
def _select(e: Emitter, op: Op) -> None:
    e.alias(op.result, tuple(select(e, op.result.dtype, *lanes) for lanes in zip(*e.operands(op), strict=True)))


@RULES.rule("exp", "log", "sin", "cos", "tanh", "erf", "rsqrt", "pow")
def _routine(e: Emitter, op: Op) -> None:
    routine = getattr(routines, op.kind)
    e.alias(
        op.result,
        tuple(routine(Lane(e), *(e.held(F32, x) for x in lanes)) for lanes in zip(*e.operands(op), strict=True)),
    )


@RULES.rule("cast")
def _cast(e: Emitter, op: Op) -> None:
    source, target = op.operands[0].dtype, op.result.dtype
    e.alias(op.result, tuple(_converted(e, source, target, x) for x in e.lanes(op.operands[0])))


def _converted(e: Emitter, source: DType, target: DType, operand: str) -> str:
    if source is target or {source, target} == {I32, U32}:
        # A negative literal is the same 32 bits.
        return operand
    operand = e.held(source, operand)
    if source is BOOL:
        return e.result(
            register_class(target),
            f"selp.{register_class(target)} {{}}, {literal(target, 1)}, {literal(target, 0)}, {operand}",
        )
    if target is BOOL:
        relation = "neu" if source is F32 else "ne"
        return e.result("pred", f"setp.{relation}.{suffix(source)} {{}}, {operand}, {literal(source, 0)}")
    if target is F32:
        return e.result("f32", f"cvt.rn.f32.{suffix(source)} {{}}, {operand}")
    return e.result("b32", f"cvt.rzi.{suffix(target)}.f32 {{}}, {operand}")


@RULES.rule("bitcast")
def _bitcast(e: Emitter, op: Op) -> None:
    source, target = op.operands[0].dtype, op.result.dtype
    lanes = e.lanes(op.operands[0])
    if register_class(source) != register_class(target):
        lanes = tuple(e.result(register_class(target), f"mov.b32 {{}}, {e.held(source, x)}") for x in lanes)
    e.alias(op.result, lanes)


@RULES.rule("half_to_float")
def _half_to_float(e: Emitter, op: Op) -> None:
    found = []
    for word in e.lanes(op.operands[0]):
        half = e.result("b16", f"cvt.u16.u32 {{}}, {e.held(U32, word)}")
        found.append(e.result("f32", f"cvt.f32.f16 {{}}, {half}"))
    e.alias(op.result, tuple(found))


@RULES.rule("float_to_half")
def _float_to_half(e: Emitter, op: Op) -> None:
    found = []
    for value in e.lanes(op.operands[0]):
        half = e.result("b16", f"cvt.rn.f16.f32 {{}}, {e.held(F32, value)}")
        found.append(e.result("b32", f"cvt.u32.u16 {{}}, {half}"))
    e.alias(op.result, tuple(found))


@RULES.rule("dot4")
def _dot4(e: Emitter, op: Op) -> None:
    left, right, start = (e.held(value.dtype, e.scalar(value)) for value in op.operands)
    e.alias(op.result, (e.result("b32", f"dp4a.s32.s32 {{}}, {left}, {right}, {start}"),))


@RULES.rule("vector")
def _vector(e: Emitter, op: Op) -> None:
    e.alias(op.result, tuple(e.scalar(value) for value in op.operands))


@RULES.rule("extract")
def _extract(e: Emitter, op: Op) -> None:
    e.alias(op.result, (e.lanes(op.operands[0])[op.attrs["lane"]],))
