"""`WgpuDevice`: kernels as WGSL on whatever wgpu drives, Vulkan, Metal or Direct3D 12."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.cache import CompileCache
from poot_executor.compile.target import Caps, Target
from poot_executor.device import Buffer, BufferKind, BufferSlice, Commands, Compiled, MemoryInfo, Recording
from poot_executor.device_memory import host_bytes, host_target
from poot_executor.errors import DeviceError, DeviceLost, DeviceTimeout, KernelFault, Poisoned
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_device import KernelDevice
from poot_executor.known_answers import LOOP_LIMIT
from poot_executor.loop_watch import CUT_SHORT, binds_fault
from poot_wgpu_device.emit import ENTRY, emit
from poot_wgpu_device.memory import Memory, words
from poot_wgpu_device.native import STORAGE, Native
from poot_wgpu_device.program import WgpuKernel, load_kernel, release_kernel
from poot_wgpu_device.queue import Recorder, WgpuRecording, parse
from poot_wgpu_device.wait import Worker

UNSENT_BYTES = 64 << 20
"""Written bytes that the library may hold in staging memory before they are submitted."""

READ_BYTES = 64 << 20
"""Bytes that one read maps at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A replay that was not waited for."""

    recording: WgpuRecording
    submission: int


class WgpuDevice(KernelDevice):
    """One wgpu device. `synchronize` waits for the oldest replay that was not waited for.

    `switched_off` says why an optional feature is not in the caps although it was tried.
    """

    def __init__(self, native: Native, caps: Caps, cache: CompileCache, *, timeout: float, timestamps: bool) -> None:
        super().__init__(cache)
        self.switched_off: Mapping[str, str] = {}
        self._native = native
        self._target = Target("wgpu", caps)
        self._timeout = timeout
        self._memory = Memory(native, caps.max_buffer_bytes or (1 << 31) - 256)
        self._fault = native.create_buffer(4, STORAGE)
        native.check("create_buffer")
        self._recorder = Recorder(native, self._memory, self._fault, timestamps=timestamps)
        self._recordings: set[WgpuRecording] = set()
        self._flights: deque[Flight] = deque()
        self._served: tuple[BufferSlice, bytes] | None = None
        self._seconds: float | None = None
        self._submitted = self._done = 0
        self._unsent = 0
        self._poisoned = ""
        self._worker = Worker()

    @property
    def target(self) -> Target:
        """Kind "wgpu"."""
        return self._target

    def settle(self, caps: Caps, switched_off: Mapping[str, str]) -> None:
        """The caps that remain after known answers. What was compiled for the former ones is dropped."""
        self._target = Target("wgpu", caps)
        self.switched_off = dict(switched_off)
        self._drop_kernels()

    # Memory

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """WebGPU zeroes every buffer before its first use."""
        with self._call("allocate"):
            return self._memory.allocate(kind, nbytes)

    def free(self, buffer: Buffer) -> None:
        """The memory goes once no submission uses it."""
        with self._call("free"):
            self._forget_served(buffer)
            self._memory.free(buffer)

    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copied before it returns. Bytes beside an odd piece keep their value, which costs a read."""
        with self._call("write"):
            flat = host_bytes(data)
            self._memory.check(BufferSlice(buffer, offset, flat.size))
            if flat.size:
                self._forget_served(buffer)
                self._write(buffer, flat, offset)

    def _write(self, buffer: Buffer, flat: NDArray[np.uint8], offset: int) -> None:
        start = offset // 4 * 4
        for piece in self._whole_words(buffer, flat, offset):
            self._native.write(buffer.handle, start, piece.data)
            start += piece.size
            self._unsent += piece.size
            if self._unsent >= UNSENT_BYTES:
                self._wait(self._submit(None, "write"), "write")

    def _whole_words(self, buffer: Buffer, flat: NDArray[np.uint8], offset: int) -> Iterator[NDArray[np.uint8]]:
        """The data in pieces of whole words: bytes beside an odd start or end keep what the buffer holds there."""
        end = offset + flat.size
        low, high = offset // 4 * 4, words(end)
        if (low, high) != (offset, end):
            whole = np.zeros(high - low, np.uint8)
            if low != offset:
                whole[:4] = np.frombuffer(self._fetch(buffer, low, 4), np.uint8)
            # Past the buffer's own end nothing is kept.
            if high != end and end < buffer.nbytes:
                whole[-4:] = np.frombuffer(self._fetch(buffer, high - 4, 4), np.uint8)
            whole[offset - low : end - low] = flat
            flat = whole
        for start in range(0, flat.size, UNSENT_BYTES):
            yield flat[start : start + UNSENT_BYTES]

    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """From what the last `synchronize` brought where that holds it, else by a copy and a bounded wait."""
        with self._call("read"):
            flat = host_target(out)
            self._memory.check(BufferSlice(buffer, offset, flat.size))
            if self._served is not None:
                block, data = self._served
                start = offset - block.offset
                if block.buffer is buffer and start >= 0 and start + flat.size <= block.nbytes:
                    flat[:] = np.frombuffer(data, np.uint8, flat.size, start)
                    return
            low, high = offset // 4 * 4, words(offset + flat.size)
            for start in range(low, high, READ_BYTES):
                stop = min(start + READ_BYTES, high)
                fetched = np.frombuffer(self._fetch(buffer, start, stop - start), np.uint8)
                first, last = max(start, offset), min(stop, offset + flat.size)
                flat[first - offset : last - offset] = fetched[first - start : last - start]

    def _fetch(self, buffer: Buffer, offset: int, nbytes: int) -> bytes:
        """Whole words of a buffer, after everything submitted and written."""
        native, readback = self._native, self._memory.readback(nbytes)
        try:
            encoder = native.begin()
            native.copy(encoder, (buffer.handle, offset), (readback.handle, 0), nbytes)
            return self._take(readback, nbytes, self._submit(native.finish(encoder), "read"), "read")
        finally:
            self._memory.free(readback)

    def memory(self) -> MemoryInfo:
        """What this device allocated; WebGPU does not say what is free."""
        with self._call("memory"):
            return MemoryInfo(self._memory.used, None, None)

    def _forget_served(self, buffer: Buffer) -> None:
        if self._served is not None and self._served[0].buffer is buffer:
            self._served = None

    # Kernels

    def compile(self, kernel: Kernel) -> Compiled:
        """WGSL text."""
        return Compiled(kernel.name, emit(kernel, self._target.caps).encode(), ENTRY)

    def load(self, kernel: Kernel, compiled: Compiled) -> WgpuKernel:
        """The kernel's pipeline. Raises WgpuError where the library refuses it."""
        with self._call("load"):
            return load_kernel(self._native, kernel, compiled, faults=binds_fault(kernel, self._target.caps))

    def _drop_kernels(self) -> None:
        for kernel in self._loaded.values():
            release_kernel(self._native, kernel)
        self._loaded.clear()

    # Steps

    def record(self, commands: Commands, download: BufferSlice | None) -> Recording:
        """Bind groups, a readback of the download, the fault word and the time stamps, and the first replay's command
        buffer."""
        with self._call("record"):
            recording = self._recorder.record(commands, download)
        self._recordings.add(recording)
        return recording

    def replay(self, recording: Recording) -> None:
        """Submit what was encoded ahead, then encode the next replay while the device is busy."""
        assert isinstance(recording, WgpuRecording)
        with self._call("replay"):
            if recording.released:
                raise ValueError("a released recording was replayed")
            commands = recording.ready if recording.ready is not None else self._recorder.encode(recording)
            recording.ready = None
            submission = self._submit(commands, "replay")
            if self._served is not None and self._served[0].buffer in recording.written:
                self._served = None
            self._flights.append(Flight(recording, submission))
            recording.in_flight += 1
            recording.replays += 1
            # The first replay may be the only one, as of a weight's reordering.
            if recording.replays > 1:
                recording.ready = self._recorder.encode(recording)

    def synchronize(self) -> None:
        """Wait for the oldest replay that was not waited for, and take what it brings."""
        with self._call("synchronize"):
            if self._flights:
                self._land(self._flights.popleft())

    def _land(self, flight: Flight) -> None:
        recording = flight.recording
        recording.in_flight -= 1
        # A readback that a later replay writes again belongs to that one.
        if recording.readback is None or recording.in_flight:
            self._wait(flight.submission, "replay")
            return
        data = self._take(recording.readback, recording.readback_bytes, flight.submission, "replay")
        word, stamps = parse(recording, data)
        self._seconds = None if stamps is None else (stamps[1] - stamps[0]) * self._native.stamp_period() * 1e-9
        block = recording.download
        if block is not None and not any(block.buffer in later.recording.written for later in self._flights):
            self._served = (block, data)
        if word:
            fault = KernelFault(recording.names.get(word >> 8, "unknown"), word & 0xFF)
            if fault.code == CUT_SHORT:
                fault.add_note(f"code {CUT_SHORT}: this device ends all loops of a thread after {LOOP_LIMIT:,} rounds")
            raise fault

    def device_time(self) -> float | None:
        """From the first pass's begin to the last one's end, of the replay that `synchronize` last waited for."""
        with self._call("device_time"):
            return self._seconds

    def release(self, recording: Recording) -> None:
        """Forget a recording; what of it is in flight is waited for first."""
        assert isinstance(recording, WgpuRecording)
        with self._call("release"):
            if recording.in_flight and not recording.released:
                self._wait(max(f.submission for f in self._flights if f.recording is recording), "release")
                self._flights = deque(f for f in self._flights if f.recording is not recording)
            self._recordings.discard(recording)
            self._recorder.release(recording)

    # Submissions and waits

    def _submit(self, commands: Any, what: str) -> int:
        """Submit commands (None: only what was written) and give the submission's number. With others in flight that
        may block."""
        try:
            self._native.probe(self._fault, what)
        except DeviceError as error:
            if commands is not None and not isinstance(error, DeviceLost):
                self._native.drop(commands)
            raise
        self._unsent = 0
        if self._submitted == self._done:
            self._submitted = self._native.submit(commands)
        else:
            self._submitted = self._bounded(lambda: self._native.submit(commands), what)
        return self._submitted

    def _wait(self, submission: int, what: str) -> None:
        """Raises DeviceTimeout, DeviceLost or what the library reported."""
        self._bounded(lambda: self._native.poll(submission), what)
        self._done = max(self._done, submission)
        self._native.check(what)

    def _bounded(self, work: Any, what: str) -> int:
        answer = self._worker.call(work, self._timeout)
        if answer is None:
            self._poison(f"{what} did not finish within {self._timeout:g} s")
            raise DeviceTimeout(what, self._timeout)
        return answer

    def _take(self, readback: Buffer, nbytes: int, submission: int, what: str) -> bytes:
        """The bytes that a submission copied into a readback buffer."""
        while not self._native.mapped.empty():
            self._native.mapped.get()  # of a map that was refused
        self._native.map(readback.handle, nbytes)
        self._native.check(what)
        self._wait(submission, what)
        # The wait has run the map's callback.
        if self._native.mapped.empty() or not self._native.mapped.get():
            raise DeviceLost(f"wgpu could not map the result of {what}; open the device again in a new process")
        return self._native.take(readback.handle, nbytes)

    # Failure and the end

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        """A call of the contract: refused where the device is poisoned, and poisoning it where it finds the device
        lost."""
        if self._poisoned:
            raise Poisoned(
                f"{name} was refused, the device was not touched: {self._poisoned}; open it again in a new process"
            )
        try:
            yield
            self._native.check(name)
        except DeviceLost as error:
            self._poison(str(error))
            raise

    def _poison(self, reason: str) -> None:
        """Refuse everything from now on. What pending work may use is leaked: the device may still write to it."""
        self._poisoned = reason
        self._native.leak()
        self._memory.forget()
        self._flights.clear()
        self._recordings.clear()
        self._loaded.clear()

    def close(self) -> None:
        """Wait, bounded, for what is in flight, and give everything back; where that fails it is leaked."""
        if self._poisoned:
            return
        try:
            self._wait(self._submit(None, "close"), "close")
        except DeviceError as error:
            if not self._poisoned:
                self._poison(f"it could not be closed: {error}")
            return
        for recording in self._recordings:
            self._recorder.release(recording)
        self._drop_kernels()
        self._memory.free_all()
        self._native.release_buffer(self._fault)
        self._worker.stop()
        self._native.release()
        self._flights.clear()
        self._recordings.clear()
        self._poisoned = "it was closed"
