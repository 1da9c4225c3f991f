"""Kernels joined to one: every element as if each had been launched by itself, on every place of the grid."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.kernel_ir import run_kernel
from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Param
from poot_executor.kernel.passes import optimize
from poot_executor.kernel.side_by_side import Launch, bound_together, side_by_side
from poot_executor.kernel.verify import verify

BUFFER = Access.READ_WRITE


def places(groups, size=4):
    """Stores the place in the grid and in the group of every thread."""
    b = KernelBuilder("places", size)
    out = b.buffer("out", DType.I32, BUFFER)
    x, y, z = (b.group_id(axis) for axis in range(3))
    flat = (z * groups[1] + y) * groups[0] + x
    out[flat * size + b.thread_id()] = ((z * 100 + y) * 100 + x) * 10 + b.thread_id()
    return b.finish()


def turned(size=4):
    """Its group's elements in the other order, through shared memory, and their sum to each."""
    b = KernelBuilder("turned", size)
    source, out = b.buffer("source", DType.F32, BUFFER), b.buffer("out", DType.F32, BUFFER)
    memory = b.shared("memory", DType.F32, size)
    at = b.group_id(0) * size + b.thread_id()
    memory[b.thread_id()] = source[at]
    b.barrier()
    out[at] = memory[size - 1 - b.thread_id()] + b.group_sum(source[at])
    return b.finish()


def parameters(*dtypes):
    return [Param(f"p{i}", dtype, BUFFER) for i, dtype in enumerate(dtypes)]


def run(kernel, groups, *buffers):
    """The kernel as emitters get it, verified, on the interpreter that finds races."""
    launched = optimize(kernel.launched([len(b) for b in buffers], groups), subgroup=False, subgroup_width=None)
    verify(launched)
    assert run_kernel(launched, buffers, groups) == []


@pytest.mark.parametrize("others", [[], [(1, 1, 1)], [(3, 2, 2), (1, 4, 1)]], ids=str)
@pytest.mark.parametrize("groups", [(1, 1, 1), (5, 1, 1), (1, 6, 1), (1, 1, 3), (2, 3, 1), (2, 3, 4)], ids=str)
def test_every_group_knows_its_place_in_its_own_grid(groups, others):
    grids = [*others, groups, (2, 1, 1)]
    tracks = [[Launch(places(g), g, (i,))] for i, g in enumerate(grids)]
    kernel, grid = side_by_side("all", parameters(*[DType.I32] * len(grids)), tracks)
    assert grid == (sum(int(np.prod(g)) for g in grids), 1, 1)
    found = [np.full(int(np.prod(g)) * 4, -1, np.int32) for g in grids]
    run(kernel, grid, *found)
    for g, got in zip(grids, found, strict=True):
        alone = np.full(got.size, -1, np.int32)
        run(places(g), g, alone)
        assert (alone >= 0).all() and (got == alone).all()


def test_one_after_another_in_a_group_that_others_do_not_disturb():
    """Two turns and two sums over one buffer, beside three groups that turn another."""
    first, second = np.arange(4, dtype=np.float32), np.arange(12, dtype=np.float32) ** 2
    middle, end, beside = np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros(12, np.float32)
    chain = [Launch(turned(), (1, 1, 1), (0, 1)), Launch(turned(), (1, 1, 1), (1, 2))]
    kernel, grid = side_by_side("both", parameters(*[DType.F32] * 5), [[Launch(turned(), (3, 1, 1), (3, 4))], chain])
    assert len(kernel.shared) == 1, "what never runs together uses the same memory"
    run(kernel, grid, first, middle, end, second, beside)
    assert middle.tolist() == [9, 8, 7, 6]
    assert end.tolist() == [36, 37, 38, 39]
    groups = second.reshape(3, 4)
    assert (beside.reshape(3, 4) == groups[:, ::-1] + groups.sum(1, keepdims=True)).all()


def test_refusals():
    one = Launch(places((1, 1, 1)), (1, 1, 1), (0,))
    with pytest.raises(KernelError, match=r"groups of \[4, 8\] threads"):
        side_by_side("x", parameters(DType.I32), [[one], [Launch(places((1, 1, 1), 8), (1, 1, 1), (0,))]])
    with pytest.raises(KernelError, match="run in one group"):
        side_by_side("x", parameters(DType.I32), [[one, Launch(places((2, 1, 1)), (2, 1, 1), (0,))]])


def test_two_parameters_bound_as_one():
    """Read and written through one name."""
    b = KernelBuilder("twice", 4)
    source, factor, out = (b.buffer(name, DType.F32, BUFFER) for name in ("source", "factor", "out"))
    out[b.thread_id()] = source[b.thread_id()] * factor[0]
    kernel = bound_together(b.finish(), [0, 1, 0])
    assert [param.name for param in kernel.params] == ["out", "factor"]
    values = np.arange(4, dtype=np.float32)
    run(kernel, (1, 1, 1), values, np.array([3], np.float32))
    assert values.tolist() == [0, 3, 6, 9]
