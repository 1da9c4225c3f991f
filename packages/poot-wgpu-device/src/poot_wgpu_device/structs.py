"""The library's C types. cffi parses a type that is given as text together with every name of the header, which takes
15 ms each time; here one function type names them all, and is parsed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from wgpu.backends import wgpu_native

ffi: Any = wgpu_native.ffi
lib: Any = wgpu_native.lib
"""cffi and the library's functions and constants, of which no type checker knows."""

_STRUCTS = (
    "WGPUAdapterInfo",
    "WGPUBindGroupDescriptor",
    "WGPUBindGroupLayoutDescriptor",
    "WGPUBufferDescriptor",
    "WGPUBufferMapCallbackInfo",
    "WGPUCommandBufferDescriptor",
    "WGPUCommandEncoderDescriptor",
    "WGPUComputePassDescriptor",
    "WGPUComputePipelineDescriptor",
    "WGPUDeviceDescriptor",
    "WGPUInstanceDescriptor",
    "WGPUInstanceExtras",
    "WGPULimits",
    "WGPUPassTimestampWrites",
    "WGPUPipelineLayoutDescriptor",
    "WGPUQuerySetDescriptor",
    "WGPURequestDeviceCallbackInfo",
    "WGPUShaderModuleDescriptor",
    "WGPUShaderSourceWGSL",
    "WGPUSubmissionIndex",
)
_ARRAYS = (
    "WGPUAdapter",
    "WGPUBindGroupEntry",
    "WGPUBindGroupLayout",
    "WGPUBindGroupLayoutEntry",
    "WGPUCommandBuffer",
    "WGPUFeatureName",
    "char",
)
_CALLBACKS = (
    "WGPUBufferMapCallback",
    "WGPUDeviceLostCallback",
    "WGPURequestDeviceCallback",
    "WGPUUncapturedErrorCallback",
)


def _types() -> Mapping[str, Any]:
    names = [f"{name} *" for name in _STRUCTS] + [f"{name}(*)[]" for name in _ARRAYS] + list(_CALLBACKS)
    types = ffi.typeof(f"void(*)({', '.join(names)})").args
    return MappingProxyType(dict(zip((*_STRUCTS, *(f"{name}[]" for name in _ARRAYS), *_CALLBACKS), types, strict=True)))


_TYPES = _types()


def struct(name: str, value: Any = None) -> Any:
    """A new zeroed struct or number of that type, as a pointer that owns it."""
    return ffi.new(_TYPES[name], value)


def array(name: str, items: int | bytes | Sequence[Any]) -> Any:
    """A new array of that type: of a length, or of items."""
    return ffi.new(_TYPES[f"{name}[]"].item, items)


def view(data: bytes) -> Any:
    """Bytes as `char[]`, without a copy."""
    return ffi.from_buffer(_TYPES["char[]"].item, data)


def callback(name: str, function: Callable[..., None]) -> Any:
    """A C function that calls a Python one. It must live as long as the library may call it."""
    return ffi.callback(_TYPES[name], function)
