"""Recording and replay: order, slots, copies, downloads, what is refused."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.dtype import DType
from poot_executor.errors import DeviceError
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_vulkan_device import opening
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.queue import split

pytestmark = pytest.mark.device("vulkan")

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


def test_an_output_is_read_where_it_lies(device: Any, bench: Bench) -> None:
    """No submission is made for reading a result, nor for writing an input."""
    recording = device.record([bench.step(0, 1), bench.emit(1)], bench.block)
    device.replay(recording)
    device.synchronize()
    submitted = device.submissions
    expected = bench.result()
    part = np.empty(7, np.uint8)
    device.read(bench.output, part, 13)
    np.testing.assert_array_equal(part, expected.view(np.uint8)[13:20])
    device.write(bench.slot, np.array([5], np.int32))
    assert device.submissions == submitted
    device.replay(recording)
    # Without a synchronize: reading waits for the replay that writes it.
    np.testing.assert_array_equal(bench.result(), expected)
    assert device.submissions == submitted + 1
    device.synchronize()
    device.release(recording)


def test_a_write_waits_for_the_replay_that_reads_it(device: Any, bench: Bench) -> None:
    recording = device.record([*(bench.step(k, k + 1) for k in range(40)), bench.emit(40)], bench.block)
    for slot in range(20):
        device.write(bench.slot, np.array([slot], np.int32))
        device.replay(recording)
        device.write(bench.slot, np.array([-1], np.int32))
        device.synchronize()
        np.testing.assert_array_equal(bench.result(), chain(np.arange(N, dtype=np.int32), 40, slot))
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
    device.replay(recording)
    device.release(recording)
    device.release(recording)
    assert device.memory().used == used
    device.synchronize()
    with pytest.raises(ValueError, match="released"):
        device.replay(recording)


def test_device_time_is_of_the_last_replay(device: Any, bench: Bench) -> None:
    short = device.record([bench.step(0, 1)], bench.block)
    long = device.record([bench.step(k % 40, k % 40 + 1) for k in range(400)], bench.block)
    times = []
    for recording in (short, long):
        best = []
        for _ in range(5):
            device.replay(recording)
            device.synchronize()
            best.append(device.device_time())
        device.release(recording)
        times.append(None if None in best else min(best))
    assert (times[0] is None) == (device.adapter.stamp_bits == 0)
    assert times[0] is None or 0 < times[0] < times[1] < 60


def test_a_recording_of_nothing(device: Any, bench: Bench) -> None:
    recording = device.record([], bench.block)
    device.replay(recording)
    device.synchronize()
    device.release(recording)


def commands_of(work: list[int], bench: Bench) -> list[Dispatch]:
    return [replace(bench.step(k, k + 1), work=weight) for k, weight in enumerate(work)]


def test_commands_are_cut_where_the_budget_ends(bench: Bench) -> None:
    commands: list[Any] = [*commands_of([3, 3, 3, 20, 1, 1], bench), bench.emit(6)]
    cut = [[c.work if isinstance(c, Dispatch) else "copy" for c in run] for run in split(commands, 8)]
    assert cut == [[3, 3], [3], [20], [1, 1], ["copy"]], "a copy weighs two units a byte"
    assert split(commands, None) == [commands]
    assert split([], 8) == [[]]


def test_a_device_under_a_watchdog_gets_several_submissions(
    open_device: Callable[..., VulkanDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "work_budget", lambda adapter: 8)
    with open_device() as device:
        made = Bench(
            device,
            device.allocate(BufferKind.INPUT, 4),
            device.allocate(BufferKind.ARENA, 64 * BYTES),
            device.allocate(BufferKind.OUTPUT, BYTES),
        )
        device.write(made.slot, np.array([5], np.int32))
        device.write(made.arena, np.arange(N, dtype=np.int32))
        recording = device.record([*commands_of([3] * 12, made), made.emit(12)], made.block)
        for _ in range(3):
            before = device.submissions
            device.replay(recording)
            device.synchronize()
            assert device.submissions == before + 7
            np.testing.assert_array_equal(made.result(), chain(np.arange(N, dtype=np.int32), 12, 5))
            assert device.device_time() is None or device.device_time() > 0


def test_a_barrier_stands_between_any_two_commands(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    """As the driver is told: a full barrier at the start, between commands, and for the host at the end."""
    table = new_table()
    with open_device(functions=table) as device:
        made = Bench(
            device,
            device.allocate(BufferKind.INPUT, 4),
            device.allocate(BufferKind.ARENA, 8 * BYTES),
            device.allocate(BufferKind.OUTPUT, BYTES),
        )
        commands = [made.step(0, 1), made.step(1, 2), Copy(made.place(2), made.place(3)), made.step(3, 4), made.emit(4)]
        table.log.clear()
        device.record(commands, made.block)
        kinds = {"vkCmdDispatch": "d", "vkCmdCopyBuffer": "c", "vkCmdPipelineBarrier": "|", "vkEndCommandBuffer": "."}
        assert "".join(kinds.get(name, "") for name in table.log) == "|d|d|c|d|c|."


def test_recordings_leave_nothing_behind(device: Any, bench: Bench) -> None:
    """Memory of the process, after ten thousand descriptor sets and a thousand recordings."""
    used, blocks = device.memory().used, device.blocks

    def once() -> None:
        recording = device.record([*(bench.step(k, k + 1) for k in range(10)), bench.emit(3)], bench.block)
        device.replay(recording)
        device.synchronize()
        device.release(recording)

    for _ in range(200):
        once()
    before = resident()
    for _ in range(1000):
        once()
    assert resident() - before < 8 << 20
    assert (device.memory().used, device.blocks) == (used, blocks)


def test_devices_leave_nothing_behind(open_device: Callable[..., VulkanDevice]) -> None:
    def once() -> None:
        with open_device() as device:
            buffer = device.allocate(BufferKind.STATE, 1 << 20)
            device.write(buffer, np.ones(1 << 20, np.uint8))

    for _ in range(3):
        once()
    before = resident()
    for _ in range(6):
        once()
    # Each device's staging and blocks alone are more than this.
    assert resident() - before < 16 << 20


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_refused_recording_leaves_nothing_behind(device: Any, bench: Bench) -> None:
    used, good = device.memory().used, bench.step(0, 1)
    many = Dispatch(good.kernel, good.args, (1, 70_000, 1), 1)
    fewer = (BoundArg(good.args[0].slice, 2), *good.args[1:])
    odd = (good.args[0], BoundArg(BufferSlice(bench.arena, 4, BYTES), N), good.args[2])
    cases: list[tuple[Any, Any, str]] = [
        ([good, many], ValueError, r"\(1, 70000, 1\) groups, the device has \("),
        ([replace(good, args=good.args[:2])], DeviceError, "3 parameters and was given 2"),
        ([replace(good, args=fewer)], ValueError, "2 elements in 4 bytes"),
        ([good, Copy(bench.place(0), BufferSlice(bench.output, 0, 16))], ValueError, "256 bytes to 16"),
        ([good, Copy(bench.place(0), BufferSlice(bench.arena, 100, BYTES))], ValueError, "overlap"),
        ([replace(good, args=odd)], ValueError, "offset 4, no multiple of"),
        ([good, Copy(bench.place(70), bench.block)], ValueError, "leave"),
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
