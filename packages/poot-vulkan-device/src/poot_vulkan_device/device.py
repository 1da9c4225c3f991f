"""`VulkanDevice`: kernels as SPIR-V on a Vulkan device, steps as command buffers that are submitted again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from numpy.typing import NDArray

from poot_executor.cache import CompileCache
from poot_executor.compile.target import Caps, Target
from poot_executor.device import Buffer, BufferKind, BufferSlice, Commands, Compiled, MemoryInfo, Recording
from poot_executor.device_memory import host_bytes, host_target
from poot_executor.errors import DeviceLost, DeviceTimeout, KernelFault, Poisoned
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_device import KernelDevice
from poot_executor.known_answers import LOOP_LIMIT
from poot_executor.loop_watch import CUT_SHORT, binds_fault
from poot_vulkan_device.adapter import Adapter
from poot_vulkan_device.api import Handle
from poot_vulkan_device.commands import Commands as Encoder
from poot_vulkan_device.emit import ENTRY, emit
from poot_vulkan_device.memory import Memory
from poot_vulkan_device.native import Native
from poot_vulkan_device.pipeline_cache import PipelineCache
from poot_vulkan_device.pipelines import Pipelines, VulkanKernel
from poot_vulkan_device.queue import Recorder, VulkanRecording
from poot_vulkan_device.submission import Queue
from poot_vulkan_device.transfers import Transfers

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Flight:
    """A replay that `synchronize` did not report yet. `done`: its fence was waited for."""

    recording: VulkanRecording
    fence: Handle
    done: bool = False


def _guarded(method: Callable[Concatenate[VulkanDevice, P], R]) -> Callable[Concatenate[VulkanDevice, P], R]:
    """Refuse the call on a poisoned device, and poison the device where the call finds it lost or hung."""

    @wraps(method)
    def guarded(self: VulkanDevice, *args: P.args, **kwargs: P.kwargs) -> R:
        self.require(method.__name__)
        try:
            return method(self, *args, **kwargs)
        except (DeviceLost, DeviceTimeout) as error:
            self.poison(str(error))
            raise

    return guarded


class VulkanDevice(KernelDevice):
    """One Vulkan device. `synchronize` waits for the oldest replay that was not waited for.

    `timeout` bounds each wait in seconds; `staged` keeps the host out of device memory even where it sees it; `budget`
    is the work of one submission, for a device under a watchdog. `switched_off` says why an optional feature is not in
    the caps although the driver names it.
    """

    def __init__(
        self,
        native: Native,
        caps: Caps,
        cache: CompileCache,
        pipeline_cache: PipelineCache,
        *,
        timeout: float,
        staged: bool = False,
        budget: int | None = None,
    ) -> None:
        super().__init__(cache)
        self.switched_off: Mapping[str, str] = {}
        self._native = native
        self._target = Target("vulkan", caps)
        self._pipeline_cache = pipeline_cache
        self._pipelines = Pipelines(native, pipeline_cache.read())
        self._queue = Queue(native, timeout)
        self._memory = Memory(native, staged=staged)
        self._encoder = Encoder(native)
        self._transfers = Transfers(self._encoder, self._memory, self._queue)
        self._recorder = Recorder(self._encoder, self._memory, budget=budget, adapter=native.adapter)
        self._recordings: set[VulkanRecording] = set()
        self._flights: deque[Flight] = deque()
        self._seconds: float | None = None
        self._poisoned = ""

    @property
    def target(self) -> Target:
        """Kind "vulkan"."""
        return self._target

    @property
    def adapter(self) -> Adapter:
        """The physical device's facts."""
        return self._native.adapter

    @property
    def submissions(self) -> int:
        """Command buffers that were submitted, transfers included."""
        return self._queue.submissions

    @property
    def blocks(self) -> int:
        """Allocations of the driver that are held."""
        return self._memory.blocks

    def settle(self, caps: Caps, switched_off: Mapping[str, str]) -> None:
        """The caps that remain after known answers. What was compiled for the former ones is dropped."""
        self._target = Target("vulkan", caps)
        self.switched_off = dict(switched_off)
        chosen = self._native.adapter.subgroup[1] != self._native.adapter.subgroup[2]
        self.require_width(caps.subgroup_width if chosen else None)

    def require_width(self, width: int | None) -> None:
        """Let the pipelines that follow ask for subgroups of so many threads; None asks for nothing."""
        self._drop_kernels()
        self._pipelines.width = width

    def set_timeout(self, seconds: float) -> None:
        """Bound each wait from now on."""
        self._queue.timeout = seconds

    def set_budget(self, work: int | None) -> None:
        """The work of one submission in the recordings that follow; None is unlimited."""
        self._recorder.budget = work

    # Memory

    @_guarded
    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Zero-filled, a piece of a larger allocation."""
        buffer = self._memory.allocate(kind, nbytes)
        view = buffer.handle.view
        if view is None:
            self._transfers.zero(buffer)
        else:
            view[:] = 0
        return buffer

    @_guarded
    def free(self, buffer: Buffer) -> None:
        """A second time does nothing."""
        self._memory.free(buffer)

    @_guarded
    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copied before it returns, and not before a replay in flight is done with the buffer."""
        flat = host_bytes(data)
        self._memory.check(BufferSlice(buffer, offset, flat.size))
        view = buffer.handle.view
        if view is None:
            self._transfers.write(buffer, offset, flat)
        else:
            self._await_users(buffer, "write")
            view[offset : offset + flat.size] = flat

    @_guarded
    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """After every replay in flight that uses the buffer."""
        flat = host_target(out)
        self._memory.check(BufferSlice(buffer, offset, flat.size))
        view = buffer.handle.view
        if view is None:
            self._transfers.read(buffer, offset, flat)
        else:
            self._await_users(buffer, "read")
            flat[:] = view[offset : offset + flat.size]

    def _await_users(self, buffer: Buffer, what: str) -> None:
        """Wait for the replays in flight that touch a buffer. What they report stays for `synchronize`."""
        for flight in self._flights:
            if buffer in flight.recording.buffers:
                self._await(flight, what)

    @_guarded
    def memory(self) -> MemoryInfo:
        """What this device allocated, the size of its memory, and what is left of it where the driver says so."""
        return self._memory.info()

    # Kernels

    def compile(self, kernel: Kernel) -> Compiled:
        """SPIR-V."""
        return Compiled(kernel.name, emit(kernel, self._target.caps), ENTRY)

    @_guarded
    def load(self, kernel: Kernel, compiled: Compiled) -> VulkanKernel:
        """The kernel's pipeline. Raises VulkanError where the driver refuses it."""
        return self._pipelines.load(kernel, compiled, faults=binds_fault(kernel, self._target.caps))

    @_guarded
    def record(self, commands: Commands, download: BufferSlice | None) -> Recording:
        """Command buffers and descriptor sets. Outputs lie where the host sees them, so a download needs no copy."""
        recording = self._recorder.record(commands, download)
        self._recordings.add(recording)
        return recording

    @_guarded
    def release(self, recording: Recording) -> None:
        """Forget a recording; what is in flight is waited for first."""
        assert isinstance(recording, VulkanRecording)
        if recording.released:
            return
        for flight in [f for f in self._flights if f.recording is recording]:
            self._await(flight, "release")
            self._flights.remove(flight)
        self._recordings.discard(recording)
        self._recorder.release(recording)

    def _drop_kernels(self) -> None:
        for kernel in self._loaded.values():
            self._pipelines.release(kernel)
        self._loaded.clear()

    # Steps

    @_guarded
    def replay(self, recording: Recording) -> None:
        """Submit its command buffers, waiting, bounded, for each but the last."""
        assert isinstance(recording, VulkanRecording)
        if recording.released:
            raise ValueError("a released recording was replayed")
        *earlier, last = recording.segments
        for segment in earlier:
            self._queue.wait(self._queue.submit(segment), "replay")
        self._flights.append(Flight(recording, self._queue.submit(last)))
        recording.in_flight += 1

    @_guarded
    def synchronize(self) -> None:
        """Wait for the oldest replay that was not waited for, and raise the fault that it staged."""
        if not self._flights:
            return
        flight = self._flights[0]
        self._await(flight, "replay")
        self._flights.popleft()
        recording = flight.recording
        recording.in_flight -= 1
        self._seconds = self._recorder.seconds(recording)
        if recording.word is None or not recording.word[0]:
            return
        word = int(recording.word[0])
        recording.word[0] = 0
        fault = KernelFault(recording.names.get(word >> 8, "unknown"), word & 0xFF)
        if fault.code == CUT_SHORT:
            fault.add_note(f"code {CUT_SHORT}: this device ends all loops of a thread after {LOOP_LIMIT:,} rounds")
        raise fault

    @_guarded
    def device_time(self) -> float | None:
        """From the first command's begin to the last one's end, of the replay that `synchronize` last waited for."""
        return self._seconds

    def _await(self, flight: Flight, what: str) -> None:
        if not flight.done:
            self._queue.wait(flight.fence, what)
            flight.done = True

    # Failure and the end

    def require(self, call: str) -> None:
        """Raise Poisoned where the device must not be touched any more."""
        if self._poisoned:
            raise Poisoned(
                f"{call} was refused, the device was not touched: {self._poisoned}; open it again in a new process"
            )

    def poison(self, reason: str) -> None:
        """Refuse everything from now on. What pending work may use is leaked: the device may still write to it."""
        self._poisoned = reason
        self._memory.forget()
        self._flights.clear()
        self._recordings.clear()
        self._loaded.clear()

    def close(self) -> None:
        """Wait, bounded, for what is in flight, and give everything back; where that fails it is leaked."""
        if self._poisoned:
            return
        try:
            for flight in self._flights:
                self._await(flight, "close")
        except (DeviceLost, DeviceTimeout) as error:
            self.poison(f"it did not come to an end when it was closed: {error}")
            return
        self._pipeline_cache.write(self._pipelines.cache_data())
        for recording in list(self._recordings):
            self._recorder.release(recording)
        self._drop_kernels()
        self._memory.free_all()
        self._queue.close()
        self._encoder.close()
        self._pipelines.close()
        self._native.close()
        self.poison("it was closed")
