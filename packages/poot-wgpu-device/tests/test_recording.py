"""Recording and replay: order, slots, copies, downloads, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_wgpu_device.errors import WgpuError

pytestmark = pytest.mark.device("wgpu")

N, GROUP = 64, 32
BYTES = 4 * N


def affine(scale: int) -> Kernel:
    """target = source · scale + slot[0], wrapping."""
    b = KernelBuilder(f"affine_{scale}", GROUP)
    slot, source = b.buffer("slot", DType.I32, Access.READ), b.buffer("source", DType.I32, Access.READ_WRITE)
    target = b.buffer("target", DType.I32, Access.READ_WRITE)
    i = b.group_id() * GROUP + b.thread_id()
    target[i] = source[i] * scale + slot[0]
    return b.finish()


@dataclass
class Bench:
    """Buffers of a small program: a slot, an arena of 256-byte places, and an output."""

    device: Any
    slot: Buffer
    arena: Buffer
    output: Buffer

    def place(self, k: int) -> BufferSlice:
        return BufferSlice(self.arena, BYTES * k, BYTES)

    def step(self, source: int, target: int, scale: int = 3) -> Dispatch:
        args = (BufferSlice(self.slot, 0, 4), self.place(source), self.place(target))
        return Dispatch(
            self.device.loaded(affine(scale)), tuple(BoundArg(s, s.nbytes // 4) for s in args), (N // GROUP, 1, 1), 1
        )

    def emit(self, source: int) -> Copy:
        return Copy(self.place(source), BufferSlice(self.output, 0, BYTES))

    @property
    def block(self) -> BufferSlice:
        return BufferSlice(self.output, 0, BYTES)

    def result(self) -> np.ndarray:
        out = np.empty(N, np.int32)
        self.device.read(self.output, out)
        return out


@pytest.fixture
def bench(device: Any, rng: np.random.Generator) -> Iterator[Bench]:
    made = Bench(
        device,
        device.allocate(BufferKind.INPUT, 4),
        device.allocate(BufferKind.ARENA, 64 * BYTES),
        device.allocate(BufferKind.OUTPUT, BYTES),
    )
    device.write(made.slot, np.array([5], np.int32))
    device.write(made.arena, np.arange(N, dtype=np.int32))
    yield made
    for buffer in (made.slot, made.arena, made.output):
        device.free(buffer)


def chain(values: np.ndarray, steps: int, slot: int) -> np.ndarray:
    for _ in range(steps):
        values = values * np.int32(3) + np.int32(slot)
    return values


def test_dispatches_of_a_pass_see_what_came_before(device: Any, bench: Bench) -> None:
    """Forty dispatches, each reading what the last one wrote; and every result again at the end."""
    recording = device.record([*(bench.step(k, k + 1) for k in range(40)), bench.emit(40)], bench.block)
    device.replay(recording)
    device.synchronize()
    np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 40, 5))
    device.release(recording)


def test_a_write_after_a_read_waits_for_it(device: Any, bench: Bench) -> None:
    """Two places traded back and forth in one pass: a dispatch may not overtake the reader of what it overwrites."""
    commands = [bench.step(k % 2, 1 - k % 2) for k in range(31)]
    recording = device.record([*commands, bench.emit(1)], bench.block)
    for _ in range(20):
        device.write(bench.arena, np.arange(N, dtype=np.int32))
        device.replay(recording)
        device.synchronize()
        np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 31, 5))
    device.release(recording)


def test_replays_read_the_slots_anew_and_keep_state(device: Any, bench: Bench) -> None:
    """A state that each step updates in place, from a slot that the host rewrites before each replay."""
    recording = device.record([bench.step(0, 1), Copy(bench.place(1), bench.place(0)), bench.emit(0)], bench.block)
    expected = np.arange(N, dtype=np.int32)
    for slot in (1, -7, 100, 0, 12345):
        device.write(bench.slot, np.array([slot], np.int32))
        device.replay(recording)
        expected = expected * np.int32(3) + np.int32(slot)
        device.synchronize()
        np.testing.assert_array_equal(bench.result(), expected)
    device.release(recording)


def test_replay_equals_one_recording_a_command(device: Any, bench: Bench) -> None:
    commands = [
        bench.step(0, 1, 7),
        bench.step(1, 2),
        Copy(bench.place(2), bench.place(5)),
        bench.step(5, 6, 11),
        bench.emit(6),
    ]
    whole = device.record(commands, bench.block)
    device.replay(whole)
    device.synchronize()
    together = bench.result()
    device.write(bench.output, np.zeros(N, np.int32))
    for command in commands:
        alone = device.record([command], None)
        device.replay(alone)
        device.synchronize()
        device.release(alone)
    np.testing.assert_array_equal(bench.result(), together)
    device.release(whole)


def test_a_download_is_served_without_a_further_copy(
    device: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = device.record([bench.step(0, 1), bench.emit(1)], bench.block)
    device.replay(recording)
    device.synchronize()
    fetched: list[int] = []
    fetch = type(device)._fetch

    def counted(self: Any, buffer: Buffer, offset: int, nbytes: int) -> bytes:
        fetched.append(nbytes)
        return fetch(self, buffer, offset, nbytes)

    monkeypatch.setattr(type(device), "_fetch", counted)
    expected = bench.result()
    part = np.empty(7, np.uint8)
    device.read(bench.output, part, 13)
    np.testing.assert_array_equal(part, expected.view(np.uint8)[13:20])
    assert fetched == []
    # What the host writes, or a later replay may write, is read from the device.
    device.write(bench.output, np.full(N, 9, np.int32))
    assert (bench.result() == 9).all()
    assert fetched == [BYTES]
    device.replay(recording)
    np.testing.assert_array_equal(bench.result(), expected)
    assert fetched == [BYTES, BYTES]
    device.synchronize()
    device.release(recording)


def test_two_steps_in_flight_over_blocks_of_their_own(device: Any, bench: Bench) -> None:
    """The second is submitted before the first is collected; each collection waits for its own and is served."""
    other = device.allocate(BufferKind.OUTPUT, BYTES)
    blocks = (bench.block, BufferSlice(other, 0, BYTES))
    lanes = [
        device.record([bench.step(0, k + 1, k + 2), Copy(bench.place(k + 1), block)], block)
        for k, block in enumerate(blocks)
    ]
    base, out = np.arange(N, dtype=np.int32), np.empty(N, np.int32)
    device.replay(lanes[0])
    for step in range(6):
        device.replay(lanes[(step + 1) % 2])
        device.synchronize()
        device.read(blocks[step % 2].buffer, out)
        np.testing.assert_array_equal(out, base * (step % 2 + 2) + 5)
    device.synchronize()
    device.synchronize()
    for lane in lanes:
        device.release(lane)
    device.free(other)


def test_one_recording_replayed_twice_before_a_wait(device: Any, bench: Bench) -> None:
    recording = device.record([bench.step(0, 1), Copy(bench.place(1), bench.place(0)), bench.emit(0)], bench.block)
    device.replay(recording)
    device.replay(recording)
    device.synchronize()
    np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 2, 5))
    device.synchronize()
    np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 2, 5))
    device.release(recording)


def test_releasing_what_is_in_flight_and_releasing_twice(device: Any, bench: Bench) -> None:
    used = device.memory().used
    recording = device.record([bench.step(0, 1), bench.emit(1)], bench.block)
    assert device.memory().used[BufferKind.STAGING] > used[BufferKind.STAGING]
    device.replay(recording)
    device.release(recording)
    device.release(recording)
    assert device.memory().used == used
    device.synchronize()
    with pytest.raises(ValueError, match="released"):
        device.replay(recording)


def test_device_time_is_of_the_last_replay(device: Any, bench: Bench) -> None:
    recording = device.record([bench.step(k, k + 1) for k in range(20)], bench.block)
    device.replay(recording)
    device.synchronize()
    seconds = device.device_time()
    device.release(recording)
    assert seconds is None or 0 < seconds < 60
    copies = device.record([bench.emit(3)], bench.block)
    device.replay(copies)
    device.synchronize()
    assert device.device_time() is None
    device.release(copies)


def test_a_refused_recording_leaves_nothing_behind(device: Any, bench: Bench) -> None:
    used, good = device.memory().used, bench.step(0, 1)
    many = Dispatch(good.kernel, good.args, (70_000, 1, 1), 1)
    cases: list[tuple[Any, Any, str]] = [
        ([good, many], WgpuError, "70000"),
        ([Dispatch(good.kernel, good.args[:2], good.groups, 1)], ValueError, "3 parameters and was given 2"),
        (
            [Dispatch(good.kernel, (BoundArg(good.args[0].slice, 2), *good.args[1:]), good.groups, 1)],
            ValueError,
            "2 elements in 4 bytes",
        ),
        ([good, Copy(bench.place(0), BufferSlice(bench.output, 0, 16))], ValueError, "256 bytes to 16"),
        (
            [
                Dispatch(
                    good.kernel,
                    (good.args[0], BoundArg(BufferSlice(bench.arena, 4, BYTES), N), good.args[2]),
                    good.groups,
                    1,
                )
            ],
            WgpuError,
            "alignment",
        ),
        (
            [Dispatch(good.kernel, (BoundArg(bench.place(3), 1), *good.args[1:]), good.groups, 1)],
            WgpuError,
            "conflicting usages",
        ),
    ]
    for commands, error, words in cases:
        with pytest.raises(error, match=words):
            device.record(commands, bench.block)
        assert device.memory().used == used
    recording = device.record([good, bench.emit(1)], bench.block)
    device.replay(recording)
    device.synchronize()
    np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 1, 5))
    device.release(recording)
