"""The rest of the kernel IR in hand-written kernels: grids, memory, control flow, other threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.compare import assert_matches
from poot_eval.conformance.inputs import Rng, anything, floats, integers
from poot_eval.conformance.launching import interpreted, kernel_device, launch, prepared
from poot_executor.device import Device
from poot_executor.dtype import BF16, F16, F32, I8, I32, U8, U32, DType, to_bytes
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel_device import KernelDevice

Array = NDArray[Any]

READ, READ_WRITE = Access.READ, Access.READ_WRITE


def assert_kernel(
    device: KernelDevice, kernel: Kernel, arrays: list[Array], groups: tuple[int, int, int] = (1, 1, 1)
) -> list[Array]:
    """Run a kernel on the device and in the interpreter; every word of every buffer must be
    equal."""
    expected = interpreted(kernel, arrays, groups, device.target.caps)
    got = launch(device, prepared(kernel, device.target.caps), arrays, groups)
    for mine, theirs, param in zip(got, expected, kernel.params, strict=True):
        assert_matches(mine, theirs, 0.0, f"{kernel.name} {param.name}")
    return got


class KernelFlowConformance:
    """Grids, memory and control flow."""

    def test_three_axes_of_groups(self, device: Device) -> None:
        """Each group's place, over more groups than a device runs at once."""
        b = KernelBuilder("grid", 32)
        out = b.buffer("out", I32, READ_WRITE)
        x, y, z = (b.group_id(axis) for axis in range(3))
        place = (z * 11 + y) * 37 + x
        with b.if_(b.thread_id() == place % 32):
            out[place] = x + y * 100 + z * 10000
        got = assert_kernel(kernel_device(device), b.finish(), [np.full(37 * 11 * 3, -1, np.int32)], (37, 11, 3))
        assert got[0].min() == 0

    def test_length_and_bounds(self, device: Device, rng: Rng) -> None:
        """A kernel sees the element count that was bound, and nothing past it."""
        b = KernelBuilder("length", 64)
        x, out = b.buffer("x", F32, READ), b.buffer("out", F32, READ_WRITE)
        i = b.group_id() * 64 + b.thread_id()
        with b.if_(i < x.length()):
            out[i] = x[i] + b.cast(x.length(), F32)
        out_ = np.full(130, -5, np.float32)
        assert_kernel(kernel_device(device), b.finish(), [floats(rng, (101,), F32), out_], (3, 1, 1))

    def test_loops_with_bounds_of_their_own(self, device: Device) -> None:
        """A loop whose trip count differs by thread, nested in one that carries two values."""
        b = KernelBuilder("loops", 64)
        out = b.buffer("out", I32, READ_WRITE)
        t = b.thread_id()
        total, product = b.var(0), b.var(1)
        with b.range(0, 5) as k:
            with b.range(t % 7, t % 13 + k, 2) as i:
                total.set(total.get() + i * k)
            product.set((product.get() * 3 + total.get()) % 1009)
        out[t] = total.get() * 2000 + product.get()
        assert_kernel(kernel_device(device), b.finish(), [np.zeros(64, np.int32)])

    def test_while_and_branches(self, device: Device, rng: Rng) -> None:
        """Euclid's algorithm in each thread, one branch with an else."""
        b = KernelBuilder("gcd", 64)
        x, y = (b.buffer(name, I32, READ) for name in "xy")
        out = b.buffer("out", I32, READ_WRITE)
        t = b.thread_id()
        m, n = b.var(x[t]), b.var(y[t])
        with b.while_(lambda: m.get() != n.get()):
            with b.if_(m.get() > n.get()):
                m.set(m.get() - n.get())
            with b.else_():
                n.set(n.get() - m.get())
        out[t] = m.get()
        given = [integers(rng, (64,), I32, 1, 40) * 6 for _ in range(2)]
        got = assert_kernel(kernel_device(device), b.finish(), [*given, np.zeros(64, np.int32)])
        assert np.array_equal(got[2], np.gcd(*given))

    def test_shared_memory_and_barriers(self, device: Device, rng: Rng) -> None:
        """A tile transposed through shared memory, in a loop that uses it again and again."""
        b = KernelBuilder("transpose", 64)
        x, out = b.buffer("x", F32, READ), b.buffer("out", F32, READ_WRITE)
        tile = b.shared("tile", F32, 64)
        t, base = b.thread_id(), b.group_id() * 64
        held = b.var(x[base + t])
        with b.range(0, 3):
            tile[t] = held.get()
            b.barrier()
            held.set(tile[t % 8 * 8 + t // 8] * 2.0)
            b.barrier()
        out[base + t] = held.get()
        x_ = floats(rng, (256,), F32)
        got = assert_kernel(kernel_device(device), b.finish(), [x_, np.zeros(256, np.float32)], (4, 1, 1))
        assert np.array_equal(got[1].reshape(4, 8, 8), x_.reshape(4, 8, 8).swapaxes(1, 2) * 8)

    @pytest.mark.parametrize("operation", ["add", "min", "max", "or"])
    @pytest.mark.parametrize("dtype", [I32, U32], ids=str)
    def test_atomics(self, device: Device, rng: Rng, dtype: DType, operation: str) -> None:
        """Many threads change few words, in a buffer and in shared memory."""
        b = KernelBuilder("atomics", 64)
        x, total = b.buffer("x", dtype, READ), b.buffer("total", dtype, READ_WRITE)
        local = b.shared("local", dtype, 4)
        t = b.thread_id()
        with b.if_(t < 4):
            local[t] = b.const(0, dtype)
        b.barrier()
        value = x[b.group_id() * 64 + t]
        local.atomic(operation, t % 4, value)
        total.atomic(operation, t % 3, value)
        b.barrier()
        with b.if_(t < 4):
            total.atomic(operation, t + 3, local[t])
        given = integers(rng, (320,), dtype, -1000 if dtype is I32 else 0, 100000)
        assert_kernel(kernel_device(device), b.finish(), [given, np.full(7, 5, dtype.numpy)], (5, 1, 1))

    def test_old_values_of_an_atomic_are_all_different(self, device: Device) -> None:
        """A counter hands out each number once, whatever the order."""
        b = KernelBuilder("tickets", 64)
        counter, out = b.buffer("counter", U32, READ_WRITE), b.buffer("out", U32, READ_WRITE)
        ticket = counter.atomic("add", 0, 1)
        out[b.group_id() * 64 + b.thread_id()] = ticket
        target = kernel_device(device)
        got = launch(target, b.finish(), [np.zeros(1, np.uint32), np.zeros(640, np.uint32)], (10, 1, 1))
        assert got[0][0] == 640 and np.array_equal(np.sort(got[1]), np.arange(640))

    @pytest.mark.parametrize("dtype", [F32, I32, U32], ids=str)
    def test_group_reductions(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Sum, maximum and minimum over groups, twice and in a loop, every thread getting them."""
        target = kernel_device(device)
        size = 96  # no power of two
        b = KernelBuilder("reduce", size)
        x = b.buffer("x", dtype, READ)
        outs = [b.buffer(name, dtype, READ_WRITE) for name in ("sum", "max", "min")]
        at = b.group_id() * size + b.thread_id()
        value = x[at]
        for out, reduce in zip(outs, (b.group_sum, b.group_max, b.group_min), strict=True):
            out[at] = reduce(value)
        total = b.var(b.const(0, dtype))
        with b.range(0, 3):
            total.set(total.get() + b.group_max(value - total.get()))
        again = b.buffer("again", dtype, READ_WRITE)
        again[at] = total.get()
        kernel = b.finish()
        # Floats whose sums are exact in any order.
        given = integers(rng, (size * 3,), I32, 0, 1000)
        arrays = [given.astype(dtype.numpy), *(np.zeros(size * 3, dtype.numpy) for _ in range(4))]
        assert_kernel(target, kernel, arrays, (3, 1, 1))

    @pytest.mark.parametrize("width", [2, 4])
    def test_vectors(self, device: Device, rng: Rng, width: int) -> None:
        """Vector loads and stores, lanes taken apart and put together in another order."""
        b = KernelBuilder("vectors", 32)
        x, out = b.buffer("x", I32, READ), b.buffer("out", I32, READ_WRITE)
        at = b.thread_id() * width
        loaded = x.load(at, width)
        out.store(at, b.vector(*(loaded[width - 1 - lane] for lane in range(width))) * 3)
        x_ = integers(rng, (32 * width,), I32, -(2**28), 2**28)
        assert_kernel(kernel_device(device), b.finish(), [x_, np.zeros(32 * width, np.int32)])

    @pytest.mark.parametrize("dtype", [F16, BF16, I8, U8], ids=str)
    def test_narrow_elements_in_words(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Elements of 16 and 8 bits, read one by one and stored in whole words."""
        b = KernelBuilder("narrow", 32)
        x = b.buffer("x", dtype, READ)
        per_word = 4 // dtype.size
        out, packed = b.buffer("out", x.value_dtype, READ_WRITE), b.buffer("packed", U32, READ_WRITE)
        t = b.thread_id()
        values = [x[t * per_word + lane] for lane in range(per_word)]
        for lane, value in enumerate(values):
            out[t * per_word + lane] = value
        pack = {F16: b.pack_half2, BF16: b.pack_bf16x2}.get(dtype, b.pack_bytes4)
        packed[t] = pack(*(value + value for value in values))
        words = np.frombuffer(to_bytes(anything(rng, (32 * per_word,), dtype), dtype), np.uint32).copy()
        arrays = [words, np.zeros(32 * per_word, x.value_dtype.numpy), np.zeros(32, np.uint32)]
        assert_kernel(kernel_device(device), b.finish(), arrays)


class SubgroupConformance:
    """Operations within a subgroup, where the target has them and fixes its width."""

    @pytest.mark.parametrize("dtype", [F32, I32, U32], ids=str)
    def test_subgroups(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Reductions, shuffles and places in whole subgroups."""
        target = kernel_device(device)
        caps = target.target.caps
        if "subgroup" not in caps.features or caps.subgroup_width is None:
            pytest.skip(f"{target.target.kind} does not state subgroups of a fixed width")
        size = caps.subgroup_width * 4
        b = KernelBuilder("subgroups", size)
        x = b.buffer("x", dtype, READ)
        t, lane = b.thread_id(), b.lane_id()
        value = x[t]
        results = [
            b.subgroup_sum(value), b.subgroup_max(value), b.subgroup_min(value),
            b.subgroup_shuffle(value, (lane + 3) % b.subgroup_size()), b.subgroup_shuffle_xor(value, 1),
            b.cast(b.subgroup_id() * 1000 + lane, dtype),
        ]  # fmt: skip
        for place, result in enumerate(results):
            b.buffer(f"out{place}", dtype, READ_WRITE)[t] = result
        given = integers(rng, (size,), I32, 0, 1000).astype(dtype.numpy)
        outs = [np.zeros(size, dtype.numpy) for _ in results]
        assert_kernel(target, b.finish(), [given, *outs])
