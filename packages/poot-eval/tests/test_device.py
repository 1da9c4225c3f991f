"""The reference device beyond the suite: it refuses, stages, hangs and runs out as devices do."""

import time
from dataclasses import replace

import numpy as np
import pytest

from poot_eval import OutOfRangeError, RaceError
from poot_eval.conformance.launching import launch
from poot_eval.conformance.stepping import Stepper
from poot_eval.device import PLAIN_CAPS, SUBGROUP_CAPS, ReferenceDevice
from poot_eval.driver import ReferenceDriver
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Dispatch, Found
from poot_executor.dtype import F32, I32
from poot_executor.errors import (
    DeviceNotFound,
    DeviceTimeout,
    KernelError,
    KernelFault,
    OutOfMemory,
    Poisoned,
)
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access
from poot_executor.settings import DeviceSettings

READ, READ_WRITE = Access.READ, Access.READ_WRITE


def adding(name="adding", check=False):
    """y = x + 1, 16 elements; with `check`, a fault 3 where x is negative."""
    b = KernelBuilder(name, 16)
    x, y, t = b.buffer("x", I32, READ), b.buffer("y", I32, READ_WRITE), b.thread_id()
    if check:
        b.check(x[t] >= 0, 3)
    y[t] = x[t] + 1
    return b.finish()


def dispatch(device, kernel, x, y, groups=(1, 1, 1)):
    args = tuple(BoundArg(piece, piece.nbytes // 4) for piece in (x, y))
    return Dispatch(device.loaded(kernel), args, groups, 1)


def pieces(device, *nbytes):
    return [BufferSlice(device.allocate(BufferKind.ARENA, n), 0, n) for n in nbytes]


def test_faults_are_staged_until_the_replay_is_waited_for():
    with ReferenceDevice() as device:
        x, y = pieces(device, 64, 64)
        good = device.record([dispatch(device, adding(), x, y)], y)
        bad = device.record([dispatch(device, adding("checked", check=True), x, y)], y)
        device.write(x.buffer, np.full(16, -4, np.int32))
        for recording in (good, bad, good):
            device.replay(recording)
        device.synchronize()
        with pytest.raises(KernelFault, match="kernel checked failed its check 3"):
            device.synchronize()
        device.synchronize()
        device.synchronize()
        held = np.empty(16, np.int32)
        device.read(y.buffer, held)
        assert (held == -3).all() and device.device_time() > 0


def test_a_kernel_without_end_times_out_and_poisons():
    b = KernelBuilder("endless", 1)
    x, n = b.buffer("x", I32, READ_WRITE), b.var(0)
    with b.while_(lambda: n.get() >= 0):
        n.set(n.get() + x[0])
    with ReferenceDevice(timeout=0.1) as device:
        (x,) = pieces(device, 64)
        recording = device.record([Dispatch(device.loaded(b.finish()), (BoundArg(x, 16),), (1, 1, 1), 1)], None)
        started = time.monotonic()
        device.replay(recording)
        device.replay(recording)  # nothing runs behind one that hangs
        assert time.monotonic() - started < 50
        with pytest.raises(DeviceTimeout, match="kernel endless"):
            device.synchronize()
        for call in (device.synchronize, device.memory, lambda: device.allocate(BufferKind.ARENA, 4)):
            with pytest.raises(Poisoned, match="endless"):
                call()


def test_memory_runs_out_at_the_limit_and_comes_back():
    with ReferenceDevice(limit=1000) as device:
        first = device.allocate(BufferKind.STATE, 601)
        with pytest.raises(OutOfMemory) as refused:
            device.allocate(BufferKind.ARENA, 400)
        assert (refused.value.asked, refused.value.free, refused.value.limit) == (400, 399, 1000)
        memory = device.memory()
        assert (memory.used[BufferKind.STATE], memory.free, memory.limit) == (601, 399, 1000)
        device.free(first)
        device.free(first)
        assert device.memory().free == 1000
        device.allocate(BufferKind.ARENA, 1000)


def test_an_entry_that_does_not_fit_leaves_the_engine_as_it_was(rng):
    table = rng.standard_normal((8, 5)).astype(np.float32)
    for limit in range(256, 4000, 512):  # the refusal comes at one allocation after another
        with ReferenceDevice(limit=limit) as device:
            with pytest.raises(OutOfMemory):
                Stepper(device, table, width=300)
            assert device.memory().free == limit
    with ReferenceDevice(limit=1 << 20) as device, Stepper(device, table) as stepper:
        stepper.step([1, 2, 3], 4)


def test_odd_sizes_are_addressed_by_byte(rng):
    with ReferenceDevice() as device:
        buffer = device.allocate(BufferKind.WEIGHT, 7)
        value = rng.integers(0, 256, 5, dtype=np.uint8)
        device.write(buffer, value.tobytes(), 2)
        held = bytearray(7)
        device.read(buffer, memoryview(held))
        assert held == bytes(2) + value.tobytes()
        with pytest.raises(ValueError, match=r"bytes \[4, 9\) of a buffer of 7"):
            device.write(buffer, value, 4)
        device.free(buffer)
        with pytest.raises(ValueError, match="freed"):
            device.read(buffer, memoryview(held)[:1])


def test_races_and_stray_stores_raise_and_stray_loads_do_not():
    with ReferenceDevice() as device:
        b = KernelBuilder("race", 16)
        y = b.buffer("y", I32, READ_WRITE)
        y[b.thread_id() // 2] = b.thread_id()
        with pytest.raises(RaceError):
            launch(device, b.finish(), [np.zeros(16, np.int32)])
        b = KernelBuilder("stray", 16)
        x, y = b.buffer("x", F32, READ), b.buffer("y", F32, READ_WRITE)
        y[b.thread_id()] = x[b.thread_id()]
        kernel = b.finish()
        got = launch(device, kernel, [np.ones(12, np.float32), np.zeros(16, np.float32)])
        assert (got[1][:12] == 1).all() and np.isnan(got[1][12:]).all()
        with pytest.raises(OutOfRangeError, match=r"store y\[12\] of 12"):
            launch(device, kernel, [np.ones(16, np.float32), np.zeros(12, np.float32)])
        # After each of them the device works on.
        assert (launch(device, adding(), [np.ones(16, np.int32), np.zeros(16, np.int32)])[1] == 2).all()


def test_bindings_that_some_api_refuses_are_refused():
    caps = replace(PLAIN_CAPS, max_binding_bytes=1024, max_groups=(9, 9, 9), max_group_size=16)
    with ReferenceDevice(caps) as device:
        kernel = adding()
        whole = pieces(device, 4096)[0].buffer
        x, y = BufferSlice(whole, 0, 64), pieces(device, 64)[0]
        cases = {
            "not a multiple of 256": (BufferSlice(whole, 64, 64), y),
            "the limit is 1024": (BufferSlice(whole, 0, 2048), y),
            "read only and read_write at once": (x, BufferSlice(whole, 256, 64)),
            "groups along axis 0": (x, y, (10, 1, 1)),
            "0 groups along axis 2": (x, y, (1, 1, 0)),
        }
        for message, (first, second, *groups) in cases.items():
            with pytest.raises(KernelError, match=message):
                device.record([dispatch(device, kernel, first, second, *groups)], None)
        args = (BoundArg(x, 18), BoundArg(y, 16))
        with pytest.raises(KernelError, match="18 elements in 64 bytes"):
            device.record([Dispatch(device.loaded(kernel), args, (1, 1, 1), 1)], None)
        b = KernelBuilder("wide", 32)
        b.buffer("y", I32, READ_WRITE)[b.thread_id()] = b.subgroup_sum(b.thread_id())
        wide = Dispatch(device.loaded(b.finish()), (BoundArg(y, 16),), (1, 1, 1), 1)
        with pytest.raises(KernelError, match="needs 32 threads a group"):
            device.record([wide], None)
    with ReferenceDevice(PLAIN_CAPS) as device:
        (y,) = pieces(device, 256)
        with pytest.raises(KernelError, match="subgroup_sum needs subgroup"):
            device.record([Dispatch(wide.kernel, (BoundArg(y, 64),), (1, 1, 1), 1)], None)


def test_the_driver_opens_what_it_finds():
    driver = ReferenceDriver()
    found = driver.probe()
    assert [f.selector for f in found] == ["subgroups", "plain"] and all(isinstance(f, Found) for f in found)
    for selector, caps in (("", SUBGROUP_CAPS), ("subgroups", SUBGROUP_CAPS), ("plain", PLAIN_CAPS)):
        with driver.open(selector, DeviceSettings()) as device:
            assert device.target.caps == caps
    with pytest.raises(DeviceNotFound, match="no reference:fast; there are subgroups, plain"):
        driver.open("fast", DeviceSettings())


def test_compiled_kernels_are_cached_by_content(tmp_path):
    settings = DeviceSettings(cache=tmp_path)
    for _ in range(2):
        with ReferenceDriver().open("", settings) as device:
            launch(device, adding(), [np.ones(16, np.int32), np.zeros(16, np.int32)])
    assert len(list(tmp_path.rglob("*.kernel"))) == 1


def test_close_is_idempotent_and_final():
    device = ReferenceDevice()
    device.allocate(BufferKind.ARENA, 16)
    device.close()
    device.close()
    with pytest.raises(Poisoned, match="closed"):
        device.memory()
