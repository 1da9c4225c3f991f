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
    and likewise for products: integers wrap, so both orders agree; (x + y) − x is y. Rounding a multiple of 2ᵏ down to
    one is nothing. A comparison, minimum or maximum that ranges decide is what they say.
    """
    return _Strength(kernel).kernel(kernel)


class _Strength(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._ranges = Ranges(kernel)
        self._definitions: dict[Val, Op] = {}
        self._loops = [0]
        self._made: dict[Val, int] = {}

    def before(self, op: Op) -> Op:
        if op.kind in ("for", "while"):
            self._loops.append(id(op))
        return op

    def visit(self, op: Op) -> None:
        if op.kind in ("for", "while"):
            self._loops.pop()
        for value in op.results:
            self._made[value] = self._loops[-1]
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
                return self._apart(self._whole(self._product(op)))
            case "add":
                return self._apart(self._sum(self._joined(op)))
            case "sub":
                self._difference(op)
            case "div" | "rem":
                return self._apart(self._whole(self._division(op, a, b)))
            case "shl" | "and" | "shr":
                return self._apart(self._whole(op))
            case "min" | "max":
                self._pick(op, a, b)
            case _ if op.kind in _HOLDS:
                surely, never = _HOLDS[op.kind](a, b)
                if surely or never:
                    return _constant(op, surely)
        return op

    def _difference(self, op: Op) -> None:
        """(x + y) − x is y: integers wrap."""
        total = self._definitions.get(op.operands[0])
        if total is None or total.kind != "add":
            return
        left, right = total.operands
        if op.operands[1] in (left, right):
            self.replaced[op.result] = right if op.operands[1] is left else left

    def _sum(self, op: Op) -> Op:
        """x rounded down to a multiple of 2ᵏ, plus its rest, is x."""
        if op.kind != "add" or self._gave_way(op):
            return op
        for up, rest in (op.operands, op.operands[::-1]):
            whole, low = self._definitions.get(up), self._definitions.get(rest)
            if whole is None or low is None or whole.kind != "shl" or low.kind != "and":
                continue
            down = self._definitions.get(whole.operands[0])
            count, mask = self._constant(whole.operands[1]), self._constant(low.operands[1])
            if down is None or down.kind != "shr" or count is None or mask != (1 << count) - 1:
                continue
            if self._constant(down.operands[1]) == count and down.operands[0] is low.operands[0]:
                self.replaced[op.result] = low.operands[0]
        return op

    def _apart(self, op: Op) -> Op:
        """A constant that is added goes outwards, where several indices then share what is left, and an address takes
        it as an offset."""
        if self._gave_way(op) or op.kind not in ("add", "shl", "shr", "and"):
            return op
        right = self._constant(op.operands[1])
        for place in (0, 1) if op.kind == "add" else (0,):
            inner = self._definitions.get(op.operands[place])
            constant = self._constant(inner.operands[1]) if inner is not None and inner.kind == "add" else None
            if inner is None or constant is None:
                continue
            value = inner.operands[0]
            if op.kind == "add" and right is None:
                # Made before a loop, the sum stays one: apart, it would be two additions inside.
                if self._made.get(inner.result) != self._loops[-1]:
                    continue
                return self._plus(op, "add", (value, op.operands[1 - place]), constant)
            if right is None or right < 0:
                continue
            if op.kind == "shl":
                return self._plus(op, "shl", (value, op.operands[1]), constant << (right & 31))
            whole = self._zeros(inner.operands[1])
            if op.kind == "and" and right & (right + 1) == 0 and whole >= right.bit_length():
                return replace(op, operands=(value, op.operands[1]))
            exact = self._ranges.of(inner.result) != FULL[inner.result.dtype] and self._ranges.of(value).low >= 0
            if op.kind == "shr" and right < 32 and whole >= right and constant >= 0 and exact:
                return self._plus(op, "shr", (value, op.operands[1]), constant >> right)
        return op

    def _plus(self, op: Op, kind: str, operands: tuple[Val, ...], constant: int) -> Op:
        """An operation made before this one, which becomes its result plus a constant."""
        made = self._whole(self._sum(Op(kind, operands, (Val(op.result.type),), {}, (), op.line)))
        value = self.replaced.pop(made.result, made.result)
        if value is made.result:
            self._definitions[value] = made
            self._made[value] = self._loops[-1]
            self._ranges.shifted(value, op.result, -constant)
            self.out.append(made)
        return replace(op, kind="add", operands=(value, self._make(op, wrap(constant, op.result.dtype))), attrs={})

    def _whole(self, op: Op) -> Op:
        """What rounds a multiple of 2ᵏ down to one changes nothing, and its rest is zero."""
        if op.kind not in ("shl", "and") or self._gave_way(op):
            return op
        value, count = op.operands[0], self._constant(op.operands[1])
        if count is None or count < 0:
            return op
        if op.kind == "and":
            return _constant(op, 0) if count.bit_length() <= self._zeros(value) else op
        down = self._definitions.get(value)
        rounds = down is not None and down.kind == "shr" and self._constant(down.operands[1]) == count
        if down is not None and rounds and self._zeros(down.operands[0]) >= count:
            self.replaced[op.result] = down.operands[0]
        return op

    def _zeros(self, value: Val, depth: int = 6) -> int:
        """Low bits of an integer that are surely zero."""
        op = self._definitions.get(value)
        if op is None or depth == 0:
            return 0
        match op.kind:
            case "const":
                number = op.attrs["value"]
                return 32 if number == 0 else (number & -number).bit_length() - 1
            case "shl":
                count = self._constant(op.operands[1])
                return 0 if count is None else min(32, self._zeros(op.operands[0], depth - 1) + (count & 31))
            case "add" | "sub" | "or":
                return min(self._zeros(v, depth - 1) for v in op.operands)
            case "mul":
                return min(32, sum(self._zeros(v, depth - 1) for v in op.operands))
            case _:
                return 0

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
