"""The C interface of wgpu-native (webgpu.h), as far as a device needs it; `adapters` has the rest.

wgpu-py's classes are not used. They have no hook for a lost device, no bound on a wait, and cost three times as much
for each dispatch. Handles are opaque to callers. Errors do not raise where they happen: the library reports them to a
callback within the call, `check` raises the first. Nothing here blocks but `poll` and `submit`.

Three calls do not report but abort the process: submit, poll and the mapped range, each on a lost device and submit
also on invalid commands. Everything that can be known is checked before them; a driver that loses the device inside
one of them still takes the process along.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from wgpu.backends.wgpu_native._mappings import enum_str2int, enummap

from poot_executor.errors import DeviceLost, DeviceNotFound
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.structs import array, callback, ffi, lib, struct, view

Handle = Any

STORAGE = 0x0080 | 0x0008 | 0x0004
"""Usage of every device buffer: STORAGE, COPY_DST, COPY_SRC."""
READBACK = 0x0001 | 0x0008
"""Usage of a buffer that the host reads: MAP_READ, COPY_DST."""
QUERY = 0x0200 | 0x0004
"""Usage of a buffer that queries resolve to: QUERY_RESOLVE, COPY_SRC."""

_ERRORS = ("no", "no", "validation", "out of memory", "internal")
_NO_LABEL = (ffi.NULL, 0)


class Native:
    """A wgpu device with its queue. `lost` says why it was lost, None while it is there."""

    def __init__(self, adapter: Handle, features: Sequence[str]) -> None:
        self.lost: str | None = None
        self.mapped: SimpleQueue[bool] = SimpleQueue()
        """One entry for each finished `map`: whether it succeeded."""
        self._errors: deque[tuple[str, str]] = deque()
        self._callbacks = (
            callback("WGPUDeviceLostCallback", self._on_lost),
            callback("WGPUUncapturedErrorCallback", self._on_error),
            callback("WGPUBufferMapCallback", self._on_mapped),
        )
        self.device = self._request(adapter, features)
        self.queue = lib.wgpuDeviceGetQueue(self.device)
        self._array = array("WGPUCommandBuffer", 1)
        self._encoder_descriptor = struct("WGPUCommandEncoderDescriptor")
        self._pass_descriptor = struct("WGPUComputePassDescriptor")
        self._buffer_descriptor = struct("WGPUCommandBufferDescriptor")

    def _request(self, adapter: Handle, features: Sequence[str]) -> Handle:
        """Ask for a device with everything that the adapter's limits allow."""
        limits = struct("WGPULimits")
        lib.wgpuAdapterGetLimits(adapter, limits)
        names = array("WGPUFeatureName", [feature_number(name) for name in features])
        descriptor = struct("WGPUDeviceDescriptor")
        descriptor.requiredFeatureCount = len(features)
        descriptor.requiredFeatures = names
        descriptor.requiredLimits = limits
        descriptor.deviceLostCallbackInfo.mode = lib.WGPUCallbackMode_AllowSpontaneous
        descriptor.deviceLostCallbackInfo.callback = self._callbacks[0]
        descriptor.uncapturedErrorCallbackInfo.callback = self._callbacks[1]
        answer: list[tuple[int, Handle, str]] = []

        def answered(status: int, device: Handle, message: Any, _one: Any, _two: Any) -> None:
            answer.append((status, device, text_of(message)))

        info = struct("WGPURequestDeviceCallbackInfo")
        info.mode = lib.WGPUCallbackMode_AllowSpontaneous
        called = callback("WGPURequestDeviceCallback", answered)
        info.callback = called
        lib.wgpuAdapterRequestDevice(adapter, descriptor, info[0])
        # wgpu-native answers within the call.
        if not answer or answer[0][0] != lib.WGPURequestDeviceStatus_Success:
            raise DeviceNotFound(f"wgpu gave no device: {answer[0][2] if answer else 'it did not answer'}")
        return answer[0][1]

    def _on_lost(self, _device: Any, reason: int, message: Any, _one: Any, _two: Any) -> None:
        if self.lost is None:
            self.lost = text_of(message) or f"reason {reason}"

    def _on_error(self, _device: Any, kind: int, message: Any, _one: Any, _two: Any) -> None:
        self._errors.append((_ERRORS[kind] if kind < len(_ERRORS) else "unknown", text_of(message)))

    def _on_mapped(self, status: int, _message: Any, _one: Any, _two: Any) -> None:
        self.mapped.put(status == lib.WGPUMapAsyncStatus_Success)

    def check(self, call: str) -> None:
        """Raise what the library reported since the last check: DeviceLost, or WgpuError."""
        if self._errors:
            kind, message = self._errors[0]
            self._errors.clear()
            # The library calls both of these validation errors.
            if "device is lost" in message and self.lost is None:
                self.lost = "a call found it lost"
            if "Not enough memory" in message:
                kind = "out of memory"
            if self.lost is None:
                raise WgpuError(call, kind, message)
        if self.lost is not None:
            raise DeviceLost(f"wgpu lost the device, seen by {call}: {self.lost}; open it again in a new process")

    def probe(self, buffer: Handle, call: str) -> None:
        """`check` after a call that does nothing and fails on a lost device. Raises DeviceLost.

        Submitting to a lost device aborts the process inside the library (gfx-rs/wgpu-native issue 588), so this
        comes first.
        """
        lib.wgpuQueueWriteBuffer(self.queue, buffer, 0, ffi.NULL, 0)
        self.check(call)

    # Memory

    def create_buffer(self, nbytes: int, usage: int) -> Handle:
        """A zero-filled buffer. Report by `check`."""
        descriptor = struct("WGPUBufferDescriptor")
        descriptor.size = nbytes
        descriptor.usage = usage
        return lib.wgpuDeviceCreateBuffer(self.device, descriptor)

    def release_buffer(self, buffer: Handle) -> None:
        """Give its memory back once nothing uses it. Never `wgpuBufferDestroy`: a command buffer that names a
        destroyed buffer aborts the process when it is submitted."""
        lib.wgpuBufferRelease(buffer)

    def write(self, buffer: Handle, offset: int, data: memoryview) -> None:
        """Copy bytes in, before the next submission. Offset and size are multiples of 4."""
        lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, ffi.from_buffer(data), data.nbytes)

    def map(self, buffer: Handle, nbytes: int) -> None:
        """Begin to map a readback buffer; `mapped` tells the outcome once a poll has finished it."""
        info = struct("WGPUBufferMapCallbackInfo")
        info.mode = lib.WGPUCallbackMode_AllowSpontaneous
        info.callback = self._callbacks[2]
        lib.wgpuBufferMapAsync(buffer, lib.WGPUMapMode_Read, 0, nbytes, info[0])

    def take(self, buffer: Handle, nbytes: int) -> bytes:
        """The bytes of a mapped buffer, which is unmapped."""
        data = bytes(ffi.buffer(lib.wgpuBufferGetConstMappedRange(buffer, 0, nbytes), nbytes))
        lib.wgpuBufferUnmap(buffer)
        return data

    # Kernels

    def create_module(self, code: bytes, *, bounded_loops: bool) -> Handle:
        """A shader module of WGSL. Bounds checks are always on; loops get an iteration limit unless all are known to
        end."""
        source = struct("WGPUShaderSourceWGSL")
        source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        text = view(code)
        source.code = (text, len(code))
        descriptor = struct("WGPUShaderModuleDescriptor")
        descriptor.nextInChain = ffi.addressof(source, "chain")
        checks = lib.WGPUShaderRuntimeChecks_BoundsChecks
        if not bounded_loops:
            checks |= lib.WGPUShaderRuntimeChecks_ForceLoopBounding
        return lib.wgpuDeviceCreateShaderModuleTrusted(self.device, descriptor, checks)

    def create_group_layout(self, read_only: Sequence[bool]) -> Handle:
        """A bind group layout of storage buffers."""
        entries = array("WGPUBindGroupLayoutEntry", len(read_only))
        for place, only in enumerate(read_only):
            entries[place].binding = place
            entries[place].visibility = 0x4  # compute
            entries[place].buffer.type = (
                lib.WGPUBufferBindingType_ReadOnlyStorage if only else lib.WGPUBufferBindingType_Storage
            )
        descriptor = struct("WGPUBindGroupLayoutDescriptor")
        descriptor.entryCount = len(read_only)
        descriptor.entries = entries
        return lib.wgpuDeviceCreateBindGroupLayout(self.device, descriptor)

    def create_pipeline(self, module: Handle, layout: Handle, entry: str) -> Handle:
        """A compute pipeline over one bind group."""
        layouts = array("WGPUBindGroupLayout", [layout])
        whole = struct("WGPUPipelineLayoutDescriptor")
        whole.bindGroupLayoutCount = 1
        whole.bindGroupLayouts = layouts
        pipeline_layout = lib.wgpuDeviceCreatePipelineLayout(self.device, whole)
        name = array("char", entry.encode())
        descriptor = struct("WGPUComputePipelineDescriptor")
        descriptor.layout = pipeline_layout
        descriptor.compute.module = module
        descriptor.compute.entryPoint = (name, len(entry))
        pipeline = lib.wgpuDeviceCreateComputePipeline(self.device, descriptor)
        lib.wgpuPipelineLayoutRelease(pipeline_layout)
        return pipeline

    def create_group(self, layout: Handle, slices: Sequence[tuple[Handle, int, int]]) -> Handle:
        """A bind group of (buffer, offset, bytes)."""
        entries = array("WGPUBindGroupEntry", len(slices))
        for place, (buffer, offset, nbytes) in enumerate(slices):
            entry = entries[place]
            entry.binding = place
            entry.buffer = buffer
            entry.offset = offset
            entry.size = nbytes
        descriptor = struct("WGPUBindGroupDescriptor")
        descriptor.layout = layout
        descriptor.entryCount = len(slices)
        descriptor.entries = entries
        return lib.wgpuDeviceCreateBindGroup(self.device, descriptor)

    @staticmethod
    def release_module(module: Handle) -> None:
        """Forget a module; pipelines keep what they need."""
        lib.wgpuShaderModuleRelease(module)

    @staticmethod
    def release_group_layout(layout: Handle) -> None:
        """Forget a bind group layout."""
        lib.wgpuBindGroupLayoutRelease(layout)

    @staticmethod
    def release_pipeline(pipeline: Handle) -> None:
        """Forget a pipeline."""
        lib.wgpuComputePipelineRelease(pipeline)

    @staticmethod
    def release_group(group: Handle) -> None:
        """Forget a bind group."""
        lib.wgpuBindGroupRelease(group)

    @staticmethod
    def release_stamps(queries: Handle) -> None:
        """Forget a query set."""
        lib.wgpuQuerySetRelease(queries)

    # Work

    def begin(self) -> Handle:
        """A command encoder."""
        return lib.wgpuDeviceCreateCommandEncoder(self.device, self._encoder_descriptor)

    def dispatch(
        self, encoder: Handle, dispatches: Sequence[tuple[Handle, Handle, int, int, int]], stamps: Any
    ) -> None:
        """One compute pass of (pipeline, bind group, groups x, y, z). WebGPU orders the dispatches of a pass by what
        they touch.

        This loop is the host's cost of a step. `stamps` is what `stamp_writes` made, or None.

        """
        descriptor = self._pass_descriptor
        descriptor.timestampWrites = ffi.NULL if stamps is None else stamps
        compute_pass = lib.wgpuCommandEncoderBeginComputePass(encoder, descriptor)
        set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
        run, null, current = lib.wgpuComputePassEncoderDispatchWorkgroups, ffi.NULL, None
        for pipeline, group, x, y, z in dispatches:
            if pipeline is not current:
                set_pipeline(compute_pass, pipeline)
                current = pipeline
            set_group(compute_pass, 0, group, 0, null)
            run(compute_pass, x, y, z)
        lib.wgpuComputePassEncoderEnd(compute_pass)
        lib.wgpuComputePassEncoderRelease(compute_pass)

    def copy(self, encoder: Handle, source: tuple[Handle, int], target: tuple[Handle, int], nbytes: int) -> None:
        """Copy between (buffer, offset) of two buffers, in multiples of 4."""
        lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, *source, *target, nbytes)

    def clear(self, encoder: Handle, buffer: Handle, nbytes: int) -> None:
        """Zero the first bytes of a buffer."""
        lib.wgpuCommandEncoderClearBuffer(encoder, buffer, 0, nbytes)

    def finish(self, encoder: Handle) -> Handle:
        """The encoder's command buffer. Check it: an invalid one must not be submitted."""
        commands = lib.wgpuCommandEncoderFinish(encoder, self._buffer_descriptor)
        lib.wgpuCommandEncoderRelease(encoder)
        return commands

    def submit(self, commands: Handle | None) -> int:
        """Submit a finished command buffer, which is then spent, and every write before it. The submission's number,
        for `poll`.

        llvmpipe's driver waits in here for the submission before, so with one in flight this is unbounded too.

        """
        if commands is None:
            return int(lib.wgpuQueueSubmitForIndex(self.queue, 0, ffi.NULL))
        self._array[0] = commands
        index = int(lib.wgpuQueueSubmitForIndex(self.queue, 1, self._array))
        lib.wgpuCommandBufferRelease(commands)
        return index

    def poll(self, submission: int) -> int:
        """Wait until a submission is done and the callbacks of what it used have run. Unbounded: see `Worker`."""
        index = struct("WGPUSubmissionIndex", submission)
        return int(lib.wgpuDevicePoll(self.device, True, index))

    def drop(self, commands: Handle) -> None:
        """Forget a finished command buffer without submitting it."""
        lib.wgpuCommandBufferRelease(commands)

    # Time

    def create_stamps(self) -> Handle:
        """A query set of two time stamps."""
        descriptor = struct("WGPUQuerySetDescriptor")
        descriptor.type = lib.WGPUQueryType_Timestamp
        descriptor.count = 2
        return lib.wgpuDeviceCreateQuerySet(self.device, descriptor)

    def stamp_writes(self, queries: Handle, *, first: bool, last: bool) -> Any:
        """What makes a pass write the first stamp at its begin and the second at its end."""
        writes = struct("WGPUPassTimestampWrites")
        writes.querySet = queries
        writes.beginningOfPassWriteIndex = 0 if first else lib.WGPU_QUERY_SET_INDEX_UNDEFINED
        writes.endOfPassWriteIndex = 1 if last else lib.WGPU_QUERY_SET_INDEX_UNDEFINED
        return writes

    def resolve(self, encoder: Handle, queries: Handle, target: Handle) -> None:
        """Bring both time stamps into a buffer."""
        lib.wgpuCommandEncoderResolveQuerySet(encoder, queries, 0, 2, target, 0)

    def stamp_period(self) -> float:
        """Nanoseconds of one time stamp unit."""
        return float(lib.wgpuQueueGetTimestampPeriod(self.queue))

    # The end

    def destroy(self) -> None:
        """Lose the device on purpose: what is pending ends, every later call fails."""
        lib.wgpuDeviceDestroy(self.device)

    def release(self) -> None:
        """Give the device back. Nothing may be pending."""
        lib.wgpuQueueRelease(self.queue)
        lib.wgpuDeviceRelease(self.device)

    def leak(self) -> None:
        """Keep the callbacks for ever: a device that is never released may still call them."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._callbacks))


def feature_number(name: str) -> int:
    """The library's number of a feature."""
    number = enummap.get(f"FeatureName.{name}")
    return enum_str2int["NativeFeature"][name] if number is None else number


def text_of(view: Any) -> str:
    """A string of the library's."""
    if view.data == ffi.NULL or view.length == 0:
        return ""
    if view.length == lib.WGPU_STRLEN:
        return ffi.string(view.data).decode(errors="replace")
    return ffi.string(view.data, view.length).decode(errors="replace")
