"""What is known of a kernel's indices, for emitters that guard accesses themselves: which need no guard, and which are
near another one."""

from __future__ import annotations

from poot_executor.kernel.ir import Kernel, Op, Val
from poot_executor.kernel.passes.ranges import Range, Ranges


class KnownIndices:
    """The values of one kernel, by what makes them and what they can be."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.ranges = Ranges(kernel)
        self._makers = {value: op for op in kernel.body.walk() for value in op.results}

    def range_of(self, value: Val) -> Range:
        """What an integer is known to lie in."""
        return self.ranges.of(value)

    def maker(self, value: Val, kind: str) -> Op | None:
        """The operation that makes a value, where it is of a kind."""
        made = self._makers.get(value)
        return made if made is not None and made.kind == kind else None

    def constant(self, value: Val) -> int | None:
        """The number that an integer is, where it is a constant."""
        made = self.maker(value, "const")
        return None if made is None else made.attrs["value"]

    def inside(self, place: int, index: Val, width: int) -> bool:
        """Whether an access of `width` elements is known to lie in what every launch binds."""
        count, known = self.kernel.params[place].count, self.range_of(index)
        return count is not None and known.low >= 0 and known.high + width <= count

    def near(self, index: Val) -> tuple[Val, int]:
        """An index as another one and a number of elements from there, as far as constants were added to what is not
        negative: the sum does not wrap where the index lies inside a buffer."""
        base, offset = index, 0
        while (made := self.maker(base, "add")) is not None:
            left, right = made.operands
            constant = self.constant(right)
            if constant is None or self.range_of(left).low < 0:
                break
            base, offset = left, offset + constant
        return base, offset
