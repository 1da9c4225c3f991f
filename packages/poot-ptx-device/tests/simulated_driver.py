"""A CUDA driver in numpy, below the package's own code: memory, one stream's order, graphs, events, sticky errors.

It takes the place of `cuda.bindings.driver`, whose enumerations it borrows. Kernels run in poot-eval's interpreter:
which kernel a PTX text stands for is told to it when the kernel is compiled. While `held` nothing submitted runs, as on
a device that hangs; `fail` lets a call report a result; after one that loses the context every call reports it, as the
real driver does.
"""
# ruff: noqa: N802 - functions are named as the driver names them

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cuda.bindings import driver as real

from poot_eval.kernel_ir import run_kernel
from poot_executor.kernel.ir import Kernel

OK = (real.CUresult.CUDA_SUCCESS,)
NOT_READY = real.CUresult.CUDA_ERROR_NOT_READY
OUT_OF_MEMORY = real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
INVALID_VALUE = real.CUresult.CUDA_ERROR_INVALID_VALUE
LAUNCH_FAILED = real.CUresult.CUDA_ERROR_LAUNCH_FAILED
ILLEGAL_ADDRESS = real.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS

HARMLESS = {NOT_READY, OUT_OF_MEMORY, INVALID_VALUE, real.CUresult.CUDA_ERROR_INVALID_PTX}
LIMIT = 1 << 28
SHARED_MOST = 227 << 10
"""Bytes of shared memory that a group may have."""
PAGE = 1 << 33
"""Device addresses are apart by this much, so that none is another's neighbour."""


@dataclass(eq=False)
class Event:
    """`due` counts the submissions before it; it has happened once so many are done."""

    due: int = 0


@dataclass(eq=False)
class Graph:
    nodes: list[Callable[[], None]] = field(default_factory=list)


class SimulatedDriver:
    """The functions of the driver that the package calls. One device, one stream at a time."""

    CUdevice_attribute = real.CUdevice_attribute
    CUstreamCaptureMode = real.CUstreamCaptureMode
    CUjit_option = real.CUjit_option
    CUjitInputType = real.CUjitInputType
    CUlaunchAttribute = real.CUlaunchAttribute
    CUlaunchAttributeID = real.CUlaunchAttributeID
    CUlaunchConfig = real.CUlaunchConfig
    CUfunction_attribute = real.CUfunction_attribute

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.capability = capability
        self.kernels: dict[bytes, Kernel] = {}
        self.allowed: dict[Kernel, int] = {}
        self.calls: list[str] = []
        self.held = False
        self.failing: dict[str, list[Any]] = {}
        self.lost: Any = None
        self.device: dict[int, np.ndarray] = {}
        self.pinned: dict[int, Any] = {}
        self.queue: list[Callable[[], None]] = []
        self.submitted = self.done = 0
        self.capture: Graph | None = None
        self.graphs = self.executables = self.modules = self.events = self.streams = self.contexts = 0
        self._next = PAGE

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or name.startswith(("cuGetError", "CU")):
            return found

        def called(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if self.lost is not None:
                return (self.lost, None)[: 1 if name == "cuEventQuery" else 2]
            pending = self.failing.get(name)
            if pending:
                code = pending.pop(0)
                if code is not None:
                    return self._refuse(code)
            return found(*arguments)

        return called

    def fail(self, name: str, code: Any, after: int = 0) -> None:
        """The call after `after` more ones reports a result."""
        self.failing[name] = [None] * after + [code]

    def _refuse(self, code: Any) -> tuple[Any, ...]:
        if code not in HARMLESS:
            self.lost = code
        return (code,)

    @property
    def leaks(self) -> dict[str, int]:
        """What was made and not given back."""
        return {
            name: count
            for name, count in (
                ("device memory", len(self.device)), ("pinned memory", len(self.pinned)), ("graphs", self.graphs),
                ("executables", self.executables), ("modules", self.modules), ("events", self.events),
                ("streams", self.streams), ("contexts", self.contexts),
            )
            if count
        }  # fmt: skip

    # The stream

    def _submit(self, action: Callable[[], None]) -> tuple[Any, ...]:
        if self.capture is not None:
            self.capture.nodes.append(action)
            return OK
        self.queue.append(action)
        self.submitted += 1
        return OK

    def _run(self) -> None:
        while self.queue and not self.held and self.lost is None:
            self.queue.pop(0)()
            self.done += 1

    def _drain(self) -> None:
        assert not self.held, "a call that waits without bound was made on a device that hangs"
        self._run()

    def _bytes(self, address: int, nbytes: int) -> np.ndarray:
        base = int(address) // PAGE * PAGE
        memory, start = self.device[base], int(address) - base
        assert start + nbytes <= memory.size, f"{nbytes} bytes at {start} of an allocation of {memory.size}"
        return memory[start : start + nbytes]

    @staticmethod
    def _host(address: int, nbytes: int) -> np.ndarray:
        return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)

    # Process and devices

    @staticmethod
    def cuGetErrorName(code: Any) -> tuple[Any, bytes]:
        return *OK, code.name.encode()

    @staticmethod
    def cuGetErrorString(code: Any) -> tuple[Any, bytes]:
        return *OK, f"simulated {code.name}".encode()

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return OK

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return *OK, 13000

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return *OK, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return *OK, ordinal

    def cuDeviceGetAttribute(self, attribute: Any, device: int) -> tuple[Any, ...]:
        return *OK, self.capability["MINOR" in attribute.name]

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return *OK, b"Simulated GPU\0junk"

    def cuDeviceTotalMem(self, device: int) -> tuple[Any, ...]:
        return *OK, LIMIT

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        self.contexts += 1
        return *OK, "context"

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        self.contexts -= 1
        return OK

    def cuCtxSetCurrent(self, context: Any) -> tuple[Any, ...]:
        return OK

    # Memory

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        if nbytes > LIMIT - sum(memory.size for memory in self.device.values()):
            return self._refuse(OUT_OF_MEMORY)
        address, self._next = self._next, self._next + PAGE
        self.device[address] = np.full(nbytes, 0xA5, np.uint8)
        return *OK, address

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        self._drain()
        del self.device[address]
        return OK

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        return *OK, LIMIT - sum(memory.size for memory in self.device.values()), LIMIT

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        memory = (ctypes.c_uint8 * nbytes)()
        address = ctypes.addressof(memory)
        self.pinned[address] = memory
        return *OK, address

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        self._drain()
        del self.pinned[address]
        return OK

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[Any, ...]:
        return *OK, address

    # Streams and events

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        self.streams += 1
        return *OK, 0x57

    def cuStreamDestroy(self, stream: Any) -> tuple[Any, ...]:
        self.streams -= 1
        return OK

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        self.events += 1
        return *OK, Event()

    def cuEventDestroy(self, event: Event) -> tuple[Any, ...]:
        self.events -= 1
        return OK

    def cuEventRecord(self, event: Event, stream: Any) -> tuple[Any, ...]:
        assert self.capture is None
        event.due = self.submitted
        return OK

    def cuEventQuery(self, event: Event) -> tuple[Any, ...]:
        self._run()
        if self.lost is not None:
            return (self.lost,)
        return OK if self.done >= event.due else (NOT_READY,)

    def cuEventElapsedTime(self, start: Event, end: Event) -> tuple[Any, ...]:
        assert self.done >= end.due
        return *OK, float(end.due - start.due)

    def cuMemsetD8Async(self, address: int, value: int, nbytes: int, stream: Any) -> tuple[Any, ...]:
        return self._submit(lambda: self._bytes(address, nbytes).fill(value))

    def cuMemcpyHtoDAsync(self, address: int, host: int, nbytes: int, stream: Any) -> tuple[Any, ...]:
        def copy() -> None:
            self._bytes(address, nbytes)[:] = self._host(host, nbytes)

        return self._submit(copy)

    def cuMemcpyDtoHAsync(self, host: int, address: int, nbytes: int, stream: Any) -> tuple[Any, ...]:
        def copy() -> None:
            self._host(host, nbytes)[:] = self._bytes(address, nbytes)

        return self._submit(copy)

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: Any) -> tuple[Any, ...]:
        def copy() -> None:
            self._bytes(target, nbytes)[:] = self._bytes(source, nbytes)

        return self._submit(copy)

    # Kernels

    def cuLinkCreate(self, count: int, options: list[Any], values: list[Any]) -> tuple[Any, ...]:
        return *OK, {"log": values[0]}

    def cuLinkAddData(
        self, state: dict[str, Any], kind: Any, data: bytes, size: int, name: bytes, *_: Any
    ) -> tuple[Any, ...]:
        text = data[:size].rstrip(b"\0")
        if text not in self.kernels:
            said = b"ptxas fatal: unknown kernel"
            state["log"][: len(said)] = said
            return self._refuse(real.CUresult.CUDA_ERROR_INVALID_PTX)
        state["code"] = ctypes.create_string_buffer(text, len(text))
        return OK

    def cuLinkComplete(self, state: dict[str, Any]) -> tuple[Any, ...]:
        return *OK, ctypes.addressof(state["code"]), len(state["code"])

    def cuLinkDestroy(self, state: dict[str, Any]) -> tuple[Any, ...]:
        return OK

    def cuModuleLoadData(self, code: bytes) -> tuple[Any, ...]:
        self.modules += 1
        return *OK, self.kernels[code]

    def cuModuleGetFunction(self, module: Kernel, name: bytes) -> tuple[Any, ...]:
        assert name == b"poot_kernel"
        return *OK, module

    def cuModuleUnload(self, module: Kernel) -> tuple[Any, ...]:
        self.modules -= 1
        return OK

    def cuFuncSetAttribute(self, kernel: Kernel, attribute: Any, value: int) -> tuple[Any, ...]:
        assert attribute == real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if value > SHARED_MOST:
            return self._refuse(INVALID_VALUE)
        self.allowed[kernel] = value
        return OK

    def _check_shared(self, kernel: Kernel, given: int) -> None:
        """A kernel declares 48 KB at most; beyond that a launch gives it everything, as much as was allowed before."""
        needed = 4 * sum(array.count for array in kernel.shared)
        assert given == 0 if needed <= 48 << 10 else needed <= given <= self.allowed[kernel]

    def cuLaunchKernel(self, kernel: Kernel, *arguments: Any) -> tuple[Any, ...]:
        groups, (threads, y, z), shared, _, pointers, extra = arguments[:3], arguments[3:6], *arguments[6:]
        assert (threads, y, z, extra) == (kernel.group_size, 1, 1, 0)
        self._check_shared(kernel, shared)
        return self._launch(kernel, groups, pointers)

    def cuLaunchKernelEx(self, config: Any, kernel: Kernel, pointers: int, extra: int) -> tuple[Any, ...]:
        assert config.numAttrs == 1 and config.attrs[0].value.programmaticStreamSerializationAllowed == 1
        assert config.blockDimX == kernel.group_size
        self._check_shared(kernel, config.sharedMemBytes)
        return self._launch(kernel, (config.gridDimX, config.gridDimY, config.gridDimZ), pointers)

    def _launch(self, kernel: Kernel, groups: tuple[int, int, int], pointers: int) -> tuple[Any, ...]:
        count = 2 * len(kernel.params) + kernel.checks
        table = (ctypes.c_uint64 * count).from_address(pointers)
        # Parameters are read at the launch, as the driver does.
        values = [
            (ctypes.c_uint32 if place % 2 and place < 2 * len(kernel.params) else ctypes.c_uint64)
            .from_address(at)
            .value
            for place, at in enumerate(table)
        ]
        return self._submit(lambda: self._interpret(kernel, groups, values))

    def _interpret(self, kernel: Kernel, groups: tuple[int, int, int], values: list[int]) -> None:
        counts = values[1 : 2 * len(kernel.params) : 2]
        buffers = [
            self._bytes(address, 4 * count).view(param.dtype.numpy)
            for param, address, count in zip(kernel.params, values[::2], counts, strict=False)
        ]
        faults = run_kernel(kernel, buffers, groups, subgroup_width=32, counts=counts)
        for fault in faults:
            if hasattr(fault, "code"):
                self._host(values[-1], 4).view("<u4")[0] = kernel.identity << 8 | fault.code
                self.lost = LAUNCH_FAILED
                return

    # Graphs

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[Any, ...]:
        assert self.capture is None
        self.capture = Graph()
        return OK

    def cuStreamEndCapture(self, stream: Any) -> tuple[Any, ...]:
        graph, self.capture = self.capture, None
        self.graphs += 1
        return *OK, graph

    def cuGraphInstantiate(self, graph: Graph, flags: int) -> tuple[Any, ...]:
        self.executables += 1
        return *OK, list(graph.nodes)

    def cuGraphDestroy(self, graph: Graph) -> tuple[Any, ...]:
        self.graphs -= 1
        return OK

    def cuGraphUpload(self, executable: list[Any], stream: Any) -> tuple[Any, ...]:
        return OK

    def cuGraphLaunch(self, executable: list[Any], stream: Any) -> tuple[Any, ...]:
        def run() -> None:
            for node in executable:
                if self.lost is None:
                    node()

        return self._submit(run)

    def cuGraphExecDestroy(self, executable: list[Any]) -> tuple[Any, ...]:
        self.executables -= 1
        return OK
