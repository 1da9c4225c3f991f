"""What a kernel device does when kernels fail, hang, end early, and after it is closed.

`open_device(timeout=seconds)` is a fixture of the test module that opens a further one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.conformance.inputs import Rng
from poot_eval.conformance.launching import written
from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Dispatch, Recording
from poot_executor.dtype import I32, U32
from poot_executor.errors import DeviceTimeout, KernelFault, Poisoned
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel_device import KernelDevice
from poot_executor.known_answers import UNBOUNDED_LOOPS

N, GROUP = 256, 64

OpenDevice = Callable[..., KernelDevice]


def gather(name: str = "gather", code: int = 17) -> Kernel:
    """y[x[i]] = i where x[i] is in range; the index is clamped and checked."""
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


def looping(name: str) -> Kernel:
    """Counts to a number that a buffer holds: "counted" by a for, "conditional" by a while, "nested" to its square."""
    b = KernelBuilder(name, 8)
    bound, y = b.buffer("bound", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    count = b.var(0)
    if name == "conditional":
        with b.while_(lambda: count.get() < bound[0]):
            count.set(count.get() + 1)
    else:
        with b.range(bound[0] if name == "nested" else 1), b.range(bound[0]):
            count.set(count.get() + 1)
    y[b.thread_id()] = count.get()
    return b.finish()


class Faulty:
    """A device with a checking kernel recorded over an input and an output."""

    def __init__(self, device: KernelDevice, kernel: Kernel) -> None:
        self.device = device
        self.x, self.y = device.allocate(BufferKind.INPUT, 4 * N), device.allocate(BufferKind.OUTPUT, 4 * N)
        self.block = BufferSlice(self.y, 0, 4 * N)
        args = (BoundArg(BufferSlice(self.x, 0, 4 * N), N), BoundArg(self.block, N))
        self.dispatch = Dispatch(device.loaded(kernel), args, (N // GROUP, 1, 1), 1)
        self.recording = device.record([self.dispatch], self.block)

    def run(self, indices: NDArray[Any]) -> NDArray[np.int32]:
        """One step with those indices, and its output. Raises what the step raises."""
        self.device.write(self.x, indices.astype(np.int32))
        self.device.replay(self.recording)
        self.device.synchronize()
        out = np.empty(N, np.int32)
        self.device.read(self.y, out)
        return out

    def close(self) -> None:
        """Give everything back."""
        self.device.release(self.recording)
        self.device.free(self.x)
        self.device.free(self.y)


def busy(device: KernelDevice, groups: int) -> tuple[Recording, Buffer]:
    """A recording that takes long, for as long as the groups are many, and its output."""
    buffer = device.allocate(BufferKind.OUTPUT, 128)
    dispatch = Dispatch(device.loaded(spin(60_000)), (BoundArg(BufferSlice(buffer, 0, 128), 32),), (groups, 1, 1), 1)
    return device.record([dispatch], BufferSlice(buffer, 0, 128)), buffer


def assert_poisoned(device: KernelDevice, recording: Recording, buffer: Buffer) -> None:
    """Every method but close refuses, at once; close may be called again and again."""
    calls: list[Callable[[], object]] = [
        lambda: device.allocate(BufferKind.STATE, 4),
        lambda: device.free(buffer),
        lambda: device.replay(recording),
        device.synchronize,
        lambda: device.write(buffer, bytes(4)),
        lambda: device.read(buffer, np.zeros(4, np.uint8)),
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
    device.close()
    device.close()
    assert time.monotonic() - start < 50


WAITS: dict[str, Callable[[KernelDevice, Recording, Buffer], object]] = {
    "synchronize": lambda device, recording, buffer: device.synchronize(),
    "read": lambda device, recording, buffer: device.read(buffer, np.zeros(4, np.uint8)),
    "release": lambda device, recording, buffer: device.release(recording),
}
"""Calls that wait for a replay of the recording."""


class DeviceFaultConformance:
    """Failing checks, loops that end early, waits that do not, and the end of a device."""

    @pytest.fixture
    def faulty(self, device: KernelDevice) -> Iterator[Faulty]:
        """A step that faults where its input says so, on a device that stages faults."""
        if device.target.caps.traps:
            pytest.skip(f"a failed check traps on {device.target.kind} and loses the context: it has a test of its own")
        made = Faulty(device, gather())
        yield made
        made.close()

    def test_a_failing_check_names_kernel_and_code_and_the_device_goes_on(self, faulty: Faulty, rng: Rng) -> None:
        """Again and again, with good steps between."""
        good = rng.permutation(N)
        bad = good.copy()
        bad[int(rng.integers(0, N))] = N
        for _ in range(3):
            np.testing.assert_array_equal(faulty.run(good)[good], np.arange(N))
            with pytest.raises(KernelFault, match="kernel gather failed its check 17") as caught:
                faulty.run(bad)
            assert (caught.value.kernel, caught.value.code) == ("gather", 17)
        np.testing.assert_array_equal(faulty.run(good)[good], np.arange(N))

    def test_a_check_that_traps_names_kernel_and_code_and_poisons(self, open_device: OpenDevice, rng: Rng) -> None:
        """The device is lost with it."""
        device = open_device()
        if not device.target.caps.traps:
            device.close()
            pytest.skip("this device stages faults")
        faulty = Faulty(device, gather())
        good = rng.permutation(N)
        np.testing.assert_array_equal(faulty.run(good)[good], np.arange(N))
        bad = good.copy()
        bad[int(rng.integers(0, N))] = N
        with pytest.raises(KernelFault, match="kernel gather failed its check 17") as caught:
            faulty.run(bad)
        assert (caught.value.kernel, caught.value.code) == ("gather", 17)
        assert_poisoned(device, faulty.recording, faulty.y)

    def test_each_replay_has_its_own_fault(self, device: KernelDevice, faulty: Faulty) -> None:
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

    def test_reading_early_does_not_swallow_the_fault(self, device: KernelDevice, faulty: Faulty) -> None:
        """Reading waits for the step, and leaves what it reports to `synchronize`."""
        device.write(faulty.x, np.full(N, N, np.int32))
        device.replay(faulty.recording)
        device.read(faulty.y, np.empty(N, np.int32))
        with pytest.raises(KernelFault):
            device.synchronize()
        device.synchronize()

    def test_a_fault_without_a_download(self, device: KernelDevice, faulty: Faulty) -> None:
        """The fault word is brought home by itself."""
        recording = device.record([faulty.dispatch], None)
        device.write(faulty.x, np.full(N, N, np.int32))
        device.replay(recording)
        with pytest.raises(KernelFault):
            device.synchronize()
        device.release(recording)

    @pytest.mark.parametrize("name", ["counted", "conditional", "nested"])
    def test_a_loop_that_the_device_ends_early_is_a_fault(self, device: KernelDevice, name: str) -> None:
        """llvmpipe stops after 65,535 rounds of all loops; elsewhere they run to their end."""
        kernel, zeros = looping(name), np.zeros(8, np.int32)
        most, power = (250, 2) if name == "nested" else (65_000, 1)
        for rounds in (0, 100, most):
            (got,) = written(device, kernel, [np.array([rounds], np.int32), zeros], 1)
            assert (got == rounds**power).all()
        long = [np.array([1000 if name == "nested" else 200_000], np.int32), zeros]
        if UNBOUNDED_LOOPS in device.target.caps.features:
            assert (written(device, kernel, long, 1)[0] == long[0] ** power).all()
            return
        with pytest.raises(KernelFault, match=f"kernel {name}") as caught:
            written(device, kernel, long, 1)
        assert caught.value.code == 0, "no check of a kernel has this code"
        assert "ends all loops" in caught.value.__notes__[0]

    @pytest.mark.parametrize("name", WAITS)
    def test_a_hung_device_times_out_and_is_poisoned(self, open_device: OpenDevice, name: str) -> None:
        """A kernel that runs on and on: every wait ends within its bound."""
        device = open_device(timeout=0.2)
        recording, buffer = busy(device, 80)
        device.replay(recording)
        start = time.monotonic()
        with pytest.raises(DeviceTimeout, match=r"did not finish within 0\.2 s"):
            WAITS[name](device, recording, buffer)
        assert 0.2 <= time.monotonic() - start < 50
        assert_poisoned(device, recording, buffer)

    def test_close_is_bounded_too(self, open_device: OpenDevice) -> None:
        """It leaks instead of raising."""
        device = open_device(timeout=0.2)
        recording, buffer = busy(device, 80)
        device.replay(recording)
        start = time.monotonic()
        device.close()
        assert time.monotonic() - start < 50
        assert_poisoned(device, recording, buffer)

    def test_a_closed_device_refuses_and_closes_again(self, open_device: OpenDevice) -> None:
        """Also with a step in flight."""
        device = open_device()
        recording, buffer = busy(device, 1)
        device.replay(recording)
        device.close()
        assert_poisoned(device, recording, buffer)

    def test_two_devices_do_not_share_anything(self, open_device: OpenDevice) -> None:
        """The fault of one is not the other's, and neither takes a buffer of the other."""
        with open_device() as first, open_device() as second:
            faults, works = Faulty(first, gather()), Faulty(second, gather())
            buffer = first.allocate(BufferKind.STATE, 64)
            with pytest.raises(KernelFault):
                faults.run(np.full(N, -1))
            works.run(np.arange(N))
            with pytest.raises(ValueError, match="not one of this device's"):
                second.write(buffer, bytes(4))
