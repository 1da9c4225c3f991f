"""Control flow, shared memory, atomics, barriers and subgroups against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.inputs import Rng
from poot_eval.conformance.launching import written
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Dispatch
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access
from poot_executor.kernel.passes import optimize
from poot_executor.kernel_device import KernelDevice

F32, I32, U32 = DType.F32, DType.I32, DType.U32
N, GROUP = 512, 64
READ, WRITE = Access.READ, Access.READ_WRITE


class ThreadConformance:
    """Threads of a kernel, alone and together."""

    def test_loops_carry_values_that_trade_places(self, device: KernelDevice, rng: Rng) -> None:
        """Fibonacci numbers: each round assigns both carried values from the other."""
        b = KernelBuilder("fibonacci", GROUP)
        x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
        i = b.group_id() * GROUP + b.thread_id()
        first, second = b.var(0), b.var(1)
        with b.range(x[i]):
            old = first.get()
            first.set(second.get())
            second.set(old + first.get())
        y[i] = first.get()
        counts = rng.integers(0, 40, N).astype(np.int32)
        table = [0, 1]
        while len(table) < 41:
            table.append(table[-1] + table[-2])
        (got,) = written(device, b.finish(), [counts, np.zeros(N, np.int32)], N // GROUP)
        np.testing.assert_array_equal(got, np.array(table)[counts])

    def test_while_and_nested_branches(self, device: KernelDevice, rng: Rng) -> None:
        """Steps of the Collatz sequence, and the largest number on the way."""
        b = KernelBuilder("collatz", GROUP)
        x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
        i = b.group_id() * GROUP + b.thread_id()
        value, steps, most = b.var(x[i]), b.var(0), b.var(x[i])
        with b.while_(lambda: value.get() != 1):
            with b.if_(value.get() % 2 == 0):
                value.set(value.get() // 2)
            with b.else_():
                value.set(value.get() * 3 + 1)
                with b.if_(value.get() > most.get()):
                    most.set(value.get())
            steps.set(steps.get() + 1)
        y[i * 2] = steps.get()
        y[i * 2 + 1] = most.get()
        given = rng.integers(1, 1000, N).astype(np.int32)
        (got,) = written(device, b.finish(), [given, np.zeros(2 * N, np.int32)], N // GROUP)
        expected = []
        for start in given.tolist():
            n, count, top = start, 0, start
            while n != 1:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                count, top = count + 1, max(top, n)
            expected.append((count, top))
        np.testing.assert_array_equal(got.reshape(-1, 2), expected)

    def test_shared_memory_and_barriers_in_a_loop(self, device: KernelDevice, rng: Rng) -> None:
        """An inclusive scan of each group by doubling steps, two barriers a step."""
        b = KernelBuilder("scan", GROUP)
        x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
        tile = b.shared("tile", I32, GROUP)
        t = b.thread_id()
        i = b.group_id() * GROUP + t
        tile[t] = x[i]
        distance = b.var(1)
        with b.range(6):
            b.barrier()
            other = b.select(t >= distance.get(), tile[b.max(t - distance.get(), 0)], 0)
            mine = tile[t]
            b.barrier()
            tile[t] = mine + other
            distance.set(distance.get() * 2)
        y[i] = tile[t]
        given = rng.integers(-1000, 1000, N).astype(np.int32)
        (got,) = written(device, b.finish(), [given, np.zeros(N, np.int32)], N // GROUP)
        np.testing.assert_array_equal(got.reshape(-1, GROUP), np.cumsum(given.reshape(-1, GROUP), axis=1))

    def test_barrier_covers_buffers(self, device: KernelDevice, rng: Rng) -> None:
        """Threads of a group pass values on through a buffer, with no shared memory in the kernel."""
        b = KernelBuilder("exchange", GROUP)
        x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
        t = b.thread_id()
        base = b.group_id() * GROUP
        y[base + t] = x[base + t]
        b.barrier()
        other = y[base + (GROUP - 1) - t]
        b.barrier()
        y[base + t] = other
        given = rng.integers(0, 1 << 30, N).astype(np.int32)
        (got,) = written(device, b.finish(), [given, np.zeros(N, np.int32)], N // GROUP)
        np.testing.assert_array_equal(got.reshape(-1, GROUP), given.reshape(-1, GROUP)[:, ::-1])

    @pytest.mark.parametrize("dtype", [I32, U32], ids=str)
    @pytest.mark.parametrize(
        ("operation", "rule"), [("add", np.add), ("min", np.minimum), ("max", np.maximum), ("or", np.bitwise_or)]
    )
    def test_atomics(self, device: KernelDevice, rng: Rng, dtype: DType, operation: str, rule: Any) -> None:
        """All threads on four words of a buffer and one of a shared array; plain loads and stores of the same memory
        beside them."""
        b = KernelBuilder(f"atomic_{operation}", GROUP)
        x, y = b.buffer("x", dtype, READ), b.buffer("y", dtype, WRITE)
        cell = b.shared("cell", dtype, 1)
        t = b.thread_id()
        i = b.group_id() * GROUP + t
        with b.if_(t == 0):
            cell[0] = x[0]
        b.barrier()
        cell.atomic(operation, 0, x[i])
        y.atomic(operation, i % 4, x[i])
        b.barrier()
        with b.if_(t == 0):
            y[b.group_id() + 4] = cell[0]
        given = rng.integers(0, 1 << 31, N).astype(dtype.numpy)
        start = rng.integers(0, 1 << 31, 4 + N // GROUP).astype(dtype.numpy)
        (got,) = written(device, b.finish(), [given, start], N // GROUP)
        expected = start.copy()
        for lane in range(4):
            expected[lane] = rule.reduce(np.concatenate([start[lane : lane + 1], given[lane::4]]), dtype=dtype.numpy)
        for group, values in enumerate(given.reshape(-1, GROUP)):
            expected[4 + group] = rule.reduce(np.concatenate([given[:1], values]), dtype=dtype.numpy)
        np.testing.assert_array_equal(got, expected)

    def test_the_old_value_of_an_atomic(self, device: KernelDevice) -> None:
        """Each thread takes a place of its own."""
        b = KernelBuilder("places", GROUP)
        counter, y = b.buffer("counter", I32, WRITE), b.buffer("y", I32, WRITE)
        y[counter.atomic("add", 0, 1)] = 1
        count, got = written(device, b.finish(), [np.zeros(1, np.int32), np.zeros(N, np.int32)], N // GROUP)
        assert count[0] == N
        assert (got == 1).all()

    @pytest.mark.parametrize("kind", ["sum", "max", "min"])
    def test_subgroup_reductions(self, device: KernelDevice, rng: Rng, kind: str) -> None:
        """Every lane gets the result of its own subgroup."""
        width = device.target.caps.subgroup_width
        if width is None:
            pytest.skip("this device has no fixed subgroup width")
        b = KernelBuilder(f"subgroup_{kind}", GROUP)
        x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
        i = b.group_id() * GROUP + b.thread_id()
        y[i] = b.emit(f"subgroup_{kind}", x[i])
        given = rng.integers(-1000, 1000, N).astype(np.float32)
        (got,) = written(device, b.finish(), [given, np.zeros(N, np.float32)], N // GROUP)
        expected = getattr(given.reshape(-1, width), kind)(axis=1)
        np.testing.assert_array_equal(got.reshape(-1, width), np.repeat(expected[:, None], width, axis=1))

    def test_subgroup_places_and_shuffles(self, device: KernelDevice, rng: Rng) -> None:
        """Ids, widths and the values of other lanes."""
        width = device.target.caps.subgroup_width
        if width is None:
            pytest.skip("this device has no fixed subgroup width")
        b = KernelBuilder("shuffles", GROUP)
        x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
        i = b.group_id() * GROUP + b.thread_id()
        value = x[i]
        parts = [
            b.lane_id(),
            b.subgroup_id(),
            b.subgroup_size(),
            b.subgroup_shuffle(value, width - 1 - b.lane_id()),
            b.subgroup_shuffle(value, 3),
            b.subgroup_shuffle_xor(value, 1),
        ]
        for k, part in enumerate(parts):
            y[i * len(parts) + k] = part
        given = rng.integers(-(1 << 30), 1 << 30, N).astype(np.int32)
        (got,) = written(device, b.finish(), [given, np.zeros(N * len(parts), np.int32)], N // GROUP)
        lane = np.arange(N) % width
        rows = given.reshape(-1, width)
        expected = [
            lane,
            np.arange(N) % GROUP // width,
            np.full(N, width),
            rows[:, ::-1].ravel(),
            np.repeat(rows[:, 3], width),
            rows[:, np.arange(width) ^ 1].ravel(),
        ]
        np.testing.assert_array_equal(got.reshape(N, -1), np.stack(expected, axis=1))

    @pytest.mark.parametrize("subgroup", [True, False])
    def test_group_reductions_as_the_pass_lowers_them(self, device: KernelDevice, rng: Rng, subgroup: bool) -> None:
        """With subgroups and without."""
        caps = device.target.caps
        if subgroup and caps.subgroup_width is None:
            pytest.skip("this device has no fixed subgroup width")
        b = KernelBuilder("group", GROUP)
        x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
        i = b.group_id() * GROUP + b.thread_id()
        y[i] = b.group_sum(x[i]) * 10000.0 + b.group_max(x[i]) * 100.0 + b.group_min(x[i])
        kernel = optimize(
            b.finish(), subgroup=subgroup, subgroup_width=caps.subgroup_width if subgroup else None, check=True
        )
        given = rng.integers(-20, 20, N).astype(np.float32)
        (got,) = written(device, kernel, [given, np.zeros(N, np.float32)], N // GROUP)
        rows = given.reshape(-1, GROUP)
        expected = rows.sum(axis=1) * 10000 + rows.max(axis=1) * 100 + rows.min(axis=1)
        np.testing.assert_array_equal(got.reshape(-1, GROUP), np.repeat(expected[:, None], GROUP, axis=1))

    def test_group_ids_on_three_axes(self, device: KernelDevice) -> None:
        """Each group knows its place."""
        b = KernelBuilder("grid", 4)
        y = b.buffer("y", I32, WRITE)
        place = (b.group_id(2) * 3 + b.group_id(1)) * 2 + b.group_id(0)
        y[place * 4 + b.thread_id()] = place * 100 + b.thread_id()
        (got,) = written(device, b.finish(), [np.zeros(2 * 3 * 5 * 4, np.int32)], (2, 3, 5))
        np.testing.assert_array_equal(got.reshape(-1, 4), np.arange(30)[:, None] * 100 + np.arange(4))

    def test_an_index_outside_its_buffer_stays_inside_the_binding(self, device: KernelDevice) -> None:
        """Robust access: a stray store hits nothing beside what was bound, a stray load gives some value."""
        b = KernelBuilder("stray", GROUP)
        y = b.buffer("y", I32, WRITE)
        t = b.thread_id()
        y[t + y[t] * 0 + 1000] = 7
        y[t - 1000] = 7
        buffer = device.allocate(BufferKind.ARENA, 8192)
        recording = device.record(
            [Dispatch(device.loaded(b.finish()), (BoundArg(BufferSlice(buffer, 1024, 256), 64),), (1, 1, 1), 1)],
            BufferSlice(buffer, 0, 8192),
        )
        device.replay(recording)
        device.synchronize()
        out = np.empty(2048, np.int32)
        device.read(buffer, out)
        assert not out[:256].any()
        assert not out[320:].any()
        device.release(recording)
        device.free(buffer)
