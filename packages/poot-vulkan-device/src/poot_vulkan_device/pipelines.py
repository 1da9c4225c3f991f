"""Kernels on the device: a compute pipeline for each kernel content, layouts for each number of bindings, the driver's
cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poot_executor.device import Compiled
from poot_executor.kernel.ir import Kernel
from poot_vulkan_device.api import Handle, check, ffi, number, typed
from poot_vulkan_device.native import Native


@dataclass(frozen=True, slots=True)
class Layout:
    """Set 0 with so many storage buffers, and a pipeline's layout of that one set."""

    bindings: int
    set: Handle
    pipeline: Handle


@dataclass(frozen=True, slots=True, eq=False)
class VulkanKernel:
    """A kernel that can be dispatched. `faults`: it binds the fault word after its `params` parameters."""

    name: str
    identity: int
    faults: bool
    params: int
    layout: Layout
    pipeline: Handle


class Pipelines:
    """Makes pipelines. `width` is the subgroup width that they all get where the device would choose one; None leaves
    it.
    """

    def __init__(self, native: Native, cached: bytes) -> None:
        self._native = native
        self._layouts: dict[int, Layout] = {}
        self._stage = number("VK_SHADER_STAGE_COMPUTE_BIT")
        self.width: int | None = None
        self._cache = self._create_cache(cached)

    def _create_cache(self, cached: bytes) -> Handle:
        functions, data = self._native.functions, ffi.from_buffer(cached)
        create = typed(
            "VkPipelineCacheCreateInfo", "PIPELINE_CACHE_CREATE_INFO", initialDataSize=len(cached), pInitialData=data
        )
        made = ffi.new("VkPipelineCache *")
        check("vkCreatePipelineCache", functions.vkCreatePipelineCache(self._native.device, create, ffi.NULL, made))
        return made[0]

    def cache_data(self) -> bytes:
        """What the driver wants to find again the next time."""
        functions, size = self._native.functions, ffi.new("size_t *")
        fetch = functions.vkGetPipelineCacheData
        check("vkGetPipelineCacheData", fetch(self._native.device, self._cache, size, ffi.NULL))
        data = ffi.new("char[]", max(1, size[0]))
        check("vkGetPipelineCacheData", fetch(self._native.device, self._cache, size, data))
        return bytes(ffi.buffer(data, size[0]))

    def layout(self, bindings: int) -> Layout:
        """The layout with so many storage buffers."""
        if bindings not in self._layouts:
            self._layouts[bindings] = self._create_layout(bindings)
        return self._layouts[bindings]

    def _create_layout(self, bindings: int) -> Layout:
        functions, device = self._native.functions, self._native.device
        array: Any = ffi.new("VkDescriptorSetLayoutBinding[]", max(1, bindings))
        for place in range(bindings):
            array[place].binding = place
            array[place].descriptorType = number("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
            array[place].descriptorCount = 1
            array[place].stageFlags = self._stage
        create = typed(
            "VkDescriptorSetLayoutCreateInfo", "DESCRIPTOR_SET_LAYOUT_CREATE_INFO",
            bindingCount=bindings, pBindings=array,
        )  # fmt: skip
        sets = ffi.new("VkDescriptorSetLayout[1]")
        made = functions.vkCreateDescriptorSetLayout(device, create, ffi.NULL, sets)
        check("vkCreateDescriptorSetLayout", made)
        create = typed("VkPipelineLayoutCreateInfo", "PIPELINE_LAYOUT_CREATE_INFO", setLayoutCount=1, pSetLayouts=sets)
        pipeline = ffi.new("VkPipelineLayout *")
        result = functions.vkCreatePipelineLayout(device, create, ffi.NULL, pipeline)
        if result != 0:
            functions.vkDestroyDescriptorSetLayout(device, sets[0], ffi.NULL)
        check("vkCreatePipelineLayout", result)
        return Layout(bindings, sets[0], pipeline[0])

    def load(self, kernel: Kernel, compiled: Compiled, *, faults: bool) -> VulkanKernel:
        """A kernel's pipeline. Raises VulkanError where the driver refuses it."""
        functions, device = self._native.functions, self._native.device
        layout = self.layout(len(kernel.params) + faults)
        code = ffi.new("uint32_t[]", len(compiled.code) // 4)
        ffi.memmove(code, compiled.code, len(compiled.code))
        create = typed("VkShaderModuleCreateInfo", "SHADER_MODULE_CREATE_INFO", codeSize=len(compiled.code), pCode=code)
        module = ffi.new("VkShaderModule *")
        result = functions.vkCreateShaderModule(device, create, ffi.NULL, module)
        check(f"vkCreateShaderModule of kernel {kernel.name}", result)
        try:
            pipeline = self._create_pipeline(kernel.name, module[0], compiled.entry, layout)
        finally:
            functions.vkDestroyShaderModule(device, module[0], ffi.NULL)
        return VulkanKernel(kernel.name, kernel.identity, faults, len(kernel.params), layout, pipeline)

    def _create_pipeline(self, name: str, module: Handle, entry: str, layout: Layout) -> Handle:
        functions, device = self._native.functions, self._native.device
        create: Any = typed("VkComputePipelineCreateInfo", "COMPUTE_PIPELINE_CREATE_INFO", layout=layout.pipeline)
        text = ffi.new("char[]", entry.encode())
        create.stage.sType = number("VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO")
        create.stage.stage = self._stage
        create.stage.module = module
        create.stage.pName = text
        if self.width is not None:
            size = typed(
                "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo",
                "PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO",
                requiredSubgroupSize=self.width,
            )
            create.stage.pNext = size
        made = ffi.new("VkPipeline *")
        result = functions.vkCreateComputePipelines(device, self._cache, 1, create, ffi.NULL, made)
        check(f"vkCreateComputePipelines of kernel {name}", result)
        return made[0]

    def release(self, kernel: VulkanKernel) -> None:
        """Give a kernel's pipeline back."""
        self._native.functions.vkDestroyPipeline(self._native.device, kernel.pipeline, ffi.NULL)

    def close(self) -> None:
        """Give the layouts and the cache back."""
        functions, device = self._native.functions, self._native.device
        for layout in self._layouts.values():
            functions.vkDestroyPipelineLayout(device, layout.pipeline, ffi.NULL)
            functions.vkDestroyDescriptorSetLayout(device, layout.set, ffi.NULL)
        self._layouts.clear()
        functions.vkDestroyPipelineCache(device, self._cache, ffi.NULL)
