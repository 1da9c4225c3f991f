"""Buffers: zeroed, counted, sub-allocated, read and written at any byte, whether the host sees their memory or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from poot_executor.device import BufferKind
from poot_executor.errors import OutOfMemory
from poot_vulkan_device import transfers
from poot_vulkan_device.adapter import Adapter, Kind, Limits, MemoryType
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.memory import block_sizes, types_for

pytestmark = pytest.mark.device("vulkan")


@pytest.fixture(scope="module", params=["direct", "staged"])
def memory(request: pytest.FixtureRequest, open_device: Callable[..., VulkanDevice]) -> Iterator[VulkanDevice]:
    """A device whose memory the host sees, and one where it goes through staging as on a discrete GPU."""
    with open_device(staged=request.param == "staged") as opened:
        yield opened


def test_a_new_buffer_is_zero(memory: VulkanDevice) -> None:
    for kind in BufferKind:
        first = memory.allocate(kind, 1 << 12)
        memory.write(first, np.full(1 << 12, 0xFF, np.uint8))
        memory.free(first)
        again = memory.allocate(kind, 1 << 12)
        out = np.full(1 << 12, 7, np.uint8)
        memory.read(again, out)
        assert not out.any()
        memory.free(again)


def test_long_transfers_go_in_pieces(
    memory: VulkanDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "STAGING_BYTES", 1 << 12)
    given = rng.integers(0, 256, 50_001).astype(np.uint8)
    buffer = memory.allocate(BufferKind.WEIGHT, given.nbytes + 3)
    memory.write(buffer, given, 3)
    out = np.zeros(given.nbytes, np.uint8)
    memory.read(buffer, out, 3)
    np.testing.assert_array_equal(out, given)
    memory.free(buffer)


def test_memory_counts_what_is_allocated_and_few_blocks_hold_it(memory: VulkanDevice) -> None:
    before, blocks = memory.memory(), memory.blocks
    buffers = [memory.allocate(kind, 1000) for kind in BufferKind for _ in range(100)]
    info = memory.memory()
    assert all(info.used[kind] == before.used[kind] + 100_000 for kind in BufferKind)
    assert info.limit == max(memory.adapter.heaps)
    assert info.free is None or 0 < info.free <= info.limit
    assert memory.blocks <= blocks + len(memory.adapter.memory)
    for buffer in buffers:
        memory.free(buffer)
        memory.free(buffer)
    assert memory.memory().used == before.used


def test_what_does_not_fit_is_out_of_memory_and_the_device_goes_on(memory: VulkanDevice) -> None:
    adapter, before = memory.adapter, memory.memory().used
    most = adapter.limits.allocation_bytes
    with pytest.raises(OutOfMemory, match="of weight") as caught:
        memory.allocate(BufferKind.WEIGHT, most + 1)
    assert (caught.value.asked, caught.value.limit) == (most + 1, most)
    if adapter.software and most >= adapter.heaps[0]:
        # What is in use already leaves less than the whole heap.
        with pytest.raises(OutOfMemory, match="of state") as caught:
            memory.allocate(BufferKind.STATE, adapter.heaps[0])
        assert caught.value.limit == adapter.heaps[0]
    assert memory.memory().used == before
    small = memory.allocate(BufferKind.WEIGHT, 1024)
    memory.write(small, np.arange(256, dtype=np.int32))
    out = np.zeros(256, np.int32)
    memory.read(small, out)
    np.testing.assert_array_equal(out, np.arange(256))
    memory.free(small)


LIMITS = Limits(64, 1 << 30, 1 << 32, 64, 48 << 10, 1024, (65535, 65535, 65535))
DISCRETE = Adapter(
    name="discrete", driver="", kind=Kind.DISCRETE, version=(1, 3), features=frozenset({"robust"}),
    subgroup=(32, 32, 32), limits=LIMITS,
    memory=(
        MemoryType(0, True, False, False), MemoryType(1, False, True, False), MemoryType(1, False, True, True),
        MemoryType(2, True, True, False),
    ),
    heaps=(8 << 30, 32 << 30, 256 << 20), queue=0, stamp_bits=64, stamp_period=1.0, identity="0",
)  # fmt: skip
INTEGRATED = dataclasses.replace(
    DISCRETE,
    kind=Kind.INTEGRATED,
    memory=(MemoryType(0, True, False, False), MemoryType(0, True, True, False), MemoryType(0, True, True, True)),
    heaps=(16 << 30,),
)


def test_where_each_kind_of_buffer_lies() -> None:
    """Weights near the device; what the host reads in cached memory; what it writes near the device where it can."""
    for kind in (BufferKind.WEIGHT, BufferKind.STATE, BufferKind.ARENA, BufferKind.CONSTANT):
        assert types_for(DISCRETE, kind, staged=False) == [0, 3], "never the host's memory"
        assert types_for(INTEGRATED, kind, staged=False) == [2, 1, 0]
        assert types_for(INTEGRATED, kind, staged=True)[0] == 0
    assert types_for(DISCRETE, BufferKind.OUTPUT, staged=False)[0] == 2
    assert types_for(DISCRETE, BufferKind.STAGING, staged=False)[0] == 2
    assert types_for(DISCRETE, BufferKind.INPUT, staged=False)[0] == 3
    assert types_for(INTEGRATED, BufferKind.OUTPUT, staged=False)[0] == 2


def test_blocks_suit_their_heap() -> None:
    assert block_sizes(DISCRETE) == [64 << 20, 16 << 20, 16 << 20, 32 << 20]
