"""Buffers: zeroed, counted, read and written at any byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poot_executor.device import BufferKind
from poot_executor.errors import OutOfMemory
from poot_wgpu_device import device as device_module

pytestmark = pytest.mark.device("wgpu")


def test_long_transfers_go_in_pieces(device: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "UNSENT_BYTES", 1 << 12)
    monkeypatch.setattr(device_module, "READ_BYTES", 1 << 11)
    given = rng.integers(0, 256, 50_001).astype(np.uint8)
    buffer = device.allocate(BufferKind.WEIGHT, given.nbytes + 3)
    device.write(buffer, given, 3)
    out = np.zeros(given.nbytes, np.uint8)
    device.read(buffer, out, 3)
    np.testing.assert_array_equal(out, given)
    device.free(buffer)


def test_memory_counts_what_is_allocated(device: Any) -> None:
    before = device.memory()
    assert (before.free, before.limit) == (None, None)
    buffers = [device.allocate(kind, 1000) for kind in BufferKind]
    used = device.memory().used
    assert all(used[kind] == before.used[kind] + 1000 for kind in BufferKind)
    for buffer in buffers:
        device.free(buffer)
        device.free(buffer)
    assert device.memory().used == before.used


def test_more_than_the_largest_buffer_is_out_of_memory(device: Any) -> None:
    limit = device.target.caps.max_buffer_bytes
    with pytest.raises(OutOfMemory, match="of weight") as caught:
        device.allocate(BufferKind.WEIGHT, limit + 1)
    assert (caught.value.asked, caught.value.limit) == (limit + 1, limit)
    device.free(device.allocate(BufferKind.WEIGHT, 1024))
