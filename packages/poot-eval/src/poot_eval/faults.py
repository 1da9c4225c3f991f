"""What an interpreted kernel can do wrong: what it reports, and what it raises."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.errors import KernelError


@dataclass(frozen=True, slots=True)
class CheckFault:
    """A `check` that was false: the kernel, the check's code, and the first thread (of `group`)
    that failed it."""

    kernel: str
    code: int
    group: int
    thread: int


@dataclass(frozen=True, slots=True)
class RangeFault:
    """An access outside an array, or a vector access that is not aligned to its width.

    `access` is "load", "store" or "atomic", `index` the first offending element index, `count` the
    array's elements.
    """

    kernel: str
    array: str
    access: str
    index: int
    count: int
    line: str = ""

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"kernel {self.kernel}: {self.access} {self.array}[{self.index}] of {self.count}{where}"


Fault = CheckFault | RangeFault


class OutOfRangeError(KernelError):
    """A kernel left an array while accesses are strict."""

    def __init__(self, fault: RangeFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class RaceError(KernelError):
    """Two threads touched one element, one of them to write it, and nothing orders them."""

    def __init__(self, kernel: str, array: str, index: int, what: str, line: str = "") -> None:
        where = f" ({line})" if line else ""
        super().__init__(f"kernel {kernel}: race on {array}[{index}]: {what}{where}")
        self.kernel = kernel
        self.array = array
        self.index = index


class DivergenceError(KernelError):
    """A barrier or an operation across threads that only some of its threads reached."""
