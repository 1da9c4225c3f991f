"""Replays: thousands while the ring wraps, in order, without an allocation, and at a bounded cost to the host."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import sleep
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from poot_eval.hsa import FakeRuntime
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.dtype import DType
from poot_executor.errors import DeviceLost
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_rocm_device import queue as queue_module
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.hsa_types import ACQUIRE_AT, BARRIER_AT, RELEASE_AT, Scope
from poot_rocm_device.runtime import Runtime

pytestmark = pytest.mark.slow

N = 64
STEPS = 10_000


def affine(scale: int) -> Kernel:
    """y = scale · x + slot[0], wrapping."""
    b = KernelBuilder(f"affine_{scale}", N)
    slot, x = b.buffer("slot", DType.I32, Access.READ), b.buffer("x", DType.I32, Access.READ_WRITE)
    y, i = b.buffer("y", DType.I32, Access.READ_WRITE), b.thread_id()
    y[i] = x[i] * scale + slot[0]
    return b.finish()


class Chain:
    """A state that each step maps through a chain of dispatches, two of which are independent, and an output."""

    def __init__(self, device: RocmDevice, links: int = 6) -> None:
        self.device = device
        self.slot = device.allocate(BufferKind.INPUT, 4)
        self.state = device.allocate(BufferKind.STATE, 4 * N)
        self.arena = device.allocate(BufferKind.ARENA, 256 * (links + 1))
        self.output = device.allocate(BufferKind.OUTPUT, 4 * N)
        places = [BufferSlice(self.state, 0, 4 * N)]
        places += [BufferSlice(self.arena, 256 * k, 4 * N) for k in range(links)]
        commands: list[Dispatch | Copy] = [self._link(3, x, y) for x, y in pairwise(places)]
        # Two that may run in either order, or at once.
        block = BufferSlice(self.output, 0, 4 * N)
        commands += [self._link(5, places[-1], block), Copy(places[-1], places[0])]
        self.links = links
        self.recording = device.record(commands, block)
        self.expected = np.zeros(N, np.int32)

    def _link(self, scale: int, x: BufferSlice, y: BufferSlice) -> Dispatch:
        slices = (BufferSlice(self.slot, 0, 4), x, y)
        args = tuple(BoundArg(piece, piece.nbytes // 4) for piece in slices)
        return Dispatch(self.device.loaded(affine(scale)), args, (1, 1, 1), 1)

    def submit(self, slot: int) -> np.ndarray:
        """Replay with a slot; what the output will be."""
        self.device.write(self.slot, np.array([slot], np.int32))
        self.device.replay(self.recording)
        for _ in range(self.links):
            self.expected = self.expected * np.int32(3) + np.int32(slot)
        return self.expected * np.int32(5) + np.int32(slot)

    def output_now(self) -> np.ndarray:
        """What the output is."""
        out = np.empty(N, np.int32)
        self.device.read(self.output, out)
        return out


@pytest.fixture(scope="module")
def kernels(hosting: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Kernels that run on this processor."""
    return hosting.Hosting(tmp_path_factory.mktemp("libraries"))


@pytest.fixture
def native(fake: FakeRuntime, runtime: Runtime, hosting: ModuleType, kernels: Any) -> Iterator[RocmDevice]:
    """A device over a ring of 64 packets, whose kernels run at this processor's speed."""
    with hosting.open_hosting(fake, runtime, kernels, packets=64) as opened:
        yield opened
    assert not fake.raised
    assert not any(fake.count(what) for what in ("allocations", "live signals", "queues"))


def test_ten_thousand_steps(fake: FakeRuntime, native: RocmDevice, rng: np.random.Generator) -> None:
    """8 packets each, so that every eighth step is the last of a round of the ring; the state goes through all of them,
    so that one wrong step is in every later output."""
    chain = Chain(native)
    fake.behave(guard=False)
    slots = rng.integers(-1000, 1000, STEPS).tolist()
    before = {what: fake.count(what) for what in ("dispatches", "barriers", "doorbells")}
    for slot in slots:
        expected = chain.submit(slot)
        native.synchronize()
        assert np.array_equal(chain.output_now(), expected)
    made = {what: fake.count(what) - count for what, count in before.items()}
    assert made == {"dispatches": 8 * STEPS, "barriers": 8 * STEPS, "doorbells": STEPS}


def test_a_step_that_does_not_divide_the_ring(fake: FakeRuntime, native: RocmDevice) -> None:
    """7 packets in a ring of 64: packets of one step lie at its end and its begin."""
    chain = Chain(native, links=5)
    for slot in range(300):
        expected = chain.submit(slot)
        native.synchronize()
        assert np.array_equal(chain.output_now(), expected)
    assert fake.count("dispatches") == 2100


def test_packets_that_are_read_before_the_doorbell(fake: FakeRuntime, native: RocmDevice) -> None:
    """The packet processor may read one as soon as its header is valid: all of it has to be there by then."""
    fake.behave(eager=True, guard=False)
    chain = Chain(native)
    for slot in range(500):
        expected = chain.submit(slot)
        native.synchronize()
        assert np.array_equal(chain.output_now(), expected)


def test_a_header_before_its_body_is_noticed(
    fake: FakeRuntime, runtime: Runtime, hosting: ModuleType, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that publishes in the wrong order, slowly, is caught: so the test above can fail."""
    device = hosting.open_hosting(fake, runtime, kernels, packets=64)
    chain, queue = Chain(device), device._queue
    fake.behave(eager=True, guard=False)

    def publish(packets: np.ndarray) -> None:
        first = queue._hsa.add_write_index(queue._address, len(packets))
        places = (np.arange(len(packets)) + first) % 64
        queue._heads[places] = packets[:, 0]
        sleep(0.2)
        queue._bodies[places] = packets[:, 1:]
        queue._hsa.store_signal(queue._doorbell, int(first) + len(packets) - 1)

    monkeypatch.setattr(queue, "_publish", publish)
    device.replay(chain.recording)
    with pytest.raises(DeviceLost):
        device.synchronize()
    assert fake.error == "a packet changed after its header was valid"


class Watched(np.ndarray):
    """Memory that notes what is written to it."""

    log: list[tuple[str, int]]
    name: str

    def __setitem__(self, place: Any, value: Any) -> None:
        self.log.append((self.name, len(np.atleast_2d(value.T).T)))
        super().__setitem__(place, value)


@pytest.mark.parametrize(("written", "pieces"), [(0, 1), (60, 2)])
def test_bodies_are_written_before_headers(native: RocmDevice, written: int, pieces: int) -> None:
    """Wherever in the ring a step begins."""
    chain, queue = Chain(native, links=6), native._queue
    while queue._written % 64 != written:
        # One packet at a time.
        single = native.record([Copy(BufferSlice(chain.state, 0, 4), BufferSlice(chain.arena, 0, 4))], None)
        native.replay(single)
        native.synchronize()
        native.release(single)
    log: list[tuple[str, int]] = []
    for name in ("_bodies", "_heads"):
        watched = getattr(queue, name).view(Watched)
        watched.log, watched.name = log, name
        setattr(queue, name, watched)
    expected = chain.submit(1)
    native.synchronize()
    assert [name for name, _ in log] == ["_bodies"] * pieces + ["_heads"] * pieces
    assert sum(count for _, count in log) == 16
    assert np.array_equal(chain.output_now(), expected)


def kept_bytes() -> int:
    """What lines of the device's package have allocated and not given back."""
    gc.collect()
    own = tracemalloc.Filter(True, str(Path(queue_module.__file__).parent / "*"))
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([own]).traces)


def test_no_step_allocates(fake: FakeRuntime, native: RocmDevice) -> None:
    """Neither of the runtime, nor what the device's own code keeps in Python."""
    chain = Chain(native)

    def steps(count: int) -> None:
        for slot in range(count):
            chain.submit(slot)
            native.synchronize()
            native.device_time()
            chain.output_now()

    steps(20)
    held = {what: fake.count(what) for what in ("allocations", "signals", "live signals")}
    tracemalloc.start()
    try:
        steps(100)
        first = kept_bytes()
        steps(400)
        last = kept_bytes()
    finally:
        tracemalloc.stop()
    assert {what: fake.count(what) for what in held} == held
    assert last - first < 1024


def test_steps_in_flight_go_on_where_the_ring_is_full(fake: FakeRuntime, native: RocmDevice) -> None:
    """Twenty steps of eight packets at once over a ring of 64: submitting waits for room, and for nothing else."""
    chain = Chain(native)
    native.write(chain.slot, np.array([7], np.int32))
    for _ in range(20):
        native.replay(chain.recording)
    for _ in range(20):
        native.synchronize()
    expected = np.zeros(N, np.int32)
    for _ in range(19 * 6):
        expected = expected * np.int32(3) + np.int32(7)
    for _ in range(6):
        expected = expected * np.int32(3) + np.int32(7)
    assert np.array_equal(chain.output_now(), expected * np.int32(5) + np.int32(7))


def test_a_step_that_is_longer_than_the_ring(native: RocmDevice) -> None:
    """It goes in pieces."""
    chain = Chain(native, links=200)
    for slot in (1, 2, 3):
        expected = chain.submit(slot)
        native.synchronize()
        assert np.array_equal(chain.output_now(), expected)


def header_field(recording: Any, place: int, bits: int) -> list[int]:
    return (recording.packets[:, 0] >> place & ((1 << bits) - 1)).tolist()


def test_headers_say_what_depends_and_who_sees_it(native: RocmDevice) -> None:
    """The first acquires from the system, the last releases to it; the last waits for all, and who depends waits."""
    chain = Chain(native, links=3)
    assert header_field(chain.recording, ACQUIRE_AT, 2) == [Scope.SYSTEM] + [Scope.AGENT] * 4
    assert header_field(chain.recording, RELEASE_AT, 2) == [Scope.SYSTEM] + [Scope.AGENT] * 3 + [Scope.SYSTEM]
    assert header_field(chain.recording, BARRIER_AT, 1) == [1] * 5


def test_independent_dispatches_have_no_barrier(fake: FakeRuntime, native: RocmDevice) -> None:
    """Four that read the same and write apart, then one that reads what they wrote. They run in the worst order."""
    slot, state = native.allocate(BufferKind.INPUT, 4), native.allocate(BufferKind.STATE, 4 * N)
    arena = native.allocate(BufferKind.ARENA, 256 * 5)
    places = [BufferSlice(arena, 256 * k, 4 * N) for k in range(5)]
    state_slice, kernel = BufferSlice(state, 0, 4 * N), native.loaded(affine(3))

    def link(x: BufferSlice, y: BufferSlice) -> Dispatch:
        args = (BoundArg(BufferSlice(slot, 0, 4), 1), BoundArg(x, N), BoundArg(y, N))
        return Dispatch(kernel, args, (1, 1, 1), 1)

    commands = [
        *(link(state_slice, places[k]) for k in range(4)),
        link(places[0], places[4]),
        link(places[4], places[1]),
    ]
    recording = native.record(commands, None)
    assert header_field(recording, BARRIER_AT, 1) == [1, 0, 0, 0, 1, 1]
    native.write(slot, np.array([2], np.int32))
    reordered = fake.count("reordered")
    native.replay(recording)
    native.synchronize()
    assert fake.count("reordered") == reordered + 4
    out = np.empty(N, np.int32)
    for place, value in ((0, 2), (1, 26), (2, 2), (4, 8)):
        native.read(arena, out, 256 * place)
        assert (out == value).all(), place


@pytest.mark.parametrize(
    ("packet", "word", "change", "refused"),
    [
        (0, 0, -(1 << ACQUIRE_AT), "a step begins without an acquire from the system"),
        (7, 0, -(1 << RELEASE_AT), "a completion is signalled without a release to the system"),
        (3, 0, -(1 << RELEASE_AT), "a packet releases nothing"),
        (3, 0, 1, "a packet of an unknown type"),
        (3, 2, 1, "a grid is not whole groups"),
        (3, 3, 5, "a grid is not whole groups"),
        (3, 8, 64, "the kernel object is no loaded kernel descriptor"),
        (3, 12, 1, "a reserved field is not zero"),
    ],
)
def test_a_packet_that_is_not_right_is_refused(
    fake: FakeRuntime,
    runtime: Runtime,
    hosting: ModuleType,
    kernels: Any,
    packet: int,
    word: int,
    change: int,
    refused: str,
) -> None:
    """What the simulated runtime checks, it notices."""
    device = hosting.open_hosting(fake, runtime, kernels)
    chain = Chain(device)
    words = chain.recording.packets
    words[packet, word] = np.uint32((int(words[packet, word]) + change) % (1 << 32))
    device.replay(chain.recording)
    with pytest.raises(DeviceLost):
        device.synchronize()
    assert fake.error.startswith(refused)


def test_what_a_replay_asks_of_the_host_does_not_grow_with_its_packets(
    fake: FakeRuntime, runtime: Runtime, hosting: ModuleType, kernels: Any
) -> None:
    """As many calls, of Python's and of libraries', for 320 packets as for 8: what the host does for each packet is a
    part of a copy. `benchmarks/rocm_replay.py` measures what that takes."""
    calls: Counter[str] = Counter()
    made: dict[int, Counter[str]] = {}
    fake.behave(guard=False)
    with hosting.open_hosting(fake, runtime, kernels, packets=1024) as device:
        fake.execute_nothing()
        out, slot = np.empty(N, np.int32), np.array([1], np.int32)
        for links in (6, 318):
            chain = Chain(device, links=links)
            assert len(chain.recording.packets) == links + 2
            # The first two make signals. None comes to the end of the ring.
            for _ in range(3):
                calls.clear()
                with counting(calls):
                    device.write(chain.slot, slot)
                    device.replay(chain.recording)
                device.synchronize()
                with counting(calls):
                    device.read(chain.output, out)
            made[links] = calls.copy()
    assert made[6] == made[318]
    assert 0 < made[318].total() < 160


@contextmanager
def counting(calls: Counter[str]) -> Generator[None]:
    """Count every call by name, of functions in Python and of those that are not."""

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[getattr(argument, "__qualname__", repr(argument))] += 1

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before)
