"""Running one hand-written kernel on a device, and in the interpreter, over equal buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.kernel_ir import run_kernel
from poot_executor.compile.target import Caps
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Device, Dispatch
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel.passes import optimize
from poot_executor.kernel_device import KernelDevice

Array = NDArray[Any]


def kernel_device(device: Device) -> KernelDevice:
    """The device, if it runs kernels; else the test is skipped, saying so."""
    if not isinstance(device, KernelDevice):
        pytest.skip(f"{device.target.kind} takes whole graphs and no kernels")
    return device


def prepared(kernel: Kernel, caps: Caps) -> Kernel:
    """The kernel as the compiler would hand it over: group reductions lowered, passes run."""
    return optimize(kernel, subgroup="subgroup" in caps.features, subgroup_width=caps.subgroup_width)


def launch(
    device: KernelDevice, kernel: Kernel, arrays: Sequence[Array], groups: tuple[int, int, int] = (1, 1, 1)
) -> list[Array]:
    """Run a kernel over copies of 1-D arrays of the parameters' dtypes; the arrays afterwards.

    Buffers are given back whatever happens. Raises what `synchronize` raises.
    """
    buffers = []
    try:
        args = []
        for param, array in zip(kernel.params, arrays, strict=True):
            kind = BufferKind.WEIGHT if param.access is Access.READ else BufferKind.ARENA
            buffer = device.allocate(kind, array.nbytes)
            buffers.append(buffer)
            device.write(buffer, array)
            args.append(BoundArg(BufferSlice(buffer, 0, array.nbytes), array.size))
        recording = device.record([Dispatch(device.loaded(kernel), tuple(args), groups, 1)], None)
        try:
            device.replay(recording)
            device.synchronize()
        finally:
            device.release(recording)
        results = [np.empty_like(array) for array in arrays]
        for buffer, result in zip(buffers, results, strict=True):
            device.read(buffer, result)
        return results
    finally:
        for buffer in buffers:
            device.free(buffer)


def written(
    device: KernelDevice, kernel: Kernel, arrays: Sequence[Array], groups: int | tuple[int, int, int]
) -> list[Array]:
    """`launch`, and of the arrays only those that the kernel may write. One number is the groups along the first
    axis.
    """
    grid = (groups, 1, 1) if isinstance(groups, int) else groups
    left = launch(device, kernel, arrays, grid)
    return [a for param, a in zip(kernel.params, left, strict=True) if param.access is Access.READ_WRITE]


def interpreted(kernel: Kernel, arrays: Sequence[Array], groups: tuple[int, int, int], caps: Caps) -> list[Array]:
    """The same in the interpreter, where races and stray stores raise."""
    copies = [array.copy() for array in arrays]
    faults = run_kernel(kernel, copies, groups, subgroup_width=caps.subgroup_width or 1, strict=True)
    assert not faults, faults
    return copies
