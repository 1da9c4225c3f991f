"""Recording and replay: order, slots, copies, downloads, what is refused."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.recordings import BYTES, Bench, N, chain
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.errors import DeviceError
from poot_vulkan_device import opening
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.queue import split

pytestmark = pytest.mark.device("vulkan")


@pytest.fixture
def bench(device: Any) -> Iterator[Bench]:
    made = Bench(device)
    yield made
    made.free()


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
        made = Bench(device)
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
        made = Bench(device)
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
