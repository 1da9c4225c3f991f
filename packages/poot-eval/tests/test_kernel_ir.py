"""The interpreter on whole kernels, against numpy."""

import numpy as np
import pytest

from poot_eval import DivergenceError, OutOfRangeError, kernel_ir, run_kernel
from poot_executor.dtype import F32, I32, U32
from poot_executor.errors import DeviceTimeout, KernelError
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Block, Kernel, KType, Op, Param, Val

READ, READ_WRITE = Access.READ, Access.READ_WRITE


def matvec(rows, columns, group_size):
    """y = W x, a group a row."""
    b = KernelBuilder("matvec", group_size)
    w, x = b.buffer("w", F32, READ), b.buffer("x", F32, READ)
    y = b.buffer("y", F32, READ_WRITE)
    row, total = b.group_id(), b.var(0.0)
    with b.range(b.thread_id(), columns, group_size) as k:
        total.set(b.fma(w[row * columns + k], x[k], total.get()))
    result = b.group_sum(total.get())
    with b.if_(b.thread_id() == 0):
        y[row] = result
    return b.finish()


def test_matvec_equals_numpy(rng):
    rows, columns = 37, 211
    w, x = (
        rng.standard_normal((rows, columns), np.float32),
        rng.standard_normal(columns, np.float32),
    )
    y = np.full(rows, np.nan, np.float32)
    assert run_kernel(matvec(rows, columns, 24), [w.ravel(), x, y], (rows, 1, 1), strict=True) == []
    bound = columns * 2.0**-23 * (np.abs(w) @ np.abs(x))
    assert (np.abs(y - w.astype(np.float64) @ x) <= bound).all()


def test_chunks_of_groups_give_the_same_result(rng, monkeypatch):
    w, x = rng.standard_normal(50 * 64, np.float32), rng.standard_normal(64, np.float32)
    whole, parts = np.zeros(50, np.float32), np.zeros(50, np.float32)
    run_kernel(matvec(50, 64, 16), [w, x, whole], (50, 1, 1))
    monkeypatch.setattr(kernel_ir, "CHUNK_THREADS", 48)
    run_kernel(matvec(50, 64, 16), [w, x, parts], (50, 1, 1))
    assert np.array_equal(whole, parts) and whole.all()


def test_three_axes_of_groups():
    b = KernelBuilder("grid", 1)
    y = b.buffer("y", I32, READ_WRITE)
    gx, gy, gz = (b.group_id(axis) for axis in range(3))
    y[(gz * 3 + gy) * 5 + gx] = gx + gy * 10 + gz * 100
    out = np.zeros(30, np.int32)
    assert run_kernel(b.finish(), [out], (5, 3, 2), strict=True) == []
    z, y_, x = np.mgrid[0:2, 0:3, 0:5]
    assert np.array_equal(out, (x + y_ * 10 + z * 100).ravel())


def test_divergent_loops_and_branches(rng):
    """Collatz steps of each thread's number: a while with its own trip count, an if in it."""
    b = KernelBuilder("collatz", 64)
    x, y = b.buffer("x", U32, READ), b.buffer("y", I32, READ_WRITE)
    i = b.group_id() * 64 + b.thread_id()
    with b.if_(i < y.length()):
        n, steps = b.var(x[i]), b.var(0)
        with b.while_(lambda: n.get() != b.const(1, U32)):
            with b.if_((n.get() & b.const(1, U32)) == b.const(0, U32)):
                n.set(n.get() >> b.const(1, U32))
            with b.else_():
                n.set(n.get() * b.const(3, U32) + b.const(1, U32))
            steps.set(steps.get() + 1)
        y[i] = steps.get()
    kernel = b.finish()
    numbers = rng.integers(1, 5000, 150, dtype=np.uint32)
    out = np.full(150, -1, np.int32)
    assert run_kernel(kernel, [numbers, out], (3, 1, 1), strict=True) == []
    assert out.tolist() == [collatz(number) for number in numbers.tolist()]


def collatz(number):
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


def test_bounds_of_a_loop_may_differ_by_thread():
    b = KernelBuilder("triangle", 32)
    y = b.buffer("y", I32, READ_WRITE)
    t, total = b.thread_id(), b.var(0)
    with b.range(t, t * 3, 2) as i:
        total.set(total.get() + i)
    y[t] = total.get()
    out = np.full(32, -1, np.int32)
    run_kernel(b.finish(), [out], (1, 1, 1), strict=True)
    assert out.tolist() == [sum(range(t, 3 * t, 2)) for t in range(32)]


@pytest.mark.parametrize("width", [4, 8, 32])
def test_subgroups(rng, width):
    size = 72  # the last subgroup of 32 is not full
    b = KernelBuilder("subgroups", size)
    x = b.buffer("x", I32, READ)
    names = ("sum", "max", "min", "shuffle", "xor", "lane", "group")
    out = [b.buffer(name, I32, READ_WRITE) for name in names]
    t, v = b.thread_id(), x[b.thread_id()]
    lane = b.lane_id() + b.subgroup_id() * b.subgroup_size()
    results = (
        b.subgroup_sum(v), b.subgroup_max(v), b.subgroup_min(v), b.subgroup_shuffle(v, 1),
        b.subgroup_shuffle_xor(v, 2), lane, b.group_sum(v),
    )  # fmt: skip
    for buffer, result in zip(out, results, strict=True):
        buffer[t] = result
    x_ = rng.integers(-1000, 1000, size, dtype=np.int32)
    got = [np.zeros(size, np.int32) for _ in out]
    assert run_kernel(b.finish(), [x_, *got], (1, 1, 1), subgroup_width=width, strict=True) == []
    for first in range(0, size, width):
        part = x_[first : first + width]
        run = slice(first, first + width)
        assert (got[0][run] == part.sum()).all() and (got[1][run] == part.max()).all()
        assert (got[2][run] == part.min()).all() and (got[3][run] == part[1]).all()
        assert np.array_equal(got[4][run], part[np.arange(part.size) ^ 2])
    assert np.array_equal(got[5], np.arange(size))
    assert (got[6] == x_.sum()).all()


def test_a_shuffle_from_no_lane_is_a_pattern_that_shows():
    b = KernelBuilder("shuffle", 8)
    y = b.buffer("y", F32, READ_WRITE)
    y[b.thread_id()] = b.subgroup_shuffle(b.cast(b.thread_id(), F32), b.lane_id() + 1)
    out = np.zeros(8, np.float32)
    run_kernel(b.finish(), [out], (1, 1, 1), subgroup_width=8)
    assert out[:7].tolist() == [1, 2, 3, 4, 5, 6, 7] and np.isnan(out[7])


def test_vectors(rng):
    b = KernelBuilder("vectors", 16)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, READ_WRITE)
    i = b.thread_id() * 4
    y.store(i, x.load(i, 4) * 2.0 + b.cast(b.thread_id(), F32))
    x_, out = rng.standard_normal(64, np.float32), np.zeros(64, np.float32)
    assert run_kernel(b.finish(), [x_, out], (1, 1, 1), strict=True) == []
    assert np.array_equal(out, x_ * 2 + np.repeat(np.arange(16, dtype=np.float32), 4))


def test_atomics_give_every_old_value_once():
    b = KernelBuilder("count", 64)
    counter, y = b.buffer("counter", I32, READ_WRITE), b.buffer("y", I32, READ_WRITE)
    old = counter.atomic("add", 0, 1)
    y[old] = b.group_id() * 64 + b.thread_id()
    total, out = np.zeros(1, np.int32), np.full(192, -1, np.int32)
    assert run_kernel(b.finish(), [total, out], (3, 1, 1), strict=True) == []
    assert total[0] == 192 and sorted(out.tolist()) == list(range(192))


def test_robust_access_is_recorded_and_strict_raises():
    b = KernelBuilder("stray", 8)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, READ_WRITE)
    t = b.thread_id()
    y[t + 1] = x[t * 2 - 2] + 1.0
    kernel = b.finish()
    x_, out = np.arange(10, dtype=np.float32), np.zeros(8, np.float32)
    load, store = run_kernel(kernel, [x_, out], (1, 1, 1))
    assert (load.array, load.access, load.index, load.count) == ("x", "load", -2, 10)
    assert (store.array, store.access, store.index, store.count) == ("y", "store", 8, 8)
    assert "test_kernel_ir.py" in load.line
    assert out[2:7].tolist() == [1, 3, 5, 7, 9]
    assert np.isnan(out[[1, 7]]).all() and out[0] == 0  # what is read outside shows
    with pytest.raises(OutOfRangeError, match=r"load x\[-2\] of 10"):
        run_kernel(kernel, [x_, out], (1, 1, 1), strict=True)


def test_counts_bound_what_a_kernel_sees():
    b = KernelBuilder("length", 8)
    x, y = b.buffer("x", F32, READ), b.buffer("y", I32, READ_WRITE)
    y[b.thread_id()] = x.length() + b.cast(x[b.thread_id()] == 1.0, I32)
    out = np.zeros(8, np.int32)
    (fault,) = run_kernel(b.finish(), [np.ones(8, np.float32), out], (1, 1, 1), counts=[5, 8])
    assert fault.index == 5 and out.tolist() == [6, 6, 6, 6, 6, 5, 5, 5]


def test_a_masked_access_outside_is_none():
    b = KernelBuilder("guarded", 8)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, READ_WRITE)
    with b.if_(b.thread_id() < x.length()):
        y[b.thread_id()] = x[b.thread_id()]
    out = np.zeros(5, np.float32)
    assert run_kernel(b.finish(), [np.ones(5, np.float32), out], (1, 1, 1)) == []


def test_checks_report_code_and_place():
    b = KernelBuilder("checked", 4)
    x = b.buffer("x", I32, READ)
    v = x[b.group_id() * 4 + b.thread_id()]
    b.check(v >= 0, 7)
    with b.if_(v > 100):
        b.check(v < 200, 9)
    kernel = b.finish()
    values = np.array([1, 2, 3, 4, 5, -1, 500, 150], np.int32)
    first, second = run_kernel(kernel, [values], (2, 1, 1))
    assert (first.kernel, first.code, first.group, first.thread) == ("checked", 7, 1, 1)
    assert (second.code, second.group, second.thread) == (9, 1, 2)
    assert run_kernel(kernel, [np.abs(values[:4])], (1, 1, 1)) == []


def divergent(kind):
    """A kernel that the verifier would refuse: half of a group reaches an operation of all."""
    thread, half, flag, value = (Val(KType(d)) for d in (I32, I32, U32, I32))
    inner = Op(kind) if kind == "barrier" else Op(kind, (thread,), (value,))
    blocks = (Block((), (inner, Op("yield"))), Block((), (Op("yield"),)))
    ops = (
        Op("thread_id", (), (thread,)), Op("const", (), (half,), {"value": 3}),
        Op("lt", (thread, half), (flag,)), Op("if", (flag,), (), {}, blocks, "here.py:1"),
    )  # fmt: skip
    return Kernel("divergent", (), (), 8, Block((), ops))


@pytest.mark.parametrize("kind", ["barrier", "group_sum", "subgroup_max", "subgroup_shuffle_xor"])
def test_operations_of_a_whole_group_in_divergent_flow_are_refused(kind):
    with pytest.raises(DivergenceError, match=f"{kind} in divergent control flow"):
        run_kernel(divergent(kind), [], (1, 1, 1))


def test_a_loop_without_end_meets_the_timeout():
    b = KernelBuilder("endless", 4)
    x, n = b.buffer("x", I32, READ), b.var(0)
    with b.while_(lambda: n.get() >= 0):
        n.set(n.get() + x[0])
    with pytest.raises(DeviceTimeout, match="kernel endless"):
        run_kernel(b.finish(), [np.zeros(1, np.int32)], (1, 1, 1), timeout=0.05)


def test_buffers_that_do_not_fit_are_refused():
    kernel = matvec(1, 4, 4)
    good = [np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros(1, np.float32)]
    for bad in ([*good[:2]], [good[0].astype(np.int32), *good[1:]], [good[0][::2], *good[1:]]):
        with pytest.raises(KernelError):
            run_kernel(kernel, bad, (1, 1, 1))
    with pytest.raises(KernelError, match="no groups"):
        run_kernel(kernel, good, (0, 1, 1))
    with pytest.raises(KernelError, match="has 1 elements, not 2"):
        run_kernel(kernel, good, (1, 1, 1), counts=[4, 4, 2])
    assert Param("x", F32, READ).dtype is F32
