"""Index arithmetic made cheap: powers of two by shifts and masks, sums of constants joined, bounds that always hold."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.dtype import DType
from poot_executor.kernel.fold import wrap
from poot_executor.kernel.ir import Kernel, KType, Op, Val
from poot_executor.kernel.passes.ranges import FULL, Range, Ranges
from poot_executor.kernel.rewrite import Rewriter

_HOLDS = {
    "lt": lambda a, b: (a.high < b.low, a.low >= b.high),
    "le": lambda a, b: (a.high <= b.low, a.low > b.high),
    "gt": lambda a, b: (a.low > b.high, a.high <= b.low),
    "ge": lambda a, b: (a.low >= b.high, a.high < b.low),
    "eq": lambda a, b: (a == b and a.low == a.high, a.high < b.low or a.low > b.high),
    "ne": lambda a, b: (a.high < b.low or a.low > b.high, a == b and a.low == a.high),
}  # fmt: skip
"""For each comparison of two ranges: whether it surely holds, and whether it surely does not."""


def reduce_strength(kernel: Kernel) -> Kernel:
    """Cheaper integer operations with the same bits.

    x·2ᵏ is a shift. Division and remainder by 2ᵏ are a shift and a mask where the dividend is not negative: a u32, an
    i32 whose range says so, or one of the language's `//` and `%`, whose contract it is. (x + a) + b is x + (a + b),
    and likewise for products: integers wrap, so both orders agree. A comparison, minimum or maximum that ranges
    decide is what they say.
    """
    return _Strength(kernel).kernel(kernel)


class _Strength(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._ranges = Ranges(kernel)
        self._definitions: dict[Val, Op] = {}

    def visit(self, op: Op) -> None:
        if len(op.operands) == 2 and all(v.dtype in FULL and v.type.width == 1 for v in op.operands):
            op = self._binary(op)
        if not op.blocks and op.kind != "yield" and not self._gave_way(op):
            for value in op.results:
                self._definitions[value] = op
        if not self._gave_way(op):
            self.out.append(op)

    def _gave_way(self, op: Op) -> bool:
        return len(op.results) == 1 and op.results[0] in self.replaced

    def _binary(self, op: Op) -> Op:
        a, b = (self._ranges.of(value) for value in op.operands)
        match op.kind:
            case "mul":
                return self._product(op)
            case "add":
                return self._joined(op)
            case "div" | "rem":
                return self._division(op, a, b)
            case "min" | "max":
                self._pick(op, a, b)
            case _ if op.kind in _HOLDS:
                surely, never = _HOLDS[op.kind](a, b)
                if surely or never:
                    return _constant(op, surely)
        return op

    def _pick(self, op: Op, a: Range, b: Range) -> None:
        """A minimum or maximum of which one operand always comes out."""
        first = a.high <= b.low if op.kind == "min" else a.low >= b.high
        second = b.high <= a.low if op.kind == "min" else b.low >= a.high
        if first or second:
            self.replaced[op.result] = op.operands[0 if first else 1]

    def _product(self, op: Op) -> Op:
        op = self._joined(op)
        factor = self._constant(op.operands[1])
        power = _power(factor, op.result.dtype)
        if op.kind != "mul" or power is None:
            return op
        return replace(op, kind="shl", operands=(op.operands[0], self._count(op, power)))

    def _joined(self, op: Op) -> Op:
        """(x + a) + b as x + (a + b), (x·a)·b as x·(a·b); a constant goes to the right."""
        left, right = op.operands
        if self._constant(left) is not None and self._constant(right) is None:
            left, right = right, left
        outer = self._constant(right)
        inner = self._definitions.get(left)
        if outer is None:
            return op
        if inner is not None and inner.kind == op.kind:
            constant = self._constant(inner.operands[1])
            if constant is not None:
                value = constant + outer if op.kind == "add" else constant * outer
                return replace(op, operands=(inner.operands[0], self._make(op, wrap(value, op.result.dtype))))
        if op.kind == "mul" and inner is not None and inner.kind == "shl":
            count = self._constant(inner.operands[1])
            if count is not None:
                value = wrap(outer << (count & 31), op.result.dtype)
                return replace(op, operands=(inner.operands[0], self._make(op, value)))
        return replace(op, operands=(left, right))

    def _division(self, op: Op, a: Range, b: Range) -> Op:
        divisor = self._constant(op.operands[1])
        natural = a.low >= 0 or op.attrs.get("nonnegative", False)
        if divisor is None or divisor <= 0 or not natural:
            return op
        if a.low >= 0 and a.high < divisor:
            if op.kind == "div":
                return _constant(op, 0)
            self.replaced[op.result] = op.operands[0]
            return op
        power = _power(divisor, op.result.dtype)
        if power is None:
            return op
        if op.kind == "div":
            shift = self._count(op, power)
            return replace(op, kind="shr", operands=(op.operands[0], shift), attrs={})
        mask = self._make(op, divisor - 1)
        return replace(op, kind="and", operands=(op.operands[0], mask), attrs={})

    def _constant(self, value: Val) -> int | None:
        op = self._definitions.get(value)
        return op.attrs["value"] if op is not None and op.kind == "const" else None

    def _count(self, op: Op, power: int) -> Val:
        return self._make(op, power)

    def _make(self, op: Op, number: int) -> Val:
        """A constant of the operation's dtype, defined before it."""
        made = Op("const", (), (Val(KType(op.result.dtype)),), {"value": number}, (), op.line)
        self._definitions[made.result] = made
        self.out.append(made)
        return made.result


def _constant(op: Op, value: int) -> Op:
    return Op("const", (), op.results, {"value": value}, (), op.line)


def _power(number: int | None, dtype: DType) -> int | None:
    """k where a number is 2ᵏ with 0 < k; of an i32 the sign bit is none."""
    if number is None or number <= 1 or number & (number - 1):
        return None
    return number.bit_length() - 1
