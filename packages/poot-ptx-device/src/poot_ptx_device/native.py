"""The driver's functions that this package calls, each with its result checked. Nothing else touches the bindings.

`api` has the names of `cuda.bindings.driver`: functions that return a tuple of the result code and what they give.
Addresses are ints, everything else is the binding's own object. Sizes are in bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poot_ptx_device.results import NOT_READY, error_of

Handle = Any
"""An object of the bindings: a context, stream, event, graph, module or function."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device's facts. `capability` is its compute capability, `memory` its size in bytes."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    memory: int


class Native:
    """Calls into one process's driver. Every method raises CudaError, DeviceLost or OutOfDeviceMemory."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def _call(self, name: str, *arguments: Any) -> Any:
        """What a function gives besides its result: nothing, one value or several."""
        given = getattr(self._api, name)(*arguments)
        code = int(given[0])
        if code:
            raise self._error(name, code, given[0])
        return given[1] if len(given) == 2 else given[1:]

    def _error(self, call: str, number: int, code: Any) -> Exception:
        texts = [self._api.cuGetErrorName(code), self._api.cuGetErrorString(code)]
        name, message = (t[1].decode(errors="replace") if not int(t[0]) and t[1] else f"result {number}" for t in texts)
        return error_of(call, number, name, message)

    # The process and its devices

    def initialize(self) -> None:
        """Start the driver in this process."""
        self._call("cuInit", 0)

    def version(self) -> int:
        """1000 · major + 10 · minor of the newest CUDA that the driver knows."""
        return int(self._call("cuDriverGetVersion"))

    def gpus(self) -> list[Gpu]:
        """Every device, in the driver's order."""
        attributes = self._api.CUdevice_attribute
        found = []
        for ordinal in range(int(self._call("cuDeviceGetCount"))):
            device = self._call("cuDeviceGet", ordinal)
            major, minor = (
                int(self._call("cuDeviceGetAttribute", attribute, device))
                for attribute in (
                    attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                    attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                )
            )
            name = self._call("cuDeviceGetName", 256, device).split(b"\0")[0].decode(errors="replace")
            found.append(Gpu(ordinal, name, (major, minor), int(self._call("cuDeviceTotalMem", device))))
        return found

    def retain(self, ordinal: int) -> Handle:
        """The device's primary context, which `release` gives back."""
        return self._call("cuDevicePrimaryCtxRetain", self._call("cuDeviceGet", ordinal))

    def release(self, ordinal: int) -> None:
        """Give a context back that `retain` gave."""
        self._call("cuDevicePrimaryCtxRelease", self._call("cuDeviceGet", ordinal))

    def make_current(self, context: Handle) -> None:
        """Let this thread's calls mean that context."""
        self._call("cuCtxSetCurrent", context)

    # Memory

    def allocate(self, nbytes: int) -> int:
        """Device memory, aligned to 256 at least; what it holds is unknown."""
        return int(self._call("cuMemAlloc", nbytes))

    def free(self, address: int) -> None:
        """Give device memory back; waits until the device is idle."""
        self._call("cuMemFree", address)

    def memory_info(self) -> tuple[int, int]:
        """Free and whole device memory."""
        free, whole = self._call("cuMemGetInfo")
        return int(free), int(whole)

    def host_allocate(self, nbytes: int) -> int:
        """Page-locked host memory that the device can address."""
        mapped = 2  # CU_MEMHOSTALLOC_DEVICEMAP
        return int(self._call("cuMemHostAlloc", nbytes, mapped))

    def host_free(self, address: int) -> None:
        """Give page-locked memory back; waits until no copy uses it."""
        self._call("cuMemFreeHost", address)

    def device_address(self, host: int) -> int:
        """Where the device sees page-locked host memory."""
        return int(self._call("cuMemHostGetDevicePointer", host, 0))

    # Streams and events

    def create_stream(self) -> Handle:
        """One that does not wait for the legacy default stream."""
        return self._call("cuStreamCreate", 1)

    def destroy_stream(self, stream: Handle) -> None:
        """Give a stream back."""
        self._call("cuStreamDestroy", stream)

    def create_event(self) -> Handle:
        """One that keeps time."""
        return self._call("cuEventCreate", 0)

    def destroy_event(self, event: Handle) -> None:
        """Give an event back."""
        self._call("cuEventDestroy", event)

    def record_event(self, event: Handle, stream: Handle) -> None:
        """The event happens once all that was submitted before has ended."""
        self._call("cuEventRecord", event, stream)

    def event_done(self, event: Handle) -> bool:
        """Whether everything submitted before the event's record has ended."""
        (code,) = self._api.cuEventQuery(event)
        number = int(code)
        if number and number != NOT_READY:
            raise self._error("cuEventQuery", number, code)
        return not number

    def seconds_between(self, start: Handle, end: Handle) -> float:
        """Time on the device between two events that have happened."""
        return float(self._call("cuEventElapsedTime", start, end)) * 1e-3

    # What streams do; inside a capture it becomes a node

    def zero(self, address: int, nbytes: int, stream: Handle) -> None:
        """Fill device memory with zeros."""
        self._call("cuMemsetD8Async", address, 0, nbytes, stream)

    def upload(self, address: int, host: int, nbytes: int, stream: Handle) -> None:
        """Copy from page-locked memory to the device."""
        self._call("cuMemcpyHtoDAsync", address, host, nbytes, stream)

    def download(self, host: int, address: int, nbytes: int, stream: Handle) -> None:
        """Copy from the device to page-locked memory."""
        self._call("cuMemcpyDtoHAsync", host, address, nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Handle) -> None:
        """Copy on the device."""
        self._call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def launch(
        self,
        function: Handle,
        groups: tuple[int, int, int],
        threads: int,
        arguments: Sequence[Any],
        stream: Handle,
        *,
        dependent: bool,
        shared: int = 0,
    ) -> None:
        """Launch a kernel with ctypes values as its parameters, and bytes of shared memory beside its own.

        `dependent`: it may start before the kernel ahead of it has ended.
        """
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*(ctypes.addressof(a) for a in arguments))
        if not dependent:
            block = (threads, 1, 1)
            self._call("cuLaunchKernel", function, *groups, *block, shared, stream, ctypes.addressof(pointers), 0)
            return
        api = self._api
        attribute = api.CUlaunchAttribute()
        attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = groups
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared, stream
        config.attrs, config.numAttrs = [attribute], 1
        self._call("cuLaunchKernelEx", config, function, ctypes.addressof(pointers), 0)

    # Graphs

    def begin_capture(self, stream: Handle) -> None:
        """Until its end, what is submitted to the stream from this thread becomes a graph and does not run."""
        self._call("cuStreamBeginCapture", stream, self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)

    def end_capture(self, stream: Handle) -> Handle:
        """The captured graph."""
        return self._call("cuStreamEndCapture", stream)

    def instantiate(self, graph: Handle) -> Handle:
        """A graph made ready to launch."""
        return self._call("cuGraphInstantiate", graph, 0)

    def destroy_graph(self, graph: Handle) -> None:
        """Give a graph back; what was instantiated from it stays."""
        self._call("cuGraphDestroy", graph)

    def prepare(self, executable: Handle, stream: Handle) -> None:
        """Bring an instantiated graph to the device, so that its first launch does not."""
        self._call("cuGraphUpload", executable, stream)

    def replay(self, executable: Handle, stream: Handle) -> None:
        """Launch an instantiated graph."""
        self._call("cuGraphLaunch", executable, stream)

    def destroy_executable(self, executable: Handle) -> None:
        """Give an instantiated graph back; it may still be running."""
        self._call("cuGraphExecDestroy", executable)

    # Code

    def assemble(self, text: bytes, name: str) -> bytes:
        """Machine code for the current context's device. Raises CudaError with the assembler's messages."""
        api, size = self._api, 8192
        log = bytearray(size)
        options = [api.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, api.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        state = self._call("cuLinkCreate", len(options), options, [log, size])
        source = text + b"\0"
        try:
            for call, arguments in (
                (
                    "cuLinkAddData",
                    (state, api.CUjitInputType.CU_JIT_INPUT_PTX, source, len(source), name.encode(), 0, [], []),
                ),
                ("cuLinkComplete", (state,)),
            ):
                code, *given = getattr(api, call)(*arguments)
                if int(code):
                    raise self._refused(call, code, log)
            address, nbytes = given
            return ctypes.string_at(int(address), int(nbytes))
        finally:
            self._call("cuLinkDestroy", state)

    def _refused(self, call: str, code: Any, log: bytearray) -> Exception:
        error = self._error(call, int(code), code)
        said = bytes(log).split(b"\0")[0].decode(errors="replace").strip()
        if said:
            error.add_note(said)
        return error

    def load_module(self, code: bytes) -> Handle:
        """Bring machine code to the device."""
        return self._call("cuModuleLoadData", code)

    def function(self, module: Handle, name: str) -> Handle:
        """An entry point of a module."""
        return self._call("cuModuleGetFunction", module, name.encode())

    def allow_shared(self, function: Handle, nbytes: int) -> None:
        """Let launches of a function have so much shared memory beside its own."""
        attribute = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", function, attribute, nbytes)

    def unload_module(self, module: Handle) -> None:
        """Give a module back."""
        self._call("cuModuleUnload", module)
