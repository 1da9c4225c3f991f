"""Unrolling: a `for` with the attribute unroll=n does n rounds' work in one."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Block, Kernel, KType, Op, Val
from poot_executor.kernel.passes.ranges import FULL, Ranges
from poot_executor.kernel.rewrite import Rewriter, clone

_I32 = KType(DType.I32)


def unroll_loops(kernel: Kernel) -> Kernel:
    """Unroll loops that ask for it, keeping the order of what they do.

    A loop whose number of rounds is known, and less than 2n, becomes straight code (so does any loop of one round);
    one with more has its remainder after it as straight code. Where the number is not known but the step is, a loop
    over the remainder follows.
    """
    return _Unroll(kernel).kernel(kernel)


class _Unroll(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._ranges = Ranges(kernel)
        self._line = ""

    def visit(self, op: Op) -> None:
        if op.kind != "for":
            self.out.append(op)
            return
        times = op.attrs.get("unroll", 1)
        self._line = op.line
        step = self._ranges.of(op.operands[2])
        plain = replace(op, attrs={key: v for key, v in op.attrs.items() if key != "unroll"})
        trips = self._ranges.trips(op)
        if trips is not None and trips < 2 * times:
            values = self._straight(plain, range(trips), op.operands[0], op.operands[3:])
            self.replaced.update(zip(op.results, values, strict=True))
        elif times == 1 or step.low != step.high:
            self.out.append(plain)
        elif trips is not None:
            self._known(plain, times, trips, step.low)
        else:
            self._unknown(plain, times, step.low)

    def _known(self, op: Op, times: int, trips: int, step: int) -> None:
        """A loop over whole bunches of rounds, then the rest."""
        rest = trips % times
        low, high = op.operands[:2]
        # The bound less the remainder's rounds lies past the last whole bunch and not past the remainder.
        end = self._make(self._ranges.of(high).low - rest * step) if rest else high
        values = self._bunches(op, times, step, low, end, op.operands[3:], None)
        if rest:
            first = self._plus(low, (trips - rest) * step)
            values = self._straight(op, range(rest), first, values)
        self.replaced.update(zip(op.results, values, strict=True))

    def _unknown(self, op: Op, times: int, step: int) -> None:
        """A loop while a whole bunch fits, that carries where it stopped, then the loop as it was from there."""
        low, high = op.operands[:2]
        end = self._less(high, (times - 1) * step)
        next_low, *values = self._bunches(op, times, step, low, end, op.operands[3:], low)
        self.out.append(replace(op, operands=(next_low, high, op.operands[2], *values)))

    def _bunches(
        self, op: Op, times: int, step: int, low: Val, end: Val, initial: tuple[Val, ...], start: Val | None
    ) -> tuple[Val, ...]:  # fmt: skip
        """The loop that does `times` rounds in one. With `start` it carries the next index before the other values."""
        body = op.blocks[0]
        index = Val(_I32, body.args[0].hint)
        args = tuple(Val(value.type, value.hint) for value in body.args[1:])
        next_arg = () if start is None else (Val(_I32),)
        outer, self.out = self.out, []
        values = self._rounds(body, range(times), index, args, step)
        following = () if start is None else (self._plus(index, times * step),)
        ops, self.out = self.out, outer
        end_op = Op("yield", (*following, *values), (), {}, (), op.line)
        block = Block((index, *next_arg, *args), (*ops, end_op))
        first = () if start is None else (start,)
        results = (*(Val(_I32) for _ in first), *(Val(v.type, v.hint) for v in op.results))
        operands = (low, end, self._make(times * step), *first, *initial)
        self.out.append(replace(op, operands=operands, results=results, blocks=(block,)))
        return results

    def _straight(self, op: Op, rounds: range, low: Val, values: tuple[Val, ...]) -> tuple[Val, ...]:
        step = self._ranges.of(op.operands[2])
        if step.low != step.high and len(rounds) > 1:
            raise AssertionError("the rounds of a loop with an unknown step are not known")
        return self._rounds(op.blocks[0], rounds, low, values, step.low)

    def _rounds(self, body: Block, rounds: range, first: Val, values: tuple[Val, ...], step: int) -> tuple[Val, ...]:
        """The body once for each round, each with its index, what one yields carried to the next."""
        for place in rounds:
            index = first if place == 0 else self._plus(first, place * step)
            mapping = dict(zip(body.args, (index, *values), strict=True))
            *ops, last = clone(body.ops, mapping)
            self.out.extend(ops)
            values = last.operands
        return values

    def _less(self, high: Val, number: int) -> Val:
        """A bound less a number, or the least i32 where that would wrap: either way no whole bunch fits below it."""
        least = FULL[DType.I32].low
        if self._ranges.of(high).low - number < least:
            op = Op("max", (high, self._make(least + number)), (Val(_I32),), {}, (), self._line)
            self.out.append(op)
            high = op.result
        return self._plus(high, -number)

    def _plus(self, value: Val, number: int) -> Val:
        op = Op("add", (value, self._make(number)), (Val(_I32),), {}, (), self._line)
        self.out.append(op)
        return op.result

    def _make(self, number: int) -> Val:
        op = Op("const", (), (Val(_I32),), {"value": number}, (), self._line)
        self.out.append(op)
        return op.result
