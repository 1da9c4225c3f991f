"""Device memory: zero-filled, addressed by byte, counted exactly, given back."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.inputs import Rng
from poot_executor.device import BufferKind, Device
from poot_executor.errors import OutOfMemory

SIZES = (4, 12, 16, 100, 4096, 65540)
"""Bytes: one word, odd numbers of words, more than a page."""


def used(device: Device) -> dict[BufferKind, int]:
    """What the device counts as its own, by kind, without the kinds of which there is nothing."""
    return {kind: count for kind, count in device.memory().used.items() if count}


class MemoryConformance:
    """allocate, free, write, read and memory."""

    @pytest.mark.parametrize("kind", list(BufferKind), ids=lambda k: k.value)
    def test_memory_starts_at_zero(self, device: Device, rng: Rng, kind: BufferKind) -> None:
        """Also where another buffer has just been, full of something else."""
        for nbytes in SIZES:
            dirty = device.allocate(kind, nbytes)
            device.write(dirty, rng.integers(1, 256, nbytes, dtype=np.uint8))
            device.free(dirty)
            clean = device.allocate(kind, nbytes)
            held = np.full(nbytes, 7, np.uint8)
            device.read(clean, held)
            device.free(clean)
            assert not held.any()

    @pytest.mark.parametrize("kind", list(BufferKind), ids=lambda k: k.value)
    def test_what_is_written_is_read(self, device: Device, rng: Rng, kind: BufferKind) -> None:
        """At offsets, in parts, and nothing beside them."""
        for nbytes in SIZES:
            buffer = device.allocate(kind, nbytes)
            expected = np.zeros(nbytes, np.uint8)
            for _ in range(4):
                low, high = sorted(int(v) * 4 for v in rng.integers(0, nbytes // 4 + 1, 2))
                part = rng.integers(0, 256, high - low, dtype=np.uint8)
                if part.size:
                    device.write(buffer, part if low % 8 else part.tobytes(), low)
                expected[low:high] = part
            whole = np.empty(nbytes, np.uint8)
            device.read(buffer, whole)
            assert np.array_equal(whole, expected)
            half = bytearray(nbytes // 8 * 4 or 4)
            device.read(buffer, memoryview(half), nbytes - len(half))
            assert half == expected[-len(half) :].tobytes()
            device.free(buffer)

    def test_buffers_do_not_overlap(self, device: Device, rng: Rng) -> None:
        """Each keeps its own while others come and go."""
        live: list[tuple[object, np.ndarray]] = []
        for step in range(40):
            nbytes = int(rng.integers(1, 300)) * 4
            buffer = device.allocate(list(BufferKind)[step % len(BufferKind)], nbytes)
            value = rng.integers(0, 256, nbytes, dtype=np.uint8)
            device.write(buffer, value)
            live.append((buffer, value))
            if step % 3 == 2:
                gone, _ = live.pop(int(rng.integers(0, len(live))))
                device.free(gone)  # type: ignore[arg-type]
        for buffer, value in live:
            held = np.empty_like(value)
            device.read(buffer, held)  # type: ignore[arg-type]
            assert np.array_equal(held, value)
            device.free(buffer)  # type: ignore[arg-type]

    def test_counters_say_what_is_allocated(self, device: Device) -> None:
        """By kind; freeing twice gives back once."""
        before = used(device)
        buffer = device.allocate(BufferKind.STATE, 4096)
        held = used(device)[BufferKind.STATE] - before.get(BufferKind.STATE, 0)
        assert 4096 <= held <= 8192
        device.free(buffer)
        device.free(buffer)
        assert used(device) == before

    def test_out_of_memory_leaves_the_device_usable(self, device: Device, rng: Rng) -> None:
        """The refusal names what was asked; what is there stays, and more can be had."""
        kept = device.allocate(BufferKind.ARENA, 256)
        value = rng.integers(0, 256, 256, dtype=np.uint8)
        device.write(kept, value)
        before = used(device)
        with pytest.raises(OutOfMemory) as refused:
            device.allocate(BufferKind.ARENA, 1 << 56)
        assert refused.value.asked == 1 << 56 and used(device) == before
        more = device.allocate(BufferKind.ARENA, 1024)
        held = np.empty(256, np.uint8)
        device.read(kept, held)
        assert np.array_equal(held, value)
        device.free(more)
        device.free(kept)
