"""The C interface of Vulkan, as the package `vulkan` declares it. Importing this module loads the Vulkan loader.

Of that package only the declarations and the function table are used: its wrappers convert every argument in Python,
which costs more than the calls. A `Functions` is that table, or one that stands in its place.
"""

from __future__ import annotations

from typing import Any

import vulkan

from poot_executor.errors import DeviceLost
from poot_vulkan_device.errors import VulkanError

Handle = Any
"""An object of the library, opaque."""

Functions = Any
"""A function for each name of the C interface, as an attribute."""

ffi = vulkan.ffi
LOADER: Functions = vulkan.lib

OUT_OF_MEMORY = (-1, -2)
"""VK_ERROR_OUT_OF_HOST_MEMORY and VK_ERROR_OUT_OF_DEVICE_MEMORY."""

DEVICE_LOST = -4


def number(name: str) -> int:
    """A constant of the interface: `number("VK_BUFFER_USAGE_STORAGE_BUFFER_BIT")`."""
    return int(getattr(vulkan, name))


def struct(type: str, **fields: Any) -> Any:
    """A zeroed structure with these fields set. What its pointers point to, the caller keeps."""
    made = ffi.new(f"{type} *")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def typed(type: str, structure: str, **fields: Any) -> Any:
    """A structure with its `sType`, VK_STRUCTURE_TYPE_ and `structure`."""
    return struct(type, sType=number(f"VK_STRUCTURE_TYPE_{structure}"), **fields)


def result_name(result: int) -> str:
    """`VK_ERROR_DEVICE_LOST` for −4; the number where it has no name."""
    for name in dir(vulkan):
        if name.startswith(("VK_ERROR_", "VK_SUCCESS", "VK_TIMEOUT")) and getattr(vulkan, name) == result:
            return name
    return f"VkResult {result}"


def check(call: str, result: int) -> None:
    """Raise DeviceLost or VulkanError where a call failed."""
    if result == DEVICE_LOST:
        raise DeviceLost(f"Vulkan lost the device, seen by {call}; open it again in a new process")
    if result < 0:
        raise VulkanError(call, result_name(result))
