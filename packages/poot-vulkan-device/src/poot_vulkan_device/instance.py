"""The Vulkan instance and its physical devices. Importing this module loads the Vulkan loader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from poot_vulkan_device.adapter import Adapter, Kind, Limits, MemoryType
from poot_vulkan_device.api import LOADER, Functions, Handle, check, ffi, number, struct, typed
from poot_vulkan_device.cooperative import (
    BFLOAT16,
    COOPERATIVE_MATRIX,
    MEMORY_MODEL,
    NARROW,
    cooperative_features,
    fragment_shapes,
)  # fmt: skip

_KINDS = {1: Kind.INTEGRATED, 2: Kind.DISCRETE, 3: Kind.VIRTUAL, 4: Kind.CPU}
_SUBGROUP_OPERATIONS = 1 | 4 | 8 | 16
"""Basic, arithmetic, ballot and shuffle operations of subgroups."""
_COMPUTE_STAGE = 0x20
_COMPUTE_QUEUE = 0x2
_DEVICE_LOCAL, _VISIBLE, _COHERENT, _CACHED = 1, 2, 4, 8

SIZE_CONTROL = "VK_EXT_subgroup_size_control"
INTEGER_DOT = "VK_KHR_shader_integer_dot_product"
FLOAT_CONTROLS = "VK_KHR_shader_float_controls"
ROBUSTNESS_2 = "VK_EXT_robustness2"
BUDGET = "VK_EXT_memory_budget"
DRIVER = "VK_KHR_driver_properties"

_CORE_SINCE = {
    SIZE_CONTROL: (1, 3), INTEGER_DOT: (1, 3), FLOAT_CONTROLS: (1, 2), DRIVER: (1, 2), MEMORY_MODEL: (1, 2),
    NARROW: (1, 2),
}  # fmt: skip
_KNOWN = (
    SIZE_CONTROL, INTEGER_DOT, FLOAT_CONTROLS, ROBUSTNESS_2, BUDGET, DRIVER, COOPERATIVE_MATRIX, MEMORY_MODEL, NARROW,
    BFLOAT16,
)  # fmt: skip


class Instance:
    """An instance and its physical devices in the loader's order. A device that is open needs it: close it after
    that.
    """

    def __init__(self, functions: Functions = LOADER) -> None:
        self.functions = functions
        version = ffi.new("uint32_t *")
        check("vkEnumerateInstanceVersion", functions.vkEnumerateInstanceVersion(version))
        name = ffi.new("char[]", b"poot")
        # A device of a later version is used as 1.3.
        wanted = min(version[0], 1 << 22 | 3 << 12)
        application = typed("VkApplicationInfo", "APPLICATION_INFO", pApplicationName=name, apiVersion=wanted)
        create = typed("VkInstanceCreateInfo", "INSTANCE_CREATE_INFO", pApplicationInfo=application)
        made = ffi.new("VkInstance *")
        check("vkCreateInstance", functions.vkCreateInstance(create, ffi.NULL, made))
        self._instance = made[0]
        try:
            self.handles = self._devices()
            self.adapters = tuple(self._describe(handle) for handle in self.handles)
        except BaseException:
            self.close()
            raise

    def _devices(self) -> tuple[Handle, ...]:
        count = ffi.new("uint32_t *")
        enumerate_devices = self.functions.vkEnumeratePhysicalDevices
        check("vkEnumeratePhysicalDevices", enumerate_devices(self._instance, count, ffi.NULL))
        array = ffi.new("VkPhysicalDevice[]", max(1, count[0]))
        check("vkEnumeratePhysicalDevices", enumerate_devices(self._instance, count, array))
        return tuple(array[0 : count[0]])

    def close(self) -> None:
        """Give the instance back."""
        self.functions.vkDestroyInstance(self._instance, ffi.NULL)

    def extensions(self, handle: Handle) -> frozenset[str]:
        """The extensions of a physical device."""
        count = ffi.new("uint32_t *")
        listing = self.functions.vkEnumerateDeviceExtensionProperties
        check("vkEnumerateDeviceExtensionProperties", listing(handle, ffi.NULL, count, ffi.NULL))
        array = ffi.new("VkExtensionProperties[]", max(1, count[0]))
        check("vkEnumerateDeviceExtensionProperties", listing(handle, ffi.NULL, count, array))
        return frozenset(ffi.string(item.extensionName).decode() for item in array[0 : count[0]])

    def _describe(self, handle: Handle) -> Adapter:
        first: Any = ffi.new("VkPhysicalDeviceProperties *")
        self.functions.vkGetPhysicalDeviceProperties(handle, first)
        version = (first.apiVersion >> 22 & 0x7F, first.apiVersion >> 12 & 0x3FF)
        extensions = self.extensions(handle)
        has = frozenset(
            name for name in _KNOWN if name in extensions or version >= _CORE_SINCE.get(name, (9, 0))
        )  # fmt: skip
        subgroup, control, floats, driver, sizes = self._properties(handle, version, has)
        features = self._features(handle, version, has)
        if floats is not None:
            for feature, field in (
                ("inf_nan_preserve", floats.shaderSignedZeroInfNanPreserveFloat32),
                ("denorm_preserve", floats.shaderDenormPreserveFloat32),
                ("rounding_rte", floats.shaderRoundingModeRTEFloat32),
            ):
                features |= {feature} if field else set()
        ops, stages = subgroup.supportedOperations, subgroup.supportedStages
        if stages & _COMPUTE_STAGE and ops & _SUBGROUP_OPERATIONS == _SUBGROUP_OPERATIONS:
            features |= {"subgroup"}
        width = int(subgroup.subgroupSize)
        fixed = control is not None and control.requiredSubgroupSizeStages & _COMPUTE_STAGE
        if not fixed:
            features -= {"size_control"}
        if BUDGET in extensions:
            features |= {"budget"}
        memory, heaps = self._memory(handle)
        kind = _KINDS.get(first.deviceType, Kind.OTHER)
        if kind is Kind.CPU:
            heaps = machine_heaps(heaps)
        queue, stamp_bits = self._queue(handle)
        limit = first.limits
        return Adapter(
            name=ffi.string(first.deviceName).decode(),
            driver="" if driver is None else f"{_text(driver.driverName)} {_text(driver.driverInfo)}".strip(),
            kind=kind,
            version=version,
            features=frozenset(features),
            subgroup=(width, int(control.minSubgroupSize), int(control.maxSubgroupSize)) if fixed else (width,) * 3,
            limits=Limits(
                bindings=min(limit.maxPerStageDescriptorStorageBuffers, limit.maxDescriptorSetStorageBuffers),
                binding_bytes=limit.maxStorageBufferRange,
                allocation_bytes=int(sizes.maxMemoryAllocationSize),
                offset_alignment=int(limit.minStorageBufferOffsetAlignment),
                shared_bytes=limit.maxComputeSharedMemorySize,
                group_size=min(limit.maxComputeWorkGroupInvocations, limit.maxComputeWorkGroupSize[0]),
                groups=(
                    limit.maxComputeWorkGroupCount[0],
                    limit.maxComputeWorkGroupCount[1],
                    limit.maxComputeWorkGroupCount[2],
                ),
            ),
            memory=memory,
            heaps=heaps,
            queue=queue,
            stamp_bits=stamp_bits,
            stamp_period=limit.timestampPeriod,
            fragments=fragment_shapes(self.functions, self._instance, handle, features),
            identity=f"{first.vendorID:04x}-{first.deviceID:04x}-{bytes(first.pipelineCacheUUID).hex()}",
        )

    def _properties(self, handle: Handle, version: tuple[int, int], has: frozenset[str]) -> tuple[Any, ...]:
        """Structures of properties: subgroups, their size control, float controls, the driver, allocation sizes. None
        for those that the device does not have.
        """
        subgroup = typed("VkPhysicalDeviceSubgroupProperties", "PHYSICAL_DEVICE_SUBGROUP_PROPERTIES")
        sizes = typed("VkPhysicalDeviceMaintenance3Properties", "PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES")
        control = floats = driver = None
        if version < (1, 1):
            sizes.maxMemoryAllocationSize = 1 << 30
            return subgroup, control, floats, driver, sizes
        chain = [subgroup, sizes]
        if SIZE_CONTROL in has:
            control = typed(
                "VkPhysicalDeviceSubgroupSizeControlProperties", "PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES"
            )
            chain.append(control)
        if FLOAT_CONTROLS in has:
            floats = typed("VkPhysicalDeviceFloatControlsProperties", "PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES")
            chain.append(floats)
        if DRIVER in has:
            driver = typed("VkPhysicalDeviceDriverProperties", "PHYSICAL_DEVICE_DRIVER_PROPERTIES")
            chain.append(driver)
        link(chain)
        properties = typed("VkPhysicalDeviceProperties2", "PHYSICAL_DEVICE_PROPERTIES_2", pNext=subgroup)
        self.functions.vkGetPhysicalDeviceProperties2(handle, properties)
        return subgroup, control, floats, driver, sizes

    def _features(self, handle: Handle, version: tuple[int, int], has: frozenset[str]) -> set[str]:
        """robust, robust2, size_control and dot4, as far as the device has them."""
        if version < (1, 1):
            plain: Any = ffi.new("VkPhysicalDeviceFeatures *")
            self.functions.vkGetPhysicalDeviceFeatures(handle, plain)
            return {"robust"} if plain.robustBufferAccess else set()
        chain = feature_chain(has)
        first = link([structure for structure, _, _ in chain])
        wanted: Any = typed("VkPhysicalDeviceFeatures2", "PHYSICAL_DEVICE_FEATURES_2", pNext=first)
        self.functions.vkGetPhysicalDeviceFeatures2(handle, wanted)
        found = {feature for structure, field, feature in chain if getattr(structure, field)}
        return found | ({"robust"} if wanted.features.robustBufferAccess else set())

    def _memory(self, handle: Handle) -> tuple[tuple[MemoryType, ...], tuple[int, ...]]:
        properties: Any = ffi.new("VkPhysicalDeviceMemoryProperties *")
        self.functions.vkGetPhysicalDeviceMemoryProperties(handle, properties)
        types = []
        for item in properties.memoryTypes[0 : properties.memoryTypeCount]:
            flags = item.propertyFlags
            mapped = flags & (_VISIBLE | _COHERENT) == _VISIBLE | _COHERENT
            types.append(MemoryType(item.heapIndex, bool(flags & _DEVICE_LOCAL), mapped, bool(flags & _CACHED)))
        return tuple(types), tuple(int(h.size) for h in properties.memoryHeaps[0 : properties.memoryHeapCount])

    def _queue(self, handle: Handle) -> tuple[int, int]:
        """The first queue family that computes, and the valid bits of its time stamps; −1 where there is none."""
        count = ffi.new("uint32_t *")
        self.functions.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, ffi.NULL)
        array = ffi.new("VkQueueFamilyProperties[]", max(1, count[0]))
        self.functions.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, array)
        for place, family in enumerate(array[0 : count[0]]):
            if family.queueFlags & _COMPUTE_QUEUE and family.queueCount:
                return place, int(family.timestampValidBits)
        return -1, 0

    def budget(self, handle: Handle) -> tuple[list[int], list[int]]:
        """(budget, usage) of each heap in bytes: what this process may use, and uses."""
        name = "VkPhysicalDeviceMemoryBudgetPropertiesEXT"
        budget: Any = typed(name, "PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT")
        properties: Any = struct(
            "VkPhysicalDeviceMemoryProperties2",
            sType=number("VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2"),
            pNext=budget,
        )
        self.functions.vkGetPhysicalDeviceMemoryProperties2(handle, properties)
        count = properties.memoryProperties.memoryHeapCount
        return [int(n) for n in budget.heapBudget[0:count]], [int(n) for n in budget.heapUsage[0:count]]


def machine_heaps(heaps: tuple[int, ...]) -> tuple[int, ...]:
    """Heaps of a CPU in bytes. Its memory is the machine's: Mesa's llvmpipe before 23 says 2 GiB whatever that has."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return heaps
    return tuple(max(size, machine) for size in heaps)


def feature_chain(has: frozenset[str]) -> list[tuple[Any, str, str]]:
    """(structure, field, feature) for each optional feature that a device may have by its extensions."""
    chain: list[tuple[Any, str, str]] = []
    if ROBUSTNESS_2 in has:
        structure = typed("VkPhysicalDeviceRobustness2FeaturesEXT", "PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT")
        chain.append((structure, "robustBufferAccess2", "robust2"))
    if SIZE_CONTROL in has:
        name = "PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES"
        chain.append(
            (typed("VkPhysicalDeviceSubgroupSizeControlFeatures", name), "subgroupSizeControl", "size_control")
        )
    if INTEGER_DOT in has:
        name = "PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES"
        chain.append(
            (typed("VkPhysicalDeviceShaderIntegerDotProductFeatures", name), "shaderIntegerDotProduct", "dot4")
        )
    return [*chain, *cooperative_features(has)]


def link(chain: Sequence[Any]) -> Any:
    """Let each structure point to the next one; gives the first. One that stands there several times is linked
    once.
    """
    distinct = list({id(structure): structure for structure in chain}.values())
    for structure, following in pairwise(distinct):
        structure.pNext = ffi.cast("void *", following)
    return ffi.cast("void *", distinct[0]) if distinct else ffi.NULL


def core(extension: str, version: tuple[int, int]) -> bool:
    """Whether an extension is part of that Vulkan version."""
    return version >= _CORE_SINCE.get(extension, (9, 0))


def _text(array: Any) -> str:
    return str(ffi.string(array).decode())
