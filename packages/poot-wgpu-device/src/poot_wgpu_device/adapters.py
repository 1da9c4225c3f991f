"""Adapters of an instance of our own: without OpenGL, which shows the same hardware a second time with fewer
features, and without the process-wide instance of wgpu-py, whose settings belong to others. Importing this module
loads the native library."""

from __future__ import annotations

import os
from typing import Any, Self

from poot_wgpu_device.caps import WANTED, Adapter
from poot_wgpu_device.native import Handle, feature_number, text_of
from poot_wgpu_device.structs import array, ffi, lib, struct

_BACKENDS = {
    "WGPUBackendType_Vulkan": "Vulkan",
    "WGPUBackendType_Metal": "Metal",
    "WGPUBackendType_D3D12": "Direct3D 12",
}

_NO_OPENGL = 1 << 0 | 1 << 2 | 1 << 3
"""Vulkan, Metal, DX12 of WGPUInstanceBackend, whose constants the header writes in a way that cffi does not read."""

_LIMITS = {
    "bindings": "maxStorageBuffersPerShaderStage",
    "binding_bytes": "maxStorageBufferBindingSize",
    "buffer_bytes": "maxBufferSize",
    "offset_alignment": "minStorageBufferOffsetAlignment",
    "shared_bytes": "maxComputeWorkgroupStorageSize",
    "group_size": "maxComputeInvocationsPerWorkgroup",
    "group_size_x": "maxComputeWorkgroupSizeX",
    "groups": "maxComputeWorkgroupsPerDimension",
}


class Instance:
    """The library's adapters, in its order. Close it when the device is open: a device keeps what it needs."""

    def __init__(self) -> None:
        extras = struct("WGPUInstanceExtras")
        extras.chain.sType = lib.WGPUSType_InstanceExtras
        extras.backends = _NO_OPENGL
        descriptor = struct("WGPUInstanceDescriptor")
        descriptor.nextInChain = ffi.addressof(extras, "chain")
        self._instance = lib.wgpuCreateInstance(descriptor)
        count = lib.wgpuInstanceEnumerateAdapters(self._instance, ffi.NULL, ffi.NULL)
        self.handles: tuple[Handle, ...] = ()
        if count:
            found = array("WGPUAdapter", count)
            lib.wgpuInstanceEnumerateAdapters(self._instance, ffi.NULL, found)
            self.handles = tuple(found)
        self.adapters = tuple(_describe(handle) for handle in self.handles)

    def close(self) -> None:
        """Give the adapters and the instance back."""
        for handle in self.handles:
            lib.wgpuAdapterRelease(handle)
        lib.wgpuInstanceRelease(self._instance)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _describe(handle: Handle) -> Adapter:
    info: Any = struct("WGPUAdapterInfo")
    lib.wgpuAdapterGetInfo(handle, info)
    limits: Any = struct("WGPULimits")
    lib.wgpuAdapterGetLimits(handle, limits)
    backends = {getattr(lib, constant): name for constant, name in _BACKENDS.items()}
    adapter = Adapter(
        name=text_of(info.device),
        driver=text_of(info.description),
        backend=backends.get(info.backendType, "unknown"),
        software=info.adapterType == lib.WGPUAdapterType_CPU,
        processors=os.cpu_count() or 1,
        subgroup_sizes=(int(info.subgroupMinSize), int(info.subgroupMaxSize)),
        features=frozenset(name for name in WANTED if lib.wgpuAdapterHasFeature(handle, feature_number(name))),
        limits={name: int(getattr(limits, field)) for name, field in _LIMITS.items()},
    )
    lib.wgpuAdapterInfoFreeMembers(info[0])
    return adapter
