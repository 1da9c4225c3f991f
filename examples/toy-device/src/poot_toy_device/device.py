"""The device: memory is numpy arrays of bytes, and a replay has computed everything when it returns."""

from __future__ import annotations

from collections import deque
from time import monotonic

import numpy as np

from poot_executor.compile.program import Program, WeightUse
from poot_executor.compile.target import Caps, Granularity, Target
from poot_executor.device import Bindings, Buffer, BufferKind, BufferSlice, Device, MemoryInfo, Recording
from poot_executor.errors import DeviceError, DeviceTimeout, KernelFault, OutOfMemory, Poisoned
from poot_executor.weights import StoredTensor
from poot_toy_device.operations import TABLE
from poot_toy_device.recording import Array, ToyRecording, memory_of, record


class ToyDevice(Device):
    """Host memory as a device. What a replay raises is staged until the `synchronize` that waits for it."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._used = dict.fromkeys(BufferKind, 0)
        self._live: set[Buffer] = set()
        self._replays: deque[DeviceError | None] = deque()
        self._seconds: float | None = None
        self._unusable = ""

    @property
    def target(self) -> Target:
        """Whole graphs of the primitives in the table. Arithmetic is IEEE float32 with errors below one ULP."""
        return Target("toy", Caps(granularity=Granularity.GRAPH, operations=frozenset(TABLE)))

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Zeros. Raises OutOfMemory where the host has no more."""
        self._require()
        try:
            memory = np.zeros(nbytes, np.uint8)
        except (MemoryError, ValueError):
            raise OutOfMemory(nbytes, None, None, kind.value) from None
        buffer = Buffer(kind, nbytes, memory)
        self._live.add(buffer)
        self._used[kind] += nbytes
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Forget it; a second time does nothing."""
        self._require()
        if buffer in self._live:
            self._live.remove(buffer)
            self._used[buffer.kind] -= buffer.nbytes
            buffer.handle = None

    def upload(self, use: WeightUse, stored: StoredTensor) -> Buffer:
        """The bytes as they are stored: packed weights stay packed, and are decoded each time they are used."""
        buffer = self.allocate(BufferKind.WEIGHT, stored.data.nbytes)
        self.write(buffer, stored.data)
        return buffer

    def lower(self, program: Program, bindings: Bindings) -> ToyRecording:
        """Nothing is allocated for it."""
        self._require()
        return record(program, bindings)

    def replay(self, recording: Recording) -> None:
        """Compute. After a replay that took too long nothing runs any more."""
        self._require()
        assert isinstance(recording, ToyRecording)
        start = monotonic()

        def tick() -> None:
            if monotonic() - start > self._timeout:
                raise DeviceTimeout("a replay of the toy device", self._timeout)

        fault: DeviceError | None = None
        try:
            with np.errstate(all="ignore"):
                recording.run(tick)
        except (KernelFault, DeviceTimeout) as error:
            fault = error
        self._replays.append(fault)
        self._seconds = monotonic() - start

    def synchronize(self) -> None:
        """Raise what the oldest replay that was not waited for left, if anything."""
        self._require()
        fault = self._replays.popleft() if self._replays else None
        if isinstance(fault, DeviceTimeout):
            self._unusable = str(fault)
        if fault is not None:
            raise fault

    def write(self, buffer: Buffer, data: bytes | memoryview | Array, offset: int = 0) -> None:
        """Copy bytes in."""
        self._require()
        flat = np.frombuffer(data, np.uint8)
        memory_of(BufferSlice(buffer, offset, flat.size))[:] = flat

    def read(self, buffer: Buffer, out: memoryview | Array, offset: int = 0) -> None:
        """Copy bytes out."""
        self._require()
        flat = np.frombuffer(out, np.uint8)
        flat[:] = memory_of(BufferSlice(buffer, offset, flat.size))

    def memory(self) -> MemoryInfo:
        """What is allocated. What the host has left is not known."""
        self._require()
        return MemoryInfo(dict(self._used), None, None)

    def device_time(self) -> float | None:
        """Seconds that the last replay took."""
        return self._seconds

    def release(self, recording: Recording) -> None:
        """A recording holds nothing."""

    def close(self) -> None:
        """Drop all memory. Any call but this one is refused from now on."""
        for buffer in self._live:
            buffer.handle = None
        self._live.clear()
        self._unusable = self._unusable or "it was closed"

    def _require(self) -> None:
        if self._unusable:
            raise Poisoned(f"the toy device cannot be used any more: {self._unusable}")
