"""Which matrix products a physical device has for a subgroup: VK_KHR_cooperative_matrix and what it needs beside."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import cffi

from poot_executor.dtype import DType
from poot_executor.kernel.fragments import FragmentShape
from poot_vulkan_device.api import Functions, Handle, check, ffi, number, typed

COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix"
MEMORY_MODEL = "VK_KHR_vulkan_memory_model"
NARROW = "VK_KHR_shader_float16_int8"
BFLOAT16 = "VK_KHR_shader_bfloat16"

BFLOAT16_FEATURES = 1000141000
"""VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR, newer than the package's declarations."""

_COMPONENTS = {0: DType.F16, 1: DType.F32, 3: DType.I8, 5: DType.I32, 1000141000: DType.BF16}
"""VkComponentTypeKHR of what fragments are made of."""

FACTOR_FEATURES = {DType.F16: "float16", DType.I8: "int8", DType.BF16: "bfloat16"}
"""What a device must have for factors of a type."""

_SUBGROUP = 3
"""VK_SCOPE_SUBGROUP_KHR."""

_own = cffi.FFI()
_own.cdef("typedef struct { int32_t sType; void *pNext; uint32_t type, dot, matrix; } Bfloat16Features;")


def bfloat16_features() -> Any:
    """A zeroed structure of the features of bf16 in shaders: `type`, `dot` and `matrix`."""
    made = _own.new("Bfloat16Features *")
    made.sType = BFLOAT16_FEATURES
    return made


def cooperative_features(has: Set[str]) -> list[tuple[Any, str, str]]:
    """(structure, field, feature) for each feature that products may need and a device may have by its extensions."""
    if COOPERATIVE_MATRIX not in has:
        return []
    matrix = typed("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", "PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR")
    chain: list[tuple[Any, str, str]] = [
        (matrix, "cooperativeMatrix", "cooperative"),
        (matrix, "cooperativeMatrixRobustBufferAccess", "cooperative_robust"),
    ]
    if MEMORY_MODEL in has:
        name = "PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES"
        chain.append((typed("VkPhysicalDeviceVulkanMemoryModelFeatures", name), "vulkanMemoryModel", "memory_model"))
    if NARROW in has:
        narrow = typed("VkPhysicalDeviceShaderFloat16Int8Features", "PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES")
        chain += [(narrow, "shaderFloat16", "float16"), (narrow, "shaderInt8", "int8")]
    if BFLOAT16 in has:
        brain = bfloat16_features()
        # Its matrices need the type itself: a device that has the one has the other.
        chain += [(brain, "type", "bfloat16_type"), (brain, "matrix", "bfloat16")]
    return chain


def fragment_shapes(
    functions: Functions, instance: Handle, physical: Handle, features: Set[str]
) -> tuple[FragmentShape, ...]:
    """The products that a subgroup makes, in the driver's order; none where what they need is missing."""
    if not features >= {"cooperative", "memory_model"} or not _computes(functions, physical):
        return ()
    found = functions.vkGetInstanceProcAddr(instance, b"vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    if found == ffi.NULL:
        return ()
    ask = ffi.cast("VkResult(*)(VkPhysicalDevice, uint32_t *, VkCooperativeMatrixPropertiesKHR *)", found)
    count = ffi.new("uint32_t *")
    check("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", ask(physical, count, ffi.NULL))
    array: Any = ffi.new("VkCooperativeMatrixPropertiesKHR[]", max(1, count[0]))
    for item in array:
        item.sType = number("VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR")
    check("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", ask(physical, count, array))
    shapes = (_shape(item, features) for item in array[0 : count[0]])
    return tuple(dict.fromkeys(shape for shape in shapes if shape is not None))


def _computes(functions: Functions, physical: Handle) -> bool:
    """Whether compute kernels may have products."""
    stages = typed(
        "VkPhysicalDeviceCooperativeMatrixPropertiesKHR", "PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR"
    )
    properties = typed("VkPhysicalDeviceProperties2", "PHYSICAL_DEVICE_PROPERTIES_2", pNext=stages)
    functions.vkGetPhysicalDeviceProperties2(physical, properties)
    return bool(stages.cooperativeMatrixSupportedStages & number("VK_SHADER_STAGE_COMPUTE_BIT"))


def _shape(item: Any, features: Set[str]) -> FragmentShape | None:
    """A product as data; None for one that kernels have no use for."""
    factor, sums = _COMPONENTS.get(item.AType), _COMPONENTS.get(item.CType)
    if factor not in FACTOR_FEATURES or FACTOR_FEATURES[factor] not in features:
        return None
    if sums is not (DType.I32 if factor is DType.I8 else DType.F32):
        return None
    if item.BType != item.AType or item.ResultType != item.CType or item.saturatingAccumulation:
        return None
    sizes = (int(item.MSize), int(item.NSize), int(item.KSize))
    if item.scope != _SUBGROUP or any(n < 4 or n & (n - 1) for n in sizes):
        return None
    return FragmentShape(*sizes, factor, sums)
