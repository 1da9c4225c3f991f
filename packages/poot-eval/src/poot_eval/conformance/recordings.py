"""Recordings of hand-written commands: order, slots, copies, two of them in flight."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.conformance.memory import used
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel_device import KernelDevice

Words = NDArray[np.int32]

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


class Bench:
    """Buffers of a small program: a slot that holds 5, an arena of 256-byte places whose first one counts up, and an
    output.
    """

    def __init__(self, device: KernelDevice) -> None:
        self.device = device
        self.slot = device.allocate(BufferKind.INPUT, 4)
        self.arena = device.allocate(BufferKind.ARENA, 64 * BYTES)
        self.output = device.allocate(BufferKind.OUTPUT, BYTES)
        device.write(self.slot, np.array([5], np.int32))
        device.write(self.arena, np.arange(N, dtype=np.int32))

    def free(self) -> None:
        """Give the buffers back."""
        for buffer in (self.slot, self.arena, self.output):
            self.device.free(buffer)

    def place(self, k: int) -> BufferSlice:
        """Place `k` of the arena."""
        return BufferSlice(self.arena, BYTES * k, BYTES)

    def step(self, source: int, target: int, scale: int = 3) -> Dispatch:
        """target = source · scale + slot, over places."""
        args = (BufferSlice(self.slot, 0, 4), self.place(source), self.place(target))
        return Dispatch(
            self.device.loaded(affine(scale)), tuple(BoundArg(s, s.nbytes // 4) for s in args), (N // GROUP, 1, 1), 1
        )

    def emit(self, source: int) -> Copy:
        """A place to the output."""
        return Copy(self.place(source), self.block)

    @property
    def block(self) -> BufferSlice:
        """The whole output."""
        return BufferSlice(self.output, 0, BYTES)

    def result(self) -> Words:
        """What the output holds."""
        out = np.empty(N, np.int32)
        self.device.read(self.output, out)
        return out


def chain(values: Words, steps: int, slot: int) -> Words:
    """What so many steps make of the values."""
    for _ in range(steps):
        values = values * np.int32(3) + np.int32(slot)
    return values


class RecordingConformance:
    """What replays compute, in which order."""

    @pytest.fixture
    def bench(self, device: KernelDevice) -> Iterator[Bench]:
        """Fresh buffers, the first place full of numbers."""
        made = Bench(device)
        yield made
        made.free()

    def test_dispatches_of_a_pass_see_what_came_before(self, device: KernelDevice, bench: Bench) -> None:
        """Forty dispatches, each reading what the last one wrote; and every result again at the end."""
        recording = device.record([*(bench.step(k, k + 1) for k in range(40)), bench.emit(40)], bench.block)
        device.replay(recording)
        device.synchronize()
        np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 40, 5))
        device.release(recording)

    def test_a_write_after_a_read_waits_for_it(self, device: KernelDevice, bench: Bench) -> None:
        """Two places traded back and forth: a dispatch may not overtake the reader of what it overwrites."""
        commands = [bench.step(k % 2, 1 - k % 2) for k in range(31)]
        recording = device.record([*commands, bench.emit(1)], bench.block)
        for _ in range(20):
            device.write(bench.arena, np.arange(N, dtype=np.int32))
            device.replay(recording)
            device.synchronize()
            np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 31, 5))
        device.release(recording)

    def test_replays_read_the_slots_anew_and_keep_state(self, device: KernelDevice, bench: Bench) -> None:
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

    def test_replay_equals_one_recording_a_command(self, device: KernelDevice, bench: Bench) -> None:
        """Bit for bit."""
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

    def test_a_write_waits_for_the_replay_that_reads_it(self, device: KernelDevice, bench: Bench) -> None:
        """A slot that is written while a step reads it reaches the next one."""
        recording = device.record([*(bench.step(k, k + 1) for k in range(40)), bench.emit(40)], bench.block)
        for slot in range(20):
            device.write(bench.slot, np.array([slot], np.int32))
            device.replay(recording)
            device.write(bench.slot, np.array([-1], np.int32))
            device.synchronize()
            np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 40, slot))
        device.release(recording)

    def test_two_steps_in_flight_over_blocks_of_their_own(self, device: KernelDevice, bench: Bench) -> None:
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

    def test_one_recording_replayed_twice_before_a_wait(self, device: KernelDevice, bench: Bench) -> None:
        """Over one state: the second goes on from the first."""
        recording = device.record([bench.step(0, 1), Copy(bench.place(1), bench.place(0)), bench.emit(0)], bench.block)
        device.replay(recording)
        device.replay(recording)
        device.synchronize()
        np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 2, 5))
        device.synchronize()
        np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 2, 5))
        device.release(recording)

    def test_releasing_what_is_in_flight_and_releasing_twice(self, device: KernelDevice, bench: Bench) -> None:
        """It waits, gives everything back once, and cannot be replayed again."""
        held = used(device)
        recording = device.record([bench.step(0, 1), bench.emit(1)], bench.block)
        device.replay(recording)
        device.release(recording)
        device.release(recording)
        assert used(device) == held
        device.synchronize()
        with pytest.raises(ValueError, match="released"):
            device.replay(recording)

    def test_a_recording_of_nothing(self, device: KernelDevice, bench: Bench) -> None:
        """Is one like any other."""
        recording = device.record([], bench.block)
        device.replay(recording)
        device.synchronize()
        device.release(recording)
