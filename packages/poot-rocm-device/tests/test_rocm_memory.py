"""Memory and transfers over the simulated runtime: pieces, zeros, refusals, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from poot_eval.hsa import FakeRuntime, Injection
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.dtype import DType
from poot_executor.errors import DeviceError, DeviceLost, OutOfMemory, Poisoned, Unsupported
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access
from poot_rocm_device.agents import gpus, pools
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.hazards import Overlapping
from poot_rocm_device.memory import allocation_of
from poot_rocm_device.runtime import Runtime

MIB = 1 << 20


def test_large_transfers_go_in_pieces(device: RocmDevice, rng: np.random.Generator) -> None:
    """Over several turns of the shared memory, at offsets that are no multiples of anything."""
    nbytes = 13 * MIB + 7
    buffer = device.allocate(BufferKind.WEIGHT, nbytes + 40)
    data = rng.integers(0, 256, nbytes, dtype=np.uint8)
    device.write(buffer, data, 33)
    out = np.empty(nbytes + 40, np.uint8)
    device.read(buffer, out)
    assert np.array_equal(out[33:-7], data)
    assert not out[:33].any() and not out[-7:].any()
    device.free(buffer)


@pytest.mark.parametrize("nbytes", [1, 256, 4 * MIB, 4 * MIB + 4, 27 * MIB])
def test_new_memory_is_zero_to_its_last_byte(device: RocmDevice, nbytes: int) -> None:
    """What is larger than a piece is copied over itself."""
    for kind in (BufferKind.STATE, BufferKind.OUTPUT):
        buffer = device.allocate(kind, nbytes)
        out = np.full(nbytes, 7, np.uint8)
        device.read(buffer, out)
        assert not out.any()
        device.free(buffer)


def test_where_each_kind_lies(device: RocmDevice, runtime: Runtime, fake: FakeRuntime) -> None:
    """The host sees what it writes before a step and reads after it, and nothing else."""
    seen = {kind for kind in BufferKind if allocation_of(device.allocate(kind, 16)).view is not None}
    assert seen == {BufferKind.INPUT, BufferKind.OUTPUT, BufferKind.STAGING}
    assert pools(runtime.hsa, gpus(runtime.hsa)[0]) is not None


def test_out_of_memory_names_what_was_asked_and_leaves_the_device(
    fake: FakeRuntime, device: RocmDevice, interpreting: ModuleType
) -> None:
    """More than there ever was, and more than is left."""
    fake.limit(8 * MIB)
    held = device.allocate(BufferKind.WEIGHT, 4 * MIB)
    before = fake.count("allocations")
    for nbytes in (5 * MIB, 9 * MIB, 1 << 40, 1 << 56):
        with pytest.raises(OutOfMemory) as raised:
            device.allocate(BufferKind.WEIGHT, nbytes)
        assert raised.value.asked == nbytes and raised.value.limit == 1 << 32
        assert "weight" in str(raised.value)
    assert fake.count("allocations") == before
    device.free(held)
    step = interpreting.Step(device)
    places = np.arange(interpreting.N)
    assert np.array_equal(step.run(places), interpreting.expected(places))
    step.close()


def test_a_copy_that_fails_is_a_lost_device(fake: FakeRuntime, device: RocmDevice) -> None:
    """Its signal is negative, and no handler hears of it."""
    buffer = device.allocate(BufferKind.STATE, 64)
    fake.inject(Injection.COPY_ERROR)
    with pytest.raises(DeviceLost, match="write failed on the device"):
        device.write(buffer, bytes(64))
    with pytest.raises(Poisoned):
        device.memory()


@pytest.mark.parametrize("call", ["write", "read", "free", "release"])
def test_calls_wait_for_what_is_in_flight_over_their_buffer(
    fake: FakeRuntime, device: RocmDevice, interpreting: ModuleType, call: str
) -> None:
    """The step is slow; when the call returns it is over, and its result is as if nobody had called."""
    step = interpreting.Step(device)
    places = np.arange(interpreting.N)
    step.run(places)
    fake.inject(Injection.DELAY, 20)
    done = fake.count("dispatches") + 3
    step.submit(places[::-1])
    if call == "write":
        device.write(step.x, places.astype(np.int32))
    elif call == "read":
        assert np.array_equal(step.read(), interpreting.expected(places[::-1]))
    elif call == "free":
        device.free(step.between[0])
    else:
        device.release(step.recording)
    assert fake.count("dispatches") == done
    device.synchronize()
    assert np.array_equal(step.read(), interpreting.expected(places[::-1]))


def test_steps_in_flight_over_two_lanes(device: RocmDevice, interpreting: ModuleType, rng: np.random.Generator) -> None:
    """The oldest is taken first, while the next one runs."""
    lanes = [interpreting.Step(device), interpreting.Step(device, interpreting.checked("other"))]
    for _ in range(3):
        places = [rng.permutation(interpreting.N) for _ in lanes]
        for lane, given in zip(lanes, places, strict=True):
            lane.submit(given)
        for lane, given in zip(lanes, places, strict=True):
            device.synchronize()
            assert np.array_equal(lane.read(), interpreting.expected(given))
            assert device.device_time() > 0
    for lane in lanes:
        lane.close()


def test_closing_while_work_is_pending(
    fake: FakeRuntime, open_device: Callable[..., RocmDevice], interpreting: ModuleType
) -> None:
    """It waits, and gives everything back."""
    device = open_device()
    step = interpreting.Step(device)
    fake.inject(Injection.DELAY, 5)
    for _ in range(3):
        device.replay(step.recording)
    device.close()
    assert fake.count("dispatches") == 9
    assert not any(fake.count(what) for what in ("allocations", "live signals", "queues"))
    with pytest.raises(Poisoned, match="it was closed"):
        device.synchronize()


def whole(buffer: Any) -> BufferSlice:
    return BufferSlice(buffer, 0, buffer.nbytes)


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 255, 1024, 4099])
def test_a_copy_of_any_length_leaves_what_is_behind_it(
    device: RocmDevice, rng: np.random.Generator, nbytes: int
) -> None:
    """Its last word is changed in part."""
    source, target = (device.allocate(BufferKind.ARENA, 8192) for _ in range(2))
    data = rng.integers(0, 256, (2, 8192), dtype=np.uint8)
    device.write(source, data[0])
    device.write(target, data[1])
    recording = device.record([Copy(BufferSlice(source, 8, nbytes), BufferSlice(target, 4, nbytes))], None)
    device.replay(recording)
    device.synchronize()
    expected, out = data[1].copy(), np.empty(8192, np.uint8)
    expected[4 : 4 + nbytes] = data[0, 8 : 8 + nbytes]
    device.read(target, out)
    assert np.array_equal(out, expected)
    for buffer in (source, target):
        device.free(buffer)
    device.release(recording)


def test_what_does_not_fit_is_refused_and_nothing_is_left(
    fake: FakeRuntime, device: RocmDevice, interpreting: ModuleType
) -> None:
    """Before anything is allocated."""
    step = interpreting.Step(device)
    before = fake.count("allocations")
    (x, y), kernel = step.dispatches[0].args, step.dispatches[0].kernel
    short = BoundArg(BufferSlice(step.x, 0, 8), 64)
    odd = BoundArg(BufferSlice(step.x, 2, 8), 2)
    for bad, error, message in (
        (Dispatch(kernel, (x,), (1, 1, 1), 1), DeviceError, "has 2 parameters and was given 1"),
        (Dispatch(kernel, (short, y), (1, 1, 1), 1), ValueError, "64 elements in 8 bytes"),
        (Dispatch(kernel, (odd, y), (1, 1, 1), 1), ValueError, "no multiple of 4"),
        (Dispatch(kernel, (x, y), (1, 0, 1), 1), ValueError, "groups"),
        (Copy(BufferSlice(step.x, 0, 8), BufferSlice(step.y, 0, 4)), ValueError, "a copy of 8 bytes to 4"),
        (Copy(BufferSlice(step.x, 0, 8), BufferSlice(step.x, 4, 8)), ValueError, "overlap"),
        (Copy(BufferSlice(step.x, 1, 8), BufferSlice(step.y, 4, 8)), ValueError, "multiples of 4"),
        (Copy(BufferSlice(step.x, 252, 8), BufferSlice(step.y, 4, 8)), ValueError, "leave a input buffer"),
    ):
        with pytest.raises(error, match=message):
            device.record([step.dispatches[0], bad], None)
    assert fake.count("allocations") == before
    step.close()


def test_atomic_operations_on_the_hosts_memory_are_refused(device: RocmDevice) -> None:
    """A bus need not have them, and would drop them without a word."""
    b = KernelBuilder("counting", 64)
    counter = b.buffer("counter", DType.U32, Access.READ_WRITE)
    counter.atomic("add", 0, b.const(1, DType.U32))
    kernel = device.loaded(b.finish())
    for kind in (BufferKind.OUTPUT, BufferKind.INPUT):
        arg = BoundArg(whole(device.allocate(kind, 4)), 1)
        with pytest.raises(Unsupported, match=f"counting on counter: a {kind.value} buffer lies in the host's memory"):
            device.record([Dispatch(kernel, (arg,), (1, 1, 1), 1)], None)
    state = device.allocate(BufferKind.STATE, 4)
    recording = device.record([Dispatch(kernel, (BoundArg(whole(state), 1),), (2, 1, 1), 1)], None)
    device.replay(recording)
    device.synchronize()
    out = np.empty(1, np.uint32)
    device.read(state, out)
    assert out[0] == 128


def test_code_that_takes_other_arguments_is_refused(
    fake: FakeRuntime, device: RocmDevice, interpreting: ModuleType
) -> None:
    """A code object of another kernel under this one's name."""
    compiled = device.compile(interpreting.checked())
    with pytest.raises(DeviceError, match="takes 32 bytes of arguments, poot gives 24"):
        device.load(interpreting.tripled(), compiled)


def test_dispatches_wait_for_what_they_touch() -> None:
    """A read after a write, a write after a read, a write after a write; not two reads, and not what lies apart."""
    overlapping = Overlapping()
    assert not overlapping.add([(0, 4)], [(8, 12)])
    assert not overlapping.add([(0, 4)], [(12, 16)])
    assert overlapping.add([(11, 13)], [(20, 24)])
    assert not overlapping.add([(8, 12)], [(24, 28)])
    assert overlapping.add([], [(8, 9)])
    assert overlapping.add([], [(0, 100)])
    assert not overlapping.add([(100, 104)], [(200, 204)])
