"""Faults for real: failing checks, hung kernels, a lost device, refused code. Nothing takes the process along."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Compiled, Dispatch, Recording
from poot_executor.dtype import DType
from poot_executor.errors import DeviceLost, DeviceTimeout, KernelFault, Poisoned
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_wgpu_device.device import WgpuDevice
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.rounds import CUT_SHORT, FEATURE

pytestmark = pytest.mark.device("wgpu")

I32, U32 = DType.I32, DType.U32
N, GROUP = 256, 64


def gather(name: str = "gather", code: int = 17) -> Kernel:
    """y[i] = i where x[i] is in range; the index is clamped and checked."""
    b = KernelBuilder(name, GROUP)
    x, y = b.buffer("x", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    i = b.group_id() * GROUP + b.thread_id()
    at = x[i]
    b.check((at >= 0) & (at < y.length()), code)
    y[b.max(b.min(at, y.length() - 1), 0)] = i
    return b.finish()


def spin(rounds: int) -> Kernel:
    """Work that no compiler foresees, for as long as `rounds` times the grid says."""
    b = KernelBuilder("spin", 32)
    y = b.buffer("y", U32, Access.READ_WRITE)
    value = b.var(y[b.thread_id()])
    with b.range(rounds):
        mixed = value.get()
        for _ in range(8):
            mixed = (mixed ^ (mixed >> 7)) * 2654435761 + y[b.cast(mixed & 31, I32)]
        value.set(mixed)
    y[b.thread_id()] = value.get()
    return b.finish()


class Faulty:
    """A device with a checking kernel recorded over an input and an output."""

    def __init__(self, device: WgpuDevice, kernel: Kernel) -> None:
        self.device = device
        self.x, self.y = device.allocate(BufferKind.INPUT, 4 * N), device.allocate(BufferKind.OUTPUT, 4 * N)
        self.block = BufferSlice(self.y, 0, 4 * N)
        self.recording = device.record([self.dispatch(kernel)], self.block)

    def dispatch(self, kernel: Kernel) -> Dispatch:
        args = (BoundArg(BufferSlice(self.x, 0, 4 * N), N), BoundArg(self.block, N))
        return Dispatch(self.device.loaded(kernel), args, (N // GROUP, 1, 1), 1)

    def run(self, indices: np.ndarray) -> np.ndarray:
        self.device.write(self.x, indices.astype(np.int32))
        self.device.replay(self.recording)
        self.device.synchronize()
        out = np.empty(N, np.int32)
        self.device.read(self.y, out)
        return out

    def close(self) -> None:
        self.device.release(self.recording)
        self.device.free(self.x)
        self.device.free(self.y)


@pytest.fixture
def faulty(device: WgpuDevice) -> Iterator[Faulty]:
    made = Faulty(device, gather())
    yield made
    made.close()


def test_a_failing_check_names_kernel_and_code_and_the_device_goes_on(faulty: Faulty, rng: np.random.Generator) -> None:
    good = rng.permutation(N)
    bad = good.copy()
    bad[200] = N
    for _ in range(3):
        np.testing.assert_array_equal(faulty.run(good)[good], np.arange(N))
        with pytest.raises(KernelFault, match="kernel gather failed its check 17") as caught:
            faulty.run(bad)
        assert (caught.value.kernel, caught.value.code) == ("gather", 17)
    np.testing.assert_array_equal(faulty.run(good)[good], np.arange(N))


def test_each_replay_has_its_own_fault(device: WgpuDevice, faulty: Faulty) -> None:
    """Of two steps in flight only the bad one faults, whichever comes first."""
    other = Faulty(device, gather("other", 9))
    for first, second in ((faulty, other), (other, faulty)):
        device.write(first.x, np.full(N, -1, np.int32))
        device.write(second.x, np.arange(N, dtype=np.int32))
        device.replay(first.recording)
        device.replay(second.recording)
        with pytest.raises(KernelFault):
            device.synchronize()
        device.synchronize()
        device.replay(second.recording)
        device.replay(first.recording)
        device.synchronize()
        with pytest.raises(KernelFault):
            device.synchronize()
    other.close()


def test_a_fault_without_a_download(device: WgpuDevice, faulty: Faulty) -> None:
    recording = device.record([faulty.dispatch(gather())], None)
    device.write(faulty.x, np.full(N, N, np.int32))
    device.replay(recording)
    with pytest.raises(KernelFault):
        device.synchronize()
    device.release(recording)


def test_a_loop_that_the_device_ends_early_is_a_fault(device: WgpuDevice, run: Any) -> None:
    """llvmpipe stops after 65,535 rounds; elsewhere the loop runs to its end."""
    b = KernelBuilder("long", 8)
    bound, y = b.buffer("bound", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    count = b.var(0)
    with b.range(bound[0]):
        count.set(count.get() + 1)
    y[b.thread_id()] = count.get()
    kernel, zeros = b.finish(), np.zeros(8, np.int32)
    for rounds in (1000, 65_000):
        (got,) = run(kernel, [np.array([rounds], np.int32), zeros], 1)
        assert (got == rounds).all()
    long = [np.array([200_000], np.int32), zeros]
    if FEATURE in device.target.caps.features:
        assert (run(kernel, long, 1)[0] == 200_000).all()
        return
    with pytest.raises(KernelFault, match="kernel long") as caught:
        run(kernel, long, 1)
    assert caught.value.code == CUT_SHORT
    assert "ends all loops" in caught.value.__notes__[0]


def test_a_while_that_the_device_ends_early_is_a_fault(device: WgpuDevice, run: Any) -> None:
    if FEATURE in device.target.caps.features:
        pytest.skip("this device ends no loop early")
    b = KernelBuilder("endless", 8)
    y = b.buffer("y", I32, Access.READ_WRITE)
    count = b.var(0)
    with b.while_(lambda: count.get() >= 0):
        count.set((count.get() + 1) & 0xFFFF)
    y[b.thread_id()] = count.get()
    with pytest.raises(KernelFault, match="kernel endless"):
        run(b.finish(), [np.zeros(8, np.int32)], 1)


def busy(device: WgpuDevice, groups: int) -> tuple[Recording, Buffer]:
    buffer = device.allocate(BufferKind.OUTPUT, 128)
    dispatch = Dispatch(device.loaded(spin(60_000)), (BoundArg(BufferSlice(buffer, 0, 128), 32),), (groups, 1, 1), 1)
    return device.record([dispatch], BufferSlice(buffer, 0, 128)), buffer


def refused(device: WgpuDevice, recording: Recording, buffer: Buffer) -> None:
    """Every method but close refuses, at once."""
    out = np.zeros(4, np.uint8)
    calls: list[Callable[[], object]] = [
        lambda: device.allocate(BufferKind.STATE, 4),
        lambda: device.free(buffer),
        lambda: device.replay(recording),
        device.synchronize,
        lambda: device.write(buffer, bytes(4)),
        lambda: device.read(buffer, out),
        device.memory,
        device.device_time,
        lambda: device.release(recording),
        lambda: device.record([], None),
        lambda: device.loaded(gather("late")),
    ]
    start = time.monotonic()
    for call in calls:
        with pytest.raises(Poisoned, match="open it again"):
            call()
    assert time.monotonic() - start < 5


def test_a_hung_device_times_out_and_is_poisoned(open_device: Callable[..., WgpuDevice]) -> None:
    device = open_device(timeout=0.2)
    recording, buffer = busy(device, 80)
    device.replay(recording)
    start = time.monotonic()
    with pytest.raises(DeviceTimeout, match=r"did not finish within 0\.2 s"):
        device.synchronize()
    assert 0.2 <= time.monotonic() - start < 10
    refused(device, recording, buffer)
    device.close()
    device.close()


def test_every_wait_is_bounded(open_device: Callable[..., WgpuDevice]) -> None:
    """Reading, and releasing what is in flight, wait too; so does close, which then leaks instead of raising."""
    waits: list[Callable[[WgpuDevice, Recording, Buffer], object]] = [
        lambda device, recording, buffer: device.read(buffer, np.zeros(4, np.uint8)),
        lambda device, recording, buffer: device.release(recording),
    ]
    for wait in waits:
        device = open_device(timeout=0.2)
        recording, buffer = busy(device, 80)
        device.replay(recording)
        with pytest.raises(DeviceTimeout):
            wait(device, recording, buffer)
        device.close()
    device = open_device(timeout=0.2)
    recording, buffer = busy(device, 80)
    device.replay(recording)
    device.close()
    refused(device, recording, buffer)


def test_a_lost_device_is_told_once_and_refuses_from_then_on(open_device: Callable[..., WgpuDevice]) -> None:
    """The library's own destroy stands for what a driver does: the device is gone under our feet."""
    observers: list[Callable[[WgpuDevice, Recording, Buffer], object]] = [
        lambda device, recording, buffer: device.replay(recording),
        lambda device, recording, buffer: device.read(buffer, np.zeros(4, np.uint8)),
        lambda device, recording, buffer: device.write(buffer, bytes(4)),
        lambda device, recording, buffer: device.allocate(BufferKind.STATE, 64),
        lambda device, recording, buffer: device.record([], BufferSlice(buffer, 0, 128)),
    ]
    for observe in observers:
        device = open_device()
        recording, _ = busy(device, 1)
        buffer = device.allocate(BufferKind.STATE, 128)
        device.replay(recording)
        device.synchronize()
        device._native.destroy()
        with pytest.raises(DeviceLost, match="open it again in a new process"):
            observe(device, recording, buffer)
        refused(device, recording, buffer)
        device.close()


def test_a_device_lost_while_it_works(open_device: Callable[..., WgpuDevice]) -> None:
    device = open_device()
    recording, buffer = busy(device, 50)
    device.replay(recording)
    device._native.destroy()
    with pytest.raises(DeviceLost):
        device.synchronize()
    refused(device, recording, buffer)
    device.close()


def test_code_that_the_library_refuses_is_an_error_and_no_more(device: WgpuDevice, faulty: Faulty) -> None:
    kernel = gather("refused")
    for code, what in ((b"fn main( {", "shader module"), (b"@compute @workgroup_size(1) fn other() {}", "pipeline")):
        with pytest.raises(WgpuError, match=f"{what} of kernel refused: validation error"):
            device.load(kernel, Compiled("refused", code, "main"))
    faulty.run(np.arange(N))


def test_a_closed_device_refuses_and_closes_again(open_device: Callable[..., WgpuDevice]) -> None:
    device = open_device()
    recording, buffer = busy(device, 1)
    device.replay(recording)
    device.close()
    refused(device, recording, buffer)
    device.close()


def test_two_devices_do_not_share_anything(open_device: Callable[..., WgpuDevice]) -> None:
    with open_device() as first, open_device() as second:
        faults = Faulty(first, gather())
        works = Faulty(second, gather())
        with pytest.raises(KernelFault):
            faults.run(np.full(N, -1))
        works.run(np.arange(N))
        buffer = first.allocate(BufferKind.STATE, 64)
        with pytest.raises(ValueError, match="not one of this device's"):
            second.write(buffer, bytes(4))
