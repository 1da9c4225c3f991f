"""Ranges: the least and greatest value that an integer of a kernel can have, and how often a loop runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Block, Kernel, Op, Val


@dataclass(frozen=True, slots=True)
class Range:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def join(self, other: Range) -> Range:
        """The least range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))

    def within(self, other: Range) -> bool:
        """Whether the other holds all of this one."""
        return other.low <= self.low and self.high <= other.high


FULL = MappingProxyType({DType.I32: Range(-(1 << 31), (1 << 31) - 1), DType.U32: Range(0, (1 << 32) - 1)})


class Ranges:
    """Ranges of a kernel's i32 and u32 scalars. What wraps, is loaded or is carried by a loop may be anything."""

    def __init__(self, kernel: Kernel) -> None:
        self._group_size = kernel.group_size
        self._groups = kernel.groups
        self._counts = [param.count for param in kernel.params]
        self._known: dict[Val, Range] = {}
        self._block(kernel.body)

    def of(self, value: Val) -> Range:
        """The range of an i32 or u32."""
        return self._known.get(value, FULL[value.dtype])

    def shifted(self, value: Val, other: Val, distance: int) -> None:
        """Say that a new value is another plus `distance`, without wrapping where the other has a known range."""
        if other in self._known:
            known = self._known[other]
            self._set(value, Range(known.low + distance, known.high + distance))

    def trips(self, op: Op) -> int | None:
        """How often a `for` runs, where that is one number for every thread."""
        low, high, step = (self.of(value) for value in op.operands[:3])
        if high.low != high.high or step.low != step.high:
            return None
        counts = {max(0, -((start - high.low) // step.low)) for start in (low.low, low.high)}
        return counts.pop() if len(counts) == 1 else None

    def surely_runs(self, op: Op) -> bool:
        """Whether a `for` runs at least once."""
        return self.of(op.operands[0]).high < self.of(op.operands[1]).low

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if op.kind == "for":
                low, high = (self.of(value) for value in op.operands[:2])
                # Where high − 1 < low the body does not run, and any range holds for it.
                self._set(op.blocks[0].args[0], Range(low.low, max(low.low, high.high - 1)))
            for inner in op.blocks:
                self._block(inner)
            if op.kind == "if":
                for place, result in enumerate(op.results):
                    self._join(result, *(inner.ops[-1].operands[place] for inner in op.blocks))
            elif op.results and op.results[0].type.width == 1:
                self._operation(op)

    def _set(self, value: Val, found: Range) -> None:
        if value.dtype in FULL and found.within(FULL[value.dtype]):
            self._known[value] = found

    def _join(self, result: Val, *values: Val) -> None:
        if result.dtype in FULL and result.type.width == 1:
            first, *rest = (self.of(value) for value in values)
            for other in rest:
                first = first.join(other)
            self._set(result, first)

    def _operation(self, op: Op) -> None:
        result = op.results[0]
        if result.dtype not in FULL:
            return
        match op.kind:
            case "const":
                self._set(result, Range(op.attrs["value"], op.attrs["value"]))
            case "thread_id" | "lane_id" | "subgroup_id":
                self._set(result, Range(0, self._group_size - 1))
            case "group_id":
                most = FULL[DType.I32].high if self._groups is None else self._groups[op.attrs["axis"]] - 1
                self._set(result, Range(0, most))
            case "length":
                self._set(result, Range(self._counts[op.attrs["buffer"]] or 0, FULL[DType.I32].high))
            case "select":
                self._join(result, *op.operands[1:])
            case "cast" | "bitcast":
                source = op.operands[0]
                if source.dtype is DType.BOOL:
                    self._set(result, Range(0, 1))
                elif source.dtype in FULL:
                    self._set(result, self.of(source))
            case _ if op.kind in _RULES:
                self._set(result, _RULES[op.kind](*(self.of(value) for value in op.operands)))
            case "div" | "rem" if op.attrs.get("nonnegative"):
                rule = _div if op.kind == "div" else _rem
                operands = [self.of(value) for value in op.operands]
                self._set(result, rule(*(Range(max(0, r.low), max(0, r.high)) for r in operands)))
            case "div" | "rem":
                rule = _div if op.kind == "div" else _rem
                self._set(result, rule(*(self.of(value) for value in op.operands)))


_ANY = Range(-(1 << 62), 1 << 62)


def _mul(a: Range, b: Range) -> Range:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Range(min(corners), max(corners))


def _div(a: Range, b: Range) -> Range:
    return Range(a.low // b.high, a.high // b.low) if a.low >= 0 and b.low > 0 else _ANY


def _rem(a: Range, b: Range) -> Range:
    return Range(0, min(a.high, b.high - 1)) if a.low >= 0 and b.low > 0 else _ANY


def _and(a: Range, b: Range) -> Range:
    bounds = [r.high for r in (a, b) if r.low >= 0]
    return Range(0, min(bounds)) if bounds else _ANY


def _or(a: Range, b: Range) -> Range:
    if a.low < 0 or b.low < 0:
        return _ANY
    return Range(max(a.low, b.low), (1 << max(a.high.bit_length(), b.high.bit_length())) - 1)


def _shl(a: Range, b: Range) -> Range:
    known = b.low == b.high and 0 <= b.low < 32
    return Range(a.low << b.low, a.high << b.low) if known else _ANY


def _shr(a: Range, b: Range) -> Range:
    if b.low < 0 or b.high > 31:
        return Range(min(a.low, 0), max(a.high, 0))
    return Range(min(a.low >> b.low, a.low >> b.high), max(a.high >> b.low, a.high >> b.high))


_RULES: MappingProxyType[str, Callable[..., Range]] = MappingProxyType(
    {
        "add": lambda a, b: Range(a.low + b.low, a.high + b.high),
        "sub": lambda a, b: Range(a.low - b.high, a.high - b.low),
        "mul": _mul,
        "neg": lambda a: Range(-a.high, -a.low),
        "min": lambda a, b: Range(min(a.low, b.low), min(a.high, b.high)),
        "max": lambda a, b: Range(max(a.low, b.low), max(a.high, b.high)),
        "and": _and, "or": _or, "shl": _shl, "shr": _shr,
    }
)  # fmt: skip
