"""`VpuDevice`: whole graphs as OpenVINO models. Memory is the host's, and models read and write it where it lies."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.program import Program, WeightUse
from poot_executor.compile.target import Target
from poot_executor.device import Bindings, Buffer, BufferKind, Device, MemoryInfo, Recording
from poot_executor.errors import DeviceError, DeviceLost, DeviceTimeout, OutOfMemory, Poisoned, PootError
from poot_executor.settings import DeviceSettings
from poot_executor.weights import StoredTensor, WeightKey
from poot_npu.vpu.caps import caps_of
from poot_npu.vpu.compiler import Compiled, Compiler, need_of
from poot_npu.vpu.loading import Later
from poot_npu.vpu.memory import Memory, available, give_back_freed, memory_of, zeros
from poot_npu.vpu.model import Lowered
from poot_npu.vpu.modes import Mode
from poot_npu.vpu.recording import BoundStep, VpuRecording, bind
from poot_npu.vpu.sweep import Swept
from poot_npu.vpu.weights import Stored
from poot_npu.vpu.window import drop, flush

FIRST_STEPS = 4
"""Steps that may still touch memory which later ones do not."""


@dataclass(slots=True, eq=False)
class Flight:
    """A replay: its recording, whether it was started, whether it is over, and what it raised; where it was not started
    at once, how much it sweeps.
    """

    recording: VpuRecording
    started: bool = False
    done: bool = False
    fault: PootError | None = None
    swept: Swept | None = None


@dataclass(slots=True, eq=False)
class Models:
    """A program's compiled models over the same weights, for all of its recordings."""

    program: Program
    weights: tuple[Buffer, ...]
    lowered: Lowered
    made: Later[Compiled]
    steps: int = 0
    users: set[VpuRecording] = field(default_factory=set)


class VpuDevice(Device):
    """One OpenVINO device in one mode."""

    def __init__(self, core: Any, mode: Mode, settings: DeviceSettings) -> None:
        self.mode = mode
        self._core = core
        self._settings = settings
        self._target = Target(f"vpu-{mode.selector}", caps_of(mode))
        self._used = dict.fromkeys(BufferKind, 0)
        self._live: set[Buffer] = set()
        self._compiler = Compiler(core, mode, None if settings.cache is None else settings.cache / "vpu")
        self._models: list[Models] = []
        self._flights: deque[Flight] = deque()
        self._overdue: list[VpuRecording] = []
        self._unusable = ""

    @property
    def target(self) -> Target:
        """Whole graphs of the primitives in the table."""
        return self._target

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Zeros."""
        self._require()
        return self._adopted(kind, nbytes, Memory(zeros(kind, nbytes), blank=True))

    def free(self, buffer: Buffer) -> None:
        """Forget it; a second time does nothing."""
        self._require()
        if buffer in self._live:
            self._live.remove(buffer)
            self._used[buffer.kind] -= buffer.nbytes
            weight = memory_of(buffer).weight
            if isinstance(weight, Stored):
                self._compiler.forget(weight)
            buffer.handle = None

    def upload(self, use: WeightUse, stored: StoredTensor) -> Buffer:
        """The stored bytes stay where they are, mapped: models are made of them, and read rows of them as they lie."""
        self._require()
        weight = Stored(use.layout, np.asarray(stored.data))
        self._compiler.expect(weight)
        return self._adopted(BufferKind.WEIGHT, weight.nbytes, Memory(np.empty(0, np.uint8), weight))

    def lower(self, program: Program, bindings: Bindings) -> VpuRecording:
        """Compile the program's models, where another recording of it has not. Models that are kept on disk are read
        meanwhile, and the first replay waits for them, and raises what that raised."""
        self._require()
        weights = tuple(bindings.weights.values())
        models = next((m for m in self._models if m.program is program and m.weights == weights), None)
        if models is None:
            models = self._compiled(program, bindings, weights)
        recording = VpuRecording(
            bindings, models.made, lambda made: _bound(models, made, bindings), self._settings.timeout
        )
        if recording.ready:
            recording.bound()
        if models not in self._models:
            self._models.append(models)
        models.users.add(recording)
        return recording

    def replay(self, recording: Recording) -> None:
        """Start it, or have it start as soon as what was submitted before is over: that is not waited for here."""
        self._require()
        assert isinstance(recording, VpuRecording)
        flight = Flight(recording)
        if all(before.done for before in self._flights):
            self._start(flight)
            if flight.fault is not None:
                raise flight.fault
        elif recording.ready:
            flight.swept = recording.bound().look()
        self._flights.append(flight)

    def synchronize(self) -> None:
        """Wait for the oldest replay that was not waited for, and raise what it left."""
        self._require()
        if not self._flights:
            return
        flight = self._flights.popleft()
        self._finish(flight)
        if flight.fault is not None:
            raise flight.fault

    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy bytes in, once no submitted replay uses the buffer."""
        self._require()
        self._settle(buffer)
        flat = np.frombuffer(data, np.uint8)
        memory = memory_of(buffer)
        drop(memory)
        memory.finite = True
        memory.data[offset : offset + flat.size] = flat

    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy bytes out, once no submitted replay writes the buffer."""
        self._require()
        self._settle(buffer)
        flat = np.frombuffer(out, np.uint8)
        memory = memory_of(buffer)
        flush(memory)
        flat[:] = memory.data[offset : offset + flat.size]

    def memory(self) -> MemoryInfo:
        """What is allocated, and what the host can still give."""
        self._require()
        return MemoryInfo(dict(self._used), available(), None)

    def device_time(self) -> float | None:
        """Not known: the runtime counts nodes, and only where it is told to."""
        return None

    def release(self, recording: Recording) -> None:
        """Forget its requests; the models go with the last recording of their program."""
        assert isinstance(recording, VpuRecording)
        if recording in self._overdue:
            return  # it may still run, and `close` stops it
        for models in self._models:
            models.users.discard(recording)
        for models in self._models:
            if not models.users:
                models.made.drop()
        self._models = [models for models in self._models if models.users]

    def close(self) -> None:
        """Wait for what was submitted or is being read, or stop it where a step took too long, and drop everything."""
        for flight in self._flights:
            if self._unusable:
                flight.recording.abandon()
            elif flight.started:
                self._finish(flight)
        for recording in self._overdue:
            recording.abandon()
        self._flights.clear()
        self._overdue.clear()
        self._models.clear()
        self._compiler.close(self._settings.timeout)
        for buffer in self._live:
            buffer.handle = None
        self._live.clear()
        self._unusable = self._unusable or "it was closed"

    def _adopted(self, kind: BufferKind, nbytes: int, memory: Memory) -> Buffer:
        buffer = Buffer(kind, nbytes, memory)
        self._live.add(buffer)
        self._used[kind] += nbytes
        return buffer

    def _compiled(self, program: Program, bindings: Bindings, held: tuple[Buffer, ...]) -> Models:
        weights: dict[WeightKey, Stored] = {}
        for key, buffer in bindings.weights.items():
            weight = memory_of(buffer).weight
            assert isinstance(weight, Stored), "a weight that this device uploaded"
            weights[key] = weight
        need, free = need_of(weights), available()
        if free is not None and need > free:
            raise OutOfMemory(need, free, None, "a compiled model")
        lowered, made = self._compiler.compiled(program, weights)
        return Models(program, held, lowered, made)

    def _finish_all(self) -> None:
        for flight in self._flights:
            self._finish(flight)

    def _settle(self, buffer: Buffer) -> None:
        if any(buffer in flight.recording.touched for flight in self._flights if not flight.done):
            self._finish_all()

    def _start(self, flight: Flight) -> None:
        """What it raises is kept for `synchronize`."""
        flight.started = True
        try:
            flight.recording.bound().start(flight.swept)
        except PootError as error:  # of its models, which were read meanwhile
            flight.fault = error
            if isinstance(error, DeviceTimeout):
                self._unusable = str(error)
        except RuntimeError as error:
            flight.fault = self._lost(error)

    def _finish(self, flight: Flight) -> None:
        """Wait for a replay, do the host's part, and start the next one, unless its models are still being read: that
        is waited for when it is. What it raises is kept for `synchronize`."""
        if flight.done:
            return
        self._complete(flight)
        following = next((other for other in self._flights if not other.done), None)
        if following is not None and not following.started and following.recording.ready and not self._unusable:
            self._start(following)

    def _complete(self, flight: Flight) -> None:
        flight.done = True
        if not flight.started and not self._unusable:
            self._start(flight)
        if flight.fault is not None or not flight.started:
            return
        models = next((m for m in self._models if m.steps < FIRST_STEPS and flight.recording in m.users), None)
        if models is not None:
            models.steps += 1
        try:
            flight.recording.bound().complete(self._settings.timeout)
        except DeviceError as error:
            flight.fault = error
            if isinstance(error, DeviceTimeout):
                self._unusable = str(error)
                self._overdue.append(flight.recording)
        except RuntimeError as error:
            flight.fault = self._lost(error)
        if models is not None:
            models.made.result(self._settings.timeout).settle()  # first steps touch what importing left alone
            if models.steps in (1, FIRST_STEPS):
                give_back_freed()
        self._compiler.loader.go_on()

    def _lost(self, error: Exception) -> DeviceLost:
        self._unusable = f"OpenVINO failed: {' '.join(str(error).split())}"
        return DeviceLost(self._unusable)

    def _require(self) -> None:
        if self._unusable:
            raise Poisoned(f"vpu:{self.mode.selector} cannot be used any more: {self._unusable}")


def _bound(models: Models, made: Compiled, bindings: Bindings) -> BoundStep:
    return bind(models.lowered, made.faces, made.models, models.program, bindings)
