"""`RocmDevice`: kernels as code objects on an AMD GPU, each step's packets copied into one queue of the HSA runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from numpy.typing import NDArray

from poot_executor.cache import CompileCache
from poot_executor.compile.target import Target
from poot_executor.device import Buffer, BufferKind, BufferSlice, Commands, Compiled, MemoryInfo, Recording
from poot_executor.device_memory import host_bytes, host_target
from poot_executor.errors import DeviceLost, DeviceTimeout, KernelFault, OutOfMemory, Poisoned
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_device import KernelDevice
from poot_rocm_device.agents import Gpu, Pools, free_bytes
from poot_rocm_device.copying import copy_kernel
from poot_rocm_device.errors import OutOfDeviceMemory
from poot_rocm_device.executables import RocmKernel, load
from poot_rocm_device.flights import Flights
from poot_rocm_device.memory import Memory, allocation_of
from poot_rocm_device.queue import RING_PACKETS, PacketQueue
from poot_rocm_device.recording import Recorder, RocmRecording
from poot_rocm_device.runtime import Runtime
from poot_rocm_device.transfers import Transfers

P = ParamSpec("P")
R = TypeVar("R")


class Compiler(Protocol):
    """What turns a kernel into a code object. Pure; without hardware."""

    @property
    def identity(self) -> str:
        """What its code objects depend on besides kernel and target."""
        ...

    def __call__(self, kernel: Kernel, target: Target) -> Compiled:
        """The code object and its entry."""
        ...


def _guarded(method: Callable[Concatenate[RocmDevice, P], R]) -> Callable[Concatenate[RocmDevice, P], R]:
    """Refuse the call on a poisoned device; poison the device where the call finds it lost or hung, and raise the fault
    of a kernel's check where that is why."""

    @wraps(method)
    def guarded(self: RocmDevice, *args: P.args, **kwargs: P.kwargs) -> R:
        self.require(method.__name__)
        try:
            return method(self, *args, **kwargs)
        except (DeviceLost, DeviceTimeout) as error:
            fault = self.poison(str(error))
            if fault is not None:
                raise fault from error
            raise
        except OutOfDeviceMemory as error:
            raise OutOfMemory(0, None, None, f"what {method.__name__} needs") from error

    return guarded


class RocmDevice(KernelDevice):
    """One GPU and one queue of it. `synchronize` waits for the oldest replay that was not waited for.

    A check that fails traps: the queue is lost with all that it held, and every later call raises Poisoned. `timeout`
    bounds each wait in seconds, `packets` is the size of the ring, a power of two.
    """

    def __init__(
        self,
        runtime: Runtime,
        gpu: Gpu,
        pools: Pools,
        target: Target,
        compiler: Compiler,
        cache: CompileCache,
        *,
        timeout: float,
        packets: int = RING_PACKETS,
    ) -> None:
        super().__init__(cache)
        self._runtime = runtime
        self._hsa = runtime.hsa
        self._gpu = gpu
        self._target = target
        self._compiler = compiler
        self._poisoned = ""
        self._queue = PacketQueue(self._hsa, gpu, timeout=timeout, packets=packets)
        self._memory = Memory(self._hsa, gpu, pools)
        self._transfers = Transfers(self._hsa, gpu, pools, self._queue)
        self._recorder = Recorder(self._hsa, gpu, pools, self._memory, lambda tail: self.loaded(copy_kernel(tail)))
        self._recordings: set[RocmRecording] = set()
        self._flights = Flights(self._queue)
        runtime.watch(gpu.agent, self._queue.latch)
        runtime.hold(self)

    @property
    def target(self) -> Target:
        """Kind "rocm"."""
        return self._target

    @property
    def gpu(self) -> Gpu:
        """The agent's facts."""
        return self._gpu

    @property
    def compiler(self) -> str:
        """What compiles its kernels, with version and options."""
        return self._compiler.identity

    @property
    def poisoned(self) -> str:
        """Why every call is refused; "" where none is."""
        return self._poisoned

    # Memory

    @_guarded
    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Zero-filled: on the host what it sees, by copies what it does not."""
        buffer = self._memory.allocate(kind, nbytes)
        allocation = allocation_of(buffer)
        if allocation.view is None:
            try:
                self._transfers.zero(allocation.address, allocation.nbytes)
            except OutOfMemory:
                self._memory.free(buffer)
                raise
        return buffer

    @_guarded
    def free(self, buffer: Buffer) -> None:
        """What is in flight over the buffer is waited for first; a second time does nothing."""
        if self._memory.holds(buffer):
            self._flights.wait_for_users(buffer, "free")
            self._memory.free(buffer)

    @_guarded
    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copied before it returns, and not before a replay in flight is done with the buffer."""
        flat = host_bytes(data)
        self._memory.check(BufferSlice(buffer, offset, flat.size))
        self._flights.wait_for_users(buffer, "write")
        allocation = allocation_of(buffer)
        if allocation.view is None:
            self._transfers.upload(allocation.address + offset, flat)
        else:
            allocation.view[offset : offset + flat.size] = flat

    @_guarded
    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """After every replay in flight that uses the buffer."""
        flat = host_target(out)
        self._memory.check(BufferSlice(buffer, offset, flat.size))
        self._flights.wait_for_users(buffer, "read")
        allocation = allocation_of(buffer)
        if allocation.view is None:
            self._transfers.download(flat, allocation.address + offset)
        else:
            flat[:] = allocation.view[offset : offset + flat.size]

    @_guarded
    def memory(self) -> MemoryInfo:
        """What this device allocated, and what the runtime says of the GPU, which others use as well."""
        return MemoryInfo(self._memory.used, free_bytes(self._hsa, self._gpu), self._gpu.memory or None)

    # Kernels

    def compile(self, kernel: Kernel) -> Compiled:
        """A code object."""
        return self._compiler(kernel, self._target)

    @_guarded
    def load(self, kernel: Kernel, compiled: Compiled) -> RocmKernel:
        """The code object as an executable of the agent. Raises HsaError where the runtime refuses it."""
        return load(self._hsa, self._gpu, kernel, compiled)

    @_guarded
    def record(self, commands: Commands, download: BufferSlice | None) -> Recording:
        """Packets with their arguments. Outputs lie where the host sees them, so a download needs no copy."""
        recording = self._recorder.record(commands, download)
        self._recordings.add(recording)
        return recording

    @_guarded
    def release(self, recording: Recording) -> None:
        """Forget a recording; what is in flight of it is waited for first."""
        assert isinstance(recording, RocmRecording)
        self._flights.take_all_of(recording, "release")
        self._recordings.discard(recording)
        self._recorder.release(recording)

    # Steps

    @_guarded
    def replay(self, recording: Recording) -> None:
        """Copy its packets into the ring, and ring the bell; wait, bounded, where the ring has no room."""
        assert isinstance(recording, RocmRecording)
        if recording.released:
            raise ValueError("a released recording was replayed")
        self._flights.submit(recording)

    @_guarded
    def synchronize(self) -> None:
        """Wait for the oldest replay that was not waited for. Its outputs are then where the host sees them."""
        self._flights.take()

    @_guarded
    def device_time(self) -> float | None:
        """From the first packet's begin to the last one's end, of the replay that was last taken."""
        return self._flights.seconds()

    # Failure and the end

    def require(self, call: str) -> None:
        """Raise Poisoned where the device must not be touched any more."""
        if self._poisoned:
            raise Poisoned(
                f"{call} was refused, the device was not touched: {self._poisoned}; open it again in a new process"
            )

    def poison(self, reason: str) -> KernelFault | None:
        """Refuse everything from now on; what pending work may use is leaked: the device may still write to it. The
        fault of a kernel's check that a recording in flight left behind."""
        self._poisoned = reason
        fault = self._flights.fault()
        self._memory.forget()
        self._flights.forget()
        self._recordings.clear()
        self._loaded.clear()
        return fault

    def close(self) -> None:
        """Wait, bounded, for what is in flight, and give everything back; where that fails it is leaked."""
        if self._poisoned:
            return
        try:
            self._flights.wait_for_all("close")
            self._queue.latch.check()
        except (DeviceLost, DeviceTimeout) as error:
            self.poison(f"it did not come to an end when it was closed: {error}")
            return
        self._flights.close()
        for recording in self._recordings:
            self._recorder.release(recording)
        self._transfers.release()
        self._memory.free_all()
        self._queue.close()
        # Code goes last: nothing can run it now.
        for kernel in self._loaded.values():
            self._hsa.unload(kernel.executable)
        self._runtime.let_go(self)
        self.poison("it was closed")
