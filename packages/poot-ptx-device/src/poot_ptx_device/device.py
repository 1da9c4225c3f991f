"""`PtxDevice`: kernels as PTX on an NVIDIA GPU, each recording a graph that one launch replays."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from poot_executor.cache import CompileCache
from poot_executor.compile.target import Target
from poot_executor.device import Buffer, BufferKind, BufferSlice, Commands, Compiled, MemoryInfo, Recording
from poot_executor.errors import DeviceLost, DeviceTimeout, KernelFault, OutOfMemory, Poisoned
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_device import KernelDevice
from poot_ptx_device.caps import DEPENDENT_LAUNCH
from poot_ptx_device.emit import emit
from poot_ptx_device.emitter import ENTRY
from poot_ptx_device.memory import Memory, allocation_of
from poot_ptx_device.native import Handle, Native
from poot_ptx_device.pinned import pin
from poot_ptx_device.program import Loader, PtxKernel
from poot_ptx_device.queue import PtxRecording, Recorder
from poot_ptx_device.results import OutOfDeviceMemory
from poot_ptx_device.transfer import Transfers, host_bytes, host_target
from poot_ptx_device.wait import wait_until

FAULT_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A replay that was not waited for, between its two events."""

    recording: PtxRecording
    start: Handle
    end: Handle


class PtxDevice(KernelDevice):
    """One GPU's primary context and one stream. `synchronize` waits for the oldest replay that was not waited for.

    A context that faults is lost for the whole process: what it holds is leaked and every later call raises Poisoned.
    """

    def __init__(
        self,
        native: Native,
        ordinal: int,
        target: Target,
        cache: CompileCache,
        machine_code: CompileCache,
        *,
        timeout: float,
    ) -> None:
        super().__init__(cache)
        self._native = native
        self._ordinal = ordinal
        self._target = target
        self._timeout = timeout
        self._poisoned = ""
        self._identities: dict[int, str] = {}
        self._flights: deque[Flight] = deque()
        self._events: list[Handle] = []
        self._recordings: set[PtxRecording] = set()
        self._served: PtxRecording | None = None
        self._seconds: float | None = None
        self._context = native.retain(ordinal)
        native.make_current(self._context)
        self._stream = native.create_stream()
        self._call = _Call(self)
        self._memory = Memory(native, self._stream)
        self._fault = pin(native, FAULT_BYTES)
        self._transfers = Transfers(native, self._stream, self._wait)
        self._loader = Loader(native, target, machine_code)
        dependent = DEPENDENT_LAUNCH in target.caps.features
        self._recorder = Recorder(
            native, self._memory, self._stream, native.device_address(self._fault.address), dependent=dependent
        )

    @property
    def target(self) -> Target:
        """Kind "ptx"."""
        return self._target

    # Memory

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Filled with zeros in the stream's order."""
        with self._call("allocate"):
            return self._memory.allocate(kind, nbytes)

    def free(self, buffer: Buffer) -> None:
        """What is in flight is waited for first, since the driver's own wait has no bound."""
        with self._call("free"):
            if not self._memory.holds(buffer):
                return
            if (
                self._served is not None
                and self._served.download is not None
                and self._served.download.buffer is buffer
            ):
                self._served = None
            self._settle("free")
            self._memory.free(buffer)

    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copied before it returns. An input block is written on the host: each replay that reads it brings it along."""
        with self._call("write"):
            flat = host_bytes(data)
            self._memory.check(BufferSlice(buffer, offset, flat.size))
            if flat.size == 0:
                return
            if (
                self._served is not None
                and self._served.download is not None
                and self._served.download.buffer is buffer
            ):
                self._served = None
            allocation = allocation_of(buffer)
            if allocation.shadow is not None:
                self._wait_for_readers(buffer)
                allocation.shadow.view[offset : offset + flat.size] = flat
            else:
                self._transfers.upload(allocation.address + offset, flat)

    def _wait_for_readers(self, buffer: Buffer) -> None:
        """A replay in flight may still be about to upload the block."""
        last = next((f for f in reversed(self._flights) if buffer in f.recording.inputs), None)
        if last is not None:
            self._wait(last.end, "write")

    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """From what the last `synchronize` brought where that holds it, else by a copy and a bounded wait."""
        with self._call("read"):
            flat = host_target(out)
            self._memory.check(BufferSlice(buffer, offset, flat.size))
            if self._serve(buffer, flat, offset):
                return
            allocation = allocation_of(buffer)
            if allocation.shadow is not None:
                flat[:] = allocation.shadow.view[offset : offset + flat.size]
            else:
                self._transfers.download(flat, allocation.address + offset)

    def _serve(self, buffer: Buffer, flat: NDArray[Any], offset: int) -> bool:
        served = self._served
        if served is None or served.landing is None or served.download is None or served.download.buffer is not buffer:
            return False
        start = offset - served.download.offset
        if start < 0 or start + flat.size > served.download.nbytes:
            return False
        flat[:] = served.landing.view[start : start + flat.size]
        return True

    def memory(self) -> MemoryInfo:
        """What this device allocated, and what the driver says of the GPU, which others use as well."""
        with self._call("memory"):
            free, whole = self._native.memory_info()
            return MemoryInfo(self._memory.used, free, whole)

    # Kernels

    def compile(self, kernel: Kernel) -> Compiled:
        """PTX text."""
        return Compiled(kernel.name, emit(kernel, self._target.caps).encode(), ENTRY)

    def load(self, kernel: Kernel, compiled: Compiled) -> PtxKernel:
        """Machine code, from disk where this driver has made it before. Raises CudaError with the assembler's messages."""
        with self._call("load"):
            loaded = self._loader.load(kernel, compiled)
            self._identities[loaded.identity] = loaded.name
            return loaded

    def record(self, commands: Commands, download: BufferSlice | None) -> Recording:
        """A graph: uploads of input blocks, the commands in order, the download into page-locked memory."""
        with self._call("record"):
            recording = self._recorder.record(commands, download)
            self._recordings.add(recording)
            return recording

    def release(self, recording: Recording) -> None:
        """Forget a recording; what is in flight of it is waited for first."""
        with self._call("release"):
            assert isinstance(recording, PtxRecording)
            if recording.released:
                return
            if recording.in_flight:
                self._wait(next(f.end for f in reversed(self._flights) if f.recording is recording), "release")
                for flight in [f for f in self._flights if f.recording is recording]:
                    self._flights.remove(flight)
                    self._land(flight)
            if self._served is recording:
                self._served = None
            self._recordings.discard(recording)
            self._recorder.release(recording)

    # Steps

    def replay(self, recording: Recording) -> None:
        """One launch of the graph, between two events."""
        with self._call("replay"):
            assert isinstance(recording, PtxRecording)
            if recording.released:
                raise ValueError("a released recording was replayed")
            native, stream = self._native, self._stream
            served = self._served
            if served is recording or (
                served is not None and served.download and served.download.buffer in recording.writes
            ):
                self._served = None
            start, end = self._event(), self._event()
            native.record_event(start, stream)
            native.replay(recording.executable, stream)
            native.record_event(end, stream)
            self._flights.append(Flight(recording, start, end))
            recording.in_flight += 1

    def _event(self) -> Handle:
        return self._events.pop() if self._events else self._native.create_event()

    def synchronize(self) -> None:
        """Wait for the oldest replay that was not waited for. Its output block is then in page-locked memory."""
        with self._call("synchronize"):
            if not self._flights:
                return
            flight = self._flights[0]
            self._wait(flight.end, "replay")
            self._flights.popleft()
            self._seconds = self._native.seconds_between(flight.start, flight.end)
            self._land(flight)
            # A landing place that a later replay fills again belongs to that one.
            self._served = (
                flight.recording if flight.recording.landing is not None and not flight.recording.in_flight else None
            )

    def _land(self, flight: Flight) -> None:
        flight.recording.in_flight -= 1
        self._events += [flight.start, flight.end]

    def device_time(self) -> float | None:
        """From the start to the end of the replay that `synchronize` last waited for."""
        with self._call("device_time"):
            return self._seconds

    # Waits, failure and the end

    def _wait(self, event: Handle, what: str) -> None:
        if not wait_until(lambda: self._native.event_done(event), self._timeout):
            self._poison(f"{what} did not finish within {self._timeout:g} s")
            raise DeviceTimeout(what, self._timeout)

    def _settle(self, what: str) -> None:
        """Wait, bounded, for everything in flight; none of it is taken."""
        if self._flights:
            self._wait(self._flights[-1].end, what)

    def _enter(self, call: str) -> None:
        if self._poisoned:
            raise Poisoned(
                f"{call} was refused, the device was not touched: {self._poisoned}; open it again in a new process"
            )
        self._native.make_current(self._context)

    def _observe(self, call: str, error: BaseException) -> None:
        """Poison the device where an error says that its context is lost, and name the check that failed where one did."""
        if isinstance(error, OutOfDeviceMemory):
            raise OutOfMemory(0, None, None, f"what {call} needs") from error
        if not isinstance(error, DeviceLost):
            return
        self._poison(str(error))
        word = int(self._fault.view.view("<u4")[0])
        if word:
            raise KernelFault(self._identities.get(word >> 8, "unknown"), word & 0xFF) from error

    def _poison(self, reason: str) -> None:
        """Refuse everything from now on. What the device may still use is leaked."""
        self._poisoned = reason
        self._memory.forget()
        self._flights.clear()
        self._recordings.clear()
        self._loaded.clear()
        self._served = None

    def close(self) -> None:
        """Wait, bounded, for what is in flight, and give everything back; where that fails it is leaked."""
        if self._poisoned:
            return
        with self._call("close"):
            native = self._native
            event = self._event()
            native.record_event(event, self._stream)
            self._wait(event, "close")
            for recording in self._recordings:
                self._recorder.release(recording)
            for kernel in self._loaded.values():
                self._loader.unload(kernel)
            self._memory.free_all()
            self._transfers.release()
            for old in [event, *self._events, *(e for f in self._flights for e in (f.start, f.end))]:
                native.destroy_event(old)
            native.host_free(self._fault.address)
            native.destroy_stream(self._stream)
            native.release(self._ordinal)
        self._poison("it was closed")


class _Call:
    """`with call("name"):` refuses a poisoned device, makes its context current, and looks at what is raised inside.

    One object serves every call of a device: it is entered for each, a few times a step.
    """

    __slots__ = ("_device", "_name")

    def __init__(self, device: PtxDevice) -> None:
        self._device = device
        self._name = ""

    def __call__(self, name: str) -> _Call:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._device._enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._device._observe(self._name, error)
