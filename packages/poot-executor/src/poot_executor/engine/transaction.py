"""Device objects made on the way to publishing something: all of them stay, or none."""

from __future__ import annotations

from collections.abc import Iterable

from poot_executor.compile.program import Program, WeightUse
from poot_executor.device import Bindings, Buffer, BufferKind, Device, Recording
from poot_executor.stats import Counters
from poot_executor.weights import StoredTensor

BUFFER_ALIGNMENT = 16
"""Buffers are whole multiples of this many bytes, so that any transfer can be in whole words."""


class Transaction:
    """Makes buffers and recordings, counts them, and can give back all that it made."""

    def __init__(self, device: Device, counters: Counters) -> None:
        self._device = device
        self._counters = counters
        self._buffers: list[Buffer] = []
        self._recordings: list[Recording] = []

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Zero-filled memory of at least `nbytes` and at least one alignment unit."""
        whole = max(1, -(-nbytes // BUFFER_ALIGNMENT)) * BUFFER_ALIGNMENT
        buffer = self._device.allocate(kind, whole)
        self._counters.allocations += 1
        self._buffers.append(buffer)
        return buffer

    def upload(self, use: WeightUse, stored: StoredTensor) -> Buffer:
        """A weight in its device layout."""
        buffer = self._device.upload(use, stored)
        self._counters.allocations += 1
        self._counters.uploads += 1
        self._counters.uploaded_bytes += stored.data.nbytes
        self._buffers.append(buffer)
        return buffer

    def lower(self, program: Program, bindings: Bindings) -> Recording:
        """A recording of a program over buffers."""
        recording = self._device.lower(program, bindings)
        self._counters.recordings += 1
        self._recordings.append(recording)
        return recording

    def undo(self) -> None:
        """Give back what was made, newest first, recordings before the buffers that they use."""
        give_back(self._device, reversed(self._recordings), reversed(self._buffers))


def give_back(device: Device, recordings: Iterable[Recording], buffers: Iterable[Buffer]) -> None:
    """Release recordings, then free buffers."""
    for recording in recordings:
        device.release(recording)
    for buffer in buffers:
        device.free(buffer)
