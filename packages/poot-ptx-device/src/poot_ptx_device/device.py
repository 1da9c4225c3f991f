"""`PtxDevice`: kernels as PTX on an NVIDIA GPU, each recording a graph that one launch replays."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.cache import CompileCache
from poot_executor.compile.target import Caps, Target
from poot_executor.device import Buffer, BufferKind, BufferSlice, Commands, Compiled, MemoryInfo, Recording
from poot_executor.device_memory import host_bytes, host_target
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_device import KernelDevice
from poot_ptx_device.caps import DEPENDENT_LAUNCH
from poot_ptx_device.context import Context
from poot_ptx_device.emit import emit
from poot_ptx_device.emitter import ENTRY
from poot_ptx_device.memory import Memory, allocation_of
from poot_ptx_device.native import Handle, Native
from poot_ptx_device.program import Loader, PtxKernel
from poot_ptx_device.queue import PtxRecording, Recorder
from poot_ptx_device.transfer import Transfers

ASSEMBLERS = 8
"""Threads that assemble kernels, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A replay that was not waited for, between its two events."""

    recording: PtxRecording
    start: Handle
    end: Handle


class PtxDevice(KernelDevice):
    """One GPU's primary context and one stream. `synchronize` waits for the oldest replay that was not waited for.

    A context that faults is lost for the whole process: what it holds is leaked and every later call raises Poisoned.
    `texts` keeps PTX on disk, `machine_code` what the driver made of it.
    """

    def __init__(
        self,
        native: Native,
        ordinal: int,
        target: Target,
        texts: CompileCache,
        machine_code: CompileCache,
        *,
        timeout: float,
    ) -> None:
        super().__init__(texts)
        self._native = native
        self._target = target
        self._flights: deque[Flight] = deque()
        self._events: list[Handle] = []
        self._recordings: set[PtxRecording] = set()
        self._served: PtxRecording | None = None
        self._seconds: float | None = None
        self._context = Context(native, ordinal, timeout=timeout, forget=self._forget)
        self._stream = self._context.stream
        self._memory = Memory(native, self._stream)
        self._transfers = Transfers(native, self._stream, self._context.wait)
        self._loader = Loader(native, target, machine_code)
        dependent = DEPENDENT_LAUNCH in target.caps.features
        self._recorder = Recorder(native, self._memory, self._stream, self._context.fault_address, dependent=dependent)

    @property
    def target(self) -> Target:
        """Kind "ptx"."""
        return self._target

    def settle(self, caps: Caps) -> None:
        """Have other capabilities from now on: what was loaded before is compiled again where they differ."""
        with self._context("settle"):
            self._target = Target(self._target.kind, caps)
            self._loader = self._loader.of(self._target)
            for kernel in self._loaded.values():
                self._loader.unload(kernel)
            self._loaded.clear()

    # Memory

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Filled with zeros in the stream's order."""
        with self._context("allocate"):
            return self._memory.allocate(kind, nbytes)

    def free(self, buffer: Buffer) -> None:
        """What is in flight is waited for first, since the driver's own wait has no bound."""
        with self._context("free"):
            if self._memory.holds(buffer):
                self._unserve(buffer)
                self._settle("free")
                self._memory.free(buffer)

    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copied before it returns. An input block is written on the host: each replay that reads it takes it along."""
        flat = host_bytes(data)
        self._context.require("write")
        self._memory.check(BufferSlice(buffer, offset, flat.size))
        if flat.size == 0:
            return
        self._unserve(buffer)
        allocation = allocation_of(buffer)
        if allocation.shadow is None:
            with self._context("write"):
                self._transfers.upload(allocation.address + offset, flat)
            return
        if any(buffer in flight.recording.inputs for flight in self._flights):
            # A replay in flight may still be about to upload the block.
            with self._context("write"):
                self._context.wait(self._last(lambda recording: buffer in recording.inputs), "write")
        allocation.shadow.view[offset : offset + flat.size] = flat

    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """From what the last `synchronize` brought where that holds it, else by a copy and a bounded wait."""
        self._context.require("read")
        flat = host_target(out)
        self._memory.check(BufferSlice(buffer, offset, flat.size))
        if self._serve(buffer, flat, offset):
            return
        allocation = allocation_of(buffer)
        if allocation.shadow is not None:
            flat[:] = allocation.shadow.view[offset : offset + flat.size]
            return
        with self._context("read"):
            self._transfers.download(flat, allocation.address + offset)

    def _serve(self, buffer: Buffer, flat: NDArray[np.uint8], offset: int) -> bool:
        """Whether page-locked memory holds what is asked for, which is then copied."""
        served = self._served
        if served is None or served.landing is None or served.download is None or served.download.buffer is not buffer:
            return False
        start = offset - served.download.offset
        if start < 0 or start + flat.size > served.download.nbytes:
            return False
        flat[:] = served.landing.view[start : start + flat.size]
        return True

    def _unserve(self, buffer: Buffer) -> None:
        """The buffer is about to change."""
        served = self._served
        if served is not None and served.download is not None and served.download.buffer is buffer:
            self._served = None

    def memory(self) -> MemoryInfo:
        """What this device allocated, and what the driver says of the GPU, which others use as well."""
        with self._context("memory"):
            free, whole = self._native.memory_info()
            return MemoryInfo(self._memory.used, free, whole)

    # Kernels

    def compile(self, kernel: Kernel) -> Compiled:
        """PTX text."""
        return Compiled(kernel.name, emit(kernel, self._target.caps).encode(), ENTRY)

    def load(self, kernel: Kernel, compiled: Compiled) -> PtxKernel:
        """Machine code, from disk where this driver has made it before. Raises CudaError with the assembler's words."""
        (loaded,) = self.load_all([(kernel, compiled)])
        return loaded

    def load_all(self, kernels: Iterable[tuple[Kernel, Compiled]]) -> Iterator[PtxKernel]:
        """What is not on disk is assembled in threads, while the next kernels are emitted: the driver takes a tenth of
        a second for each, on one processor."""
        with ThreadPoolExecutor(min(ASSEMBLERS, os.cpu_count() or 1), initializer=self._context.enter_thread) as pool:
            begun = [(kernel, compiled, self._begin(compiled, pool)) for kernel, compiled in kernels]
            for kernel, compiled, code in begun:
                yield self._finish(kernel, compiled, code)

    def _begin(self, compiled: Compiled, pool: ThreadPoolExecutor) -> Compiled | Future[Compiled]:
        self._context.require("load")
        return self._loader.find(compiled) or pool.submit(self._loader.assemble, compiled)

    def _finish(self, kernel: Kernel, compiled: Compiled, code: Compiled | Future[Compiled]) -> PtxKernel:
        with self._context("load"):
            if isinstance(code, Future):
                code = code.result()
                self._loader.keep(compiled, code)
            loaded = self._loader.load(kernel, compiled, code)
            self._context.name_kernel(loaded.identity, loaded.name)
            return loaded

    def record(self, commands: Commands, download: BufferSlice | None) -> Recording:
        """A graph: uploads of input blocks, the commands in order, the download into page-locked memory."""
        with self._context("record"):
            recording = self._recorder.record(commands, download)
            self._recordings.add(recording)
            return recording

    def release(self, recording: Recording) -> None:
        """Forget a recording; what is in flight of it is waited for first."""
        assert isinstance(recording, PtxRecording)
        with self._context("release"):
            if recording.in_flight:
                self._context.wait(self._last(lambda other: other is recording), "release")
                for flight in [flight for flight in self._flights if flight.recording is recording]:
                    self._flights.remove(flight)
                    self._land(flight)
            if self._served is recording:
                self._served = None
            self._recordings.discard(recording)
            self._recorder.release(recording)

    # Steps

    def replay(self, recording: Recording) -> None:
        """One launch of the graph, between two events."""
        assert isinstance(recording, PtxRecording)
        with self._context("replay"):
            if recording.released:
                raise ValueError("a released recording was replayed")
            native, stream, served = self._native, self._stream, self._served
            if served is not None and served.download is not None and served.download.buffer in recording.writes:
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
        with self._context("synchronize"):
            if not self._flights:
                return
            flight = self._flights[0]
            self._context.wait(flight.end, "replay")
            self._flights.popleft()
            self._seconds = self._native.seconds_between(flight.start, flight.end)
            self._land(flight)
            # A landing place that a later replay fills again belongs to that one.
            landed = flight.recording.landing is not None and not flight.recording.in_flight
            self._served = flight.recording if landed else None

    def _land(self, flight: Flight) -> None:
        flight.recording.in_flight -= 1
        self._events += [flight.start, flight.end]

    def device_time(self) -> float | None:
        """From the start to the end of the replay that `synchronize` last waited for."""
        self._context.require("device_time")
        return self._seconds

    # Waits and the end

    def _last(self, uses: Callable[[PtxRecording], bool]) -> Handle:
        """The end of the last flight whose recording is asked for; there is one."""
        return next(flight.end for flight in reversed(self._flights) if uses(flight.recording))

    def _settle(self, what: str) -> None:
        """Wait, bounded, for everything in flight; none of it is taken."""
        if self._flights:
            self._context.wait(self._flights[-1].end, what)

    def _forget(self) -> None:
        """The context is lost: what lies in it is no longer there to be given back."""
        self._memory.forget()
        self._flights.clear()
        self._recordings.clear()
        self._loaded.clear()
        self._served = None

    def close(self) -> None:
        """Wait, bounded, for what is in flight, and give everything back; where that fails it is leaked."""
        if self._context.poisoned:
            return
        with self._context("close"):
            event = self._event()
            self._native.record_event(event, self._stream)
            self._context.wait(event, "close")
            for recording in self._recordings:
                self._recorder.release(recording)
            for kernel in self._loaded.values():
                self._loader.unload(kernel)
            self._memory.free_all()
            self._transfers.release()
            in_flight = [event for flight in self._flights for event in (flight.start, flight.end)]
            for old in (event, *self._events, *in_flight):
                self._native.destroy_event(old)
            self._context.close()
