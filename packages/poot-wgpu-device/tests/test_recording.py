"""Recording and replay: order, slots, copies, downloads, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.recordings import BYTES, Bench, N, chain
from poot_executor.device import BoundArg, Buffer, BufferSlice, Copy, Dispatch
from poot_executor.errors import DeviceError
from poot_wgpu_device.errors import WgpuError

pytestmark = pytest.mark.device("wgpu")


@pytest.fixture
def bench(device: Any) -> Iterator[Bench]:
    made = Bench(device)
    yield made
    made.free()


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
        ([Dispatch(good.kernel, good.args[:2], good.groups, 1)], DeviceError, "3 parameters and was given 2"),
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
