"""What devices that record kernels ask of a command, whatever runs it: a runtime would not say what is wrong, or say it
too late."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.device import Copy, Dispatch
from poot_executor.errors import DeviceError
from poot_executor.kernel.ir import Param


def check_arguments(kernel: str, dispatch: Dispatch, params: int) -> None:
    """Raise DeviceError for more or fewer arguments than a kernel of that name has parameters, and ValueError for one
    of no elements or of more than its slice has words; the last word may be a part of one."""
    if len(dispatch.args) != params:
        raise DeviceError(f"kernel {kernel} has {params} parameters and was given {len(dispatch.args)} arguments")
    for arg in dispatch.args:
        if not 0 < arg.count <= -(-arg.slice.nbytes // 4):
            raise ValueError(f"kernel {kernel}: {arg.count} elements in {arg.slice.nbytes} bytes")


def check_counts(kernel: str, dispatch: Dispatch, params: Sequence[Param]) -> None:
    """Raise ValueError for an argument with fewer elements than the kernel relies on, whose accesses it does not
    guard."""
    for arg, param in zip(dispatch.args, params, strict=True):
        if param.count is not None and arg.count < param.count:
            raise ValueError(f"kernel {kernel}: {arg.count} elements, it was compiled for {param.count}")


def check_copy(copy: Copy) -> None:
    """Raise ValueError for slices of different lengths, and for those that overlap."""
    source, target = copy.source, copy.target
    if source.nbytes != target.nbytes:
        raise ValueError(f"a copy of {source.nbytes} bytes to {target.nbytes}")
    if source.buffer is target.buffer and abs(source.offset - target.offset) < source.nbytes:
        raise ValueError("a copy within a buffer whose source and target overlap")
