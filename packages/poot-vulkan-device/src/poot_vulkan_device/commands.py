"""Command buffers, descriptor sets and time stamps: what a recording is made of."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from poot_vulkan_device.api import Handle, check, ffi, number, typed
from poot_vulkan_device.native import Native
from poot_vulkan_device.pipelines import Layout, VulkanKernel

Binding = tuple[Handle, int, int]
"""A buffer, and the offset and size of the bytes bound."""


class Stage(Enum):
    """What a command is, as barriers tell them apart."""

    COMPUTE = "compute"
    TRANSFER = "transfer"
    ANY = "any"


def _accesses(stage: Stage) -> int:
    """All that a stage does to memory. Drivers flush more caches for the general MEMORY_READ and MEMORY_WRITE."""
    kinds = {Stage.COMPUTE: ("SHADER",), Stage.TRANSFER: ("TRANSFER",), Stage.ANY: ("SHADER", "TRANSFER")}[stage]
    return sum(number(f"VK_ACCESS_{kind}_{way}_BIT") for kind in kinds for way in ("READ", "WRITE"))


class Commands:
    """The command pool of a device, and what is recorded with it."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._functions = native.functions
        create = typed("VkCommandPoolCreateInfo", "COMMAND_POOL_CREATE_INFO", queueFamilyIndex=native.adapter.queue)
        made = ffi.new("VkCommandPool *")
        check("vkCreateCommandPool", self._functions.vkCreateCommandPool(native.device, create, ffi.NULL, made))
        self._pool = made[0]
        self._compute = number("VK_PIPELINE_BIND_POINT_COMPUTE")
        self._storage = number("VK_DESCRIPTOR_TYPE_STORAGE_BUFFER")
        self._simultaneous = number("VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT")
        compute, transfer = (number(f"VK_PIPELINE_STAGE_{name}_BIT") for name in ("COMPUTE_SHADER", "TRANSFER"))
        self._stages = {Stage.COMPUTE: compute, Stage.TRANSFER: transfer, Stage.ANY: compute | transfer}
        self._barriers = {
            (before, after): typed(
                "VkMemoryBarrier", "MEMORY_BARRIER", srcAccessMask=_accesses(before), dstAccessMask=_accesses(after)
            )
            for before in Stage
            for after in Stage
        }  # fmt: skip
        self._host = number("VK_PIPELINE_STAGE_HOST_BIT")
        self._after = typed(
            "VkMemoryBarrier", "MEMORY_BARRIER",
            srcAccessMask=_accesses(Stage.ANY), dstAccessMask=number("VK_ACCESS_HOST_READ_BIT"),
        )  # fmt: skip

    def close(self) -> None:
        """Give the pool back."""
        self._functions.vkDestroyCommandPool(self._native.device, self._pool, ffi.NULL)

    # Recording

    def begin(self) -> Handle:
        """A command buffer that may be submitted any number of times, also while it is pending. What is recorded into
        it comes after everything submitted before.
        """
        allocate = typed(
            "VkCommandBufferAllocateInfo", "COMMAND_BUFFER_ALLOCATE_INFO", commandPool=self._pool, commandBufferCount=1
        )
        made = ffi.new("VkCommandBuffer *")
        result = self._functions.vkAllocateCommandBuffers(self._native.device, allocate, made)
        check("vkAllocateCommandBuffers", result)
        begin = typed("VkCommandBufferBeginInfo", "COMMAND_BUFFER_BEGIN_INFO", flags=self._simultaneous)
        check("vkBeginCommandBuffer", self._functions.vkBeginCommandBuffer(made[0], begin))
        self.barrier(made[0], Stage.ANY, Stage.ANY)
        return made[0]

    def barrier(self, commands: Handle, before: Stage, after: Stage) -> None:
        """What follows sees everything that was written before, and overwrites nothing that is still read. Before
        and after it is what those stages do.
        """
        self._barrier(commands, self._stages[before], self._stages[after], self._barriers[before, after])

    def end(self, commands: Handle) -> None:
        """Recorded, with everything that was written visible to the host once the submission is done."""
        self._barrier(commands, self._stages[Stage.ANY], self._host, self._after)
        check("vkEndCommandBuffer", self._functions.vkEndCommandBuffer(commands))

    def _barrier(self, commands: Handle, before: int, after: int, barrier: Any) -> None:
        none = ffi.NULL
        self._functions.vkCmdPipelineBarrier(commands, before, after, 0, 1, barrier, 0, none, 0, none)

    def dispatch(self, commands: Handle, kernel: VulkanKernel, set: Handle, groups: tuple[int, int, int]) -> None:
        """Run a kernel over a grid of groups."""
        functions, layout = self._functions, kernel.layout.pipeline
        functions.vkCmdBindPipeline(commands, self._compute, kernel.pipeline)
        sets = ffi.new("VkDescriptorSet[1]", [set])
        functions.vkCmdBindDescriptorSets(commands, self._compute, layout, 0, 1, sets, 0, ffi.NULL)
        functions.vkCmdDispatch(commands, *groups)

    def copy(self, commands: Handle, source: tuple[Handle, int], target: tuple[Handle, int], nbytes: int) -> None:
        """Copy bytes between buffers, or within one where the pieces do not overlap."""
        region = ffi.new("VkBufferCopy *", [source[1], target[1], nbytes])
        self._functions.vkCmdCopyBuffer(commands, source[0], target[0], 1, region)

    def fill_zero(self, commands: Handle, buffer: Handle) -> None:
        """Zero a whole buffer."""
        whole = (1 << 64) - 1
        self._functions.vkCmdFillBuffer(commands, buffer, 0, whole, 0)

    def free(self, commands: Sequence[Handle]) -> None:
        """Give command buffers back that are not pending."""
        array = ffi.new("VkCommandBuffer[]", list(commands))
        self._functions.vkFreeCommandBuffers(self._native.device, self._pool, len(commands), array)

    # Descriptor sets

    def create_sets(self, wanted: Sequence[tuple[Layout, Sequence[Binding]]]) -> tuple[Handle, list[Handle]]:
        """A pool and one set for each layout with its bindings, for good. The sets go with the pool."""
        functions, device = self._functions, self._native.device
        total = sum(len(bindings) for _, bindings in wanted)
        size: Any = ffi.new("VkDescriptorPoolSize *")
        size.type, size.descriptorCount = self._storage, max(1, total)
        create = typed(
            "VkDescriptorPoolCreateInfo", "DESCRIPTOR_POOL_CREATE_INFO",
            maxSets=len(wanted), poolSizeCount=1, pPoolSizes=size,
        )  # fmt: skip
        made = ffi.new("VkDescriptorPool *")
        check("vkCreateDescriptorPool", functions.vkCreateDescriptorPool(device, create, ffi.NULL, made))
        try:
            layouts = ffi.new("VkDescriptorSetLayout[]", [layout.set for layout, _ in wanted])
            allocate = typed(
                "VkDescriptorSetAllocateInfo", "DESCRIPTOR_SET_ALLOCATE_INFO",
                descriptorPool=made[0], descriptorSetCount=len(wanted), pSetLayouts=layouts,
            )  # fmt: skip
            sets = ffi.new("VkDescriptorSet[]", len(wanted))
            check("vkAllocateDescriptorSets", functions.vkAllocateDescriptorSets(device, allocate, sets))
        except BaseException:
            self.destroy_sets(made[0])
            raise
        for set, (_, bindings) in zip(sets, wanted, strict=True):
            self._write_set(set, bindings)
        return made[0], list(sets)

    def _write_set(self, set: Handle, bindings: Sequence[Binding]) -> None:
        if not bindings:
            return
        infos: Any = ffi.new("VkDescriptorBufferInfo[]", len(bindings))
        for place, (buffer, offset, nbytes) in enumerate(bindings):
            infos[place].buffer, infos[place].offset, infos[place].range = buffer, offset, nbytes
        write = typed(
            "VkWriteDescriptorSet", "WRITE_DESCRIPTOR_SET", dstSet=set, descriptorCount=len(bindings),
            descriptorType=self._storage, pBufferInfo=infos,
        )  # fmt: skip
        self._functions.vkUpdateDescriptorSets(self._native.device, 1, write, 0, ffi.NULL)

    def destroy_sets(self, pool: Handle) -> None:
        """Give a pool back with its sets."""
        self._functions.vkDestroyDescriptorPool(self._native.device, pool, ffi.NULL)

    # Time stamps

    def create_stamps(self, count: int) -> Handle:
        """A pool of time stamps."""
        create = typed(
            "VkQueryPoolCreateInfo", "QUERY_POOL_CREATE_INFO",
            queryType=number("VK_QUERY_TYPE_TIMESTAMP"), queryCount=count,
        )  # fmt: skip
        made = ffi.new("VkQueryPool *")
        result = self._functions.vkCreateQueryPool(self._native.device, create, ffi.NULL, made)
        check("vkCreateQueryPool", result)
        return made[0]

    def stamp(self, commands: Handle, pool: Handle, place: int, *, reset: bool) -> None:
        """Note the time once everything before is done. `reset`: this stamp and the next one are written anew."""
        if reset:
            self._functions.vkCmdResetQueryPool(commands, pool, place, 2)
        bottom = number("VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT")
        self._functions.vkCmdWriteTimestamp(commands, bottom, pool, place)

    def copy_stamps(self, commands: Handle, pool: Handle, place: int, target: tuple[Handle, int]) -> None:
        """Put this stamp and the next one (u64 each) into a buffer: the host then reads them without asking the
        driver.
        """
        flags = number("VK_QUERY_RESULT_64_BIT") | number("VK_QUERY_RESULT_WAIT_BIT")
        self._functions.vkCmdCopyQueryPoolResults(commands, pool, place, 2, *target, 8, flags)

    def destroy_stamps(self, pool: Handle) -> None:
        """Give a pool of time stamps back."""
        self._functions.vkDestroyQueryPool(self._native.device, pool, ffi.NULL)
