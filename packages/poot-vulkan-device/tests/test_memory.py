"""Buffers: zeroed, counted, sub-allocated, read and written at any byte, whether the host sees their memory or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from poot_executor.device import BufferKind
from poot_executor.errors import OutOfMemory
from poot_vulkan_device import transfers
from poot_vulkan_device.adapter import Adapter, Kind, Limits, MemoryType
from poot_vulkan_device.allocator import Allocator
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.memory import _Blocks, block_sizes, types_for

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


class Bank:
    """As much of a device as blocks need: memory that is counted and not there, within an adapter's limits."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.held: dict[int, tuple[int, int]] = {}
        self.calls = 0

    def allocate(self, type: int, nbytes: int) -> int:
        heap = self.adapter.memory[type].heap
        assert nbytes <= self.adapter.limits.allocation_bytes, "more than an allocation may have"
        self.calls += 1
        self.held[self.calls] = (heap, nbytes)
        assert sum(n for h, n in self.held.values() if h == heap) <= self.adapter.heaps[heap], "more than the heap has"
        return self.calls

    def free(self, memory: int) -> None:
        del self.held[memory]

    def map(self, memory: int, nbytes: int) -> Any:
        return bytearray(0)


def decoder_weights(width: int, ffn: int, layers: int, kv: int, vocabulary: int) -> list[int]:
    """Bytes of a llama's tensors in bf16; vectors are f32."""
    layer = [width * width, width * kv, width * kv, width * width, width * ffn, width * ffn, width * ffn]
    return [2 * n for n in layer * layers] + [4 * width] * (2 * layers + 1) + [2 * width * vocabulary]


@pytest.mark.parametrize(
    ("limits", "heap", "sizes", "most"),
    [
        # 1B and 8B in bf16 on a large GPU; 1B where an allocation is at most 1 GiB, and on a small GPU.
        ((1 << 32, 1 << 30), 140 << 30, (2048, 8192, 16, 512, 128256), 70),
        ((1 << 32, 1 << 32), 140 << 30, (4096, 14336, 32, 1024, 128256), 180),
        ((1 << 30, 1 << 27), 8 << 30, (2048, 8192, 16, 512, 128256), 70),
        ((1 << 32, 1 << 27), 4 << 30, (2048, 8192, 16, 512, 128256), 70),
    ],
)
def test_a_model_lies_in_few_allocations(
    limits: tuple[int, int], heap: int, sizes: tuple[int, int, int, int, int], most: int
) -> None:
    """Within the largest allocation and the heap, and little more than the tensors are."""
    allocation, binding = limits
    adapter = dataclasses.replace(
        DISCRETE,
        limits=dataclasses.replace(LIMITS, allocation_bytes=allocation, binding_bytes=binding),
        heaps=(heap, *DISCRETE.heaps[1:]),
    )
    bank = Bank(adapter)
    allocator = Allocator(_Blocks(bank), block_sizes(adapter))  # type: ignore[arg-type]
    wanted = decoder_weights(*sizes)
    (type,) = (t for t in types_for(adapter, BufferKind.WEIGHT, staged=False) if adapter.memory[t].heap == 0)
    pieces = [allocator.take(type, nbytes, 256) for nbytes in wanted]
    assert all(piece is not None for piece in pieces)
    assert bank.calls == allocator.blocks <= most
    assert sum(nbytes for _, nbytes in bank.held.values()) <= sum(wanted) + (128 << 20)
    for piece in pieces:
        assert piece is not None
        allocator.give(piece)
    allocator.trim()
    assert not bank.held


def test_a_model_that_a_heap_does_not_hold_is_refused_in_time() -> None:
    """Where the heap ends there is no piece, and what is there stays."""
    adapter = dataclasses.replace(DISCRETE, heaps=(2 << 30, *DISCRETE.heaps[1:]))
    bank = Bank(adapter)
    allocator = Allocator(_Blocks(bank), block_sizes(adapter))  # type: ignore[arg-type]
    pieces = [allocator.take(0, nbytes, 256) for nbytes in decoder_weights(2048, 8192, 16, 512, 128256)]
    assert None in pieces
    held = sum(nbytes for _, nbytes in bank.held.values())
    assert sum(piece.nbytes for piece in pieces if piece is not None) <= held <= 2 << 30
