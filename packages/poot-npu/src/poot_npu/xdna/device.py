"""`XdnaDevice`: covered contractions on the NPU, everything else on the host."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.program import Program, WeightUse
from poot_executor.compile.target import Caps, Granularity, Target
from poot_executor.device import Bindings, Buffer, BufferKind, BufferSlice, Device, MemoryInfo, Recording
from poot_executor.errors import DeviceError, DeviceLost, DeviceTimeout, KernelFault, OutOfMemory, Poisoned
from poot_executor.graph.ops import OPS
from poot_executor.weights import StoredTensor
from poot_npu.xdna.recording import Lowering, XdnaRecording, memory_of
from poot_npu.xdna.runtime import Runtime


class XdnaDevice(Device):
    """An NPU with a kernel set. Memory is the host's, but for what a contraction on the NPU reads and writes.

    A replay has computed everything when it returns; what it raises is staged until the `synchronize` that waits for
    it. A run that fails or takes too long poisons the device.
    """

    def __init__(self, runtime: Runtime, timeout: float) -> None:
        self._timeout = timeout
        self._lowering = Lowering(runtime)
        self._used = dict.fromkeys(BufferKind, 0)
        self._live: set[Buffer] = set()
        self._recordings: set[XdnaRecording] = set()
        self._replays: deque[DeviceError | None] = deque()
        self._seconds: float | None = None
        self._unusable = ""

    @property
    def target(self) -> Target:
        """Whole graphs of every primitive. How a covered contraction rounds is up to its kernel."""
        return Target("xdna", Caps(granularity=Granularity.GRAPH, operations=frozenset(OPS)))

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
        """Forget it, and what is on the NPU of it; a second time does nothing."""
        self._require()
        if buffer in self._live:
            self._live.remove(buffer)
            self._used[buffer.kind] -= buffer.nbytes
            self._lowering.forget(buffer)
            buffer.handle = None

    def upload(self, use: WeightUse, stored: StoredTensor) -> Buffer:
        """The bytes as they are stored. What a contraction on the NPU wants is made when a step is lowered."""
        buffer = self.allocate(BufferKind.WEIGHT, stored.data.nbytes)
        self.write(buffer, stored.data)
        return buffer

    def lower(self, program: Program, bindings: Bindings) -> XdnaRecording:
        """Run lists over the covered contractions. Raises OutOfMemory or DeviceLost."""
        self._require()
        try:
            recording = self._lowering.record(program, bindings)
        except DeviceLost as error:
            self._unusable = str(error)
            raise
        self._recordings.add(recording)
        return recording

    def replay(self, recording: Recording) -> None:
        """Compute."""
        self._require()
        assert isinstance(recording, XdnaRecording)
        started = monotonic()
        fault: DeviceError | None = None
        try:
            recording.run(self._timeout)
        except (KernelFault, DeviceTimeout, DeviceLost) as error:
            fault = error
        self._replays.append(fault)
        self._seconds = monotonic() - started

    def synchronize(self) -> None:
        """Raise what the oldest replay that was not waited for left, if anything."""
        self._require()
        fault = self._replays.popleft() if self._replays else None
        if isinstance(fault, DeviceTimeout | DeviceLost):
            self._unusable = str(fault)
        if fault is not None:
            raise fault

    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy bytes in."""
        self._require()
        flat = np.frombuffer(data, np.uint8)
        memory_of(BufferSlice(buffer, offset, flat.size))[:] = flat

    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy bytes out."""
        self._require()
        flat = np.frombuffer(out, np.uint8)
        flat[:] = memory_of(BufferSlice(buffer, offset, flat.size))

    def memory(self) -> MemoryInfo:
        """What was allocated on either side. What is left is not known."""
        self._require()
        used = dict(self._used)
        used[BufferKind.WEIGHT] += self._lowering.weight_bytes
        used[BufferKind.ARENA] += sum(recording.nbytes for recording in self._recordings)
        return MemoryInfo(used, None, None)

    def device_time(self) -> float | None:
        """Seconds that the last replay took, the host's part included: XRT does not say what the NPU's was."""
        return self._seconds

    def release(self, recording: Recording) -> None:
        """Forget a recording and the operands that it has on the NPU."""
        if isinstance(recording, XdnaRecording):
            recording.stages = ()
            self._recordings.discard(recording)

    def close(self) -> None:
        """Drop all memory. Any call but this one is refused from now on."""
        for buffer in self._live:
            self._lowering.forget(buffer)
            buffer.handle = None
        for recording in list(self._recordings):
            self.release(recording)
        self._live.clear()
        self._unusable = self._unusable or "it was closed"

    def _require(self) -> None:
        if self._unusable:
            raise Poisoned(f"the xdna device cannot be used any more: {self._unusable}")
