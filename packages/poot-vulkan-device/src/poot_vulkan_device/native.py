"""A Vulkan device: its queue, memory, buffers, fences. Nothing here decides anything; `wait` alone blocks, within its
bound.

Every call goes through the function table that the instance was made with, so that what the library answers can be
replaced below all of poot's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poot_executor.errors import DeviceLost
from poot_vulkan_device.adapter import Adapter
from poot_vulkan_device.api import OUT_OF_MEMORY, Handle, check, ffi, number, result_name, typed
from poot_vulkan_device.cooperative import BFLOAT16, COOPERATIVE_MATRIX, MEMORY_MODEL, NARROW
from poot_vulkan_device.instance import (
    BUDGET,
    FLOAT_CONTROLS,
    INTEGER_DOT,
    ROBUSTNESS_2,
    SIZE_CONTROL,
    Instance,
    core,
    feature_chain,
    link,
)  # fmt: skip

_TIMEOUT = 2
"""VK_TIMEOUT."""

_EXTENSIONS = {
    "robust2": ROBUSTNESS_2,
    "size_control": SIZE_CONTROL,
    "dot4": INTEGER_DOT,
    "inf_nan_preserve": FLOAT_CONTROLS,
    "denorm_preserve": FLOAT_CONTROLS,
    "rounding_rte": FLOAT_CONTROLS,
    "budget": BUDGET,
}

_OF_FRAGMENTS = {
    "cooperative": COOPERATIVE_MATRIX,
    "cooperative_robust": COOPERATIVE_MATRIX,
    "memory_model": MEMORY_MODEL,
    "float16": NARROW,
    "int8": NARROW,
    "bfloat16": BFLOAT16,
}
"""What matrix products need: enabled where the adapter has any."""


class Native:
    """An opened physical device with one queue. It owns the instance."""

    def __init__(self, instance: Instance, place: int) -> None:
        self.functions = instance.functions
        self.adapter: Adapter = instance.adapters[place]
        self._instance = instance
        self._physical = instance.handles[place]
        self.device = self._open()
        queue = ffi.new("VkQueue *")
        self.functions.vkGetDeviceQueue(self.device, self.adapter.queue, 0, queue)
        self.queue = queue[0]
        self._submit = typed("VkSubmitInfo", "SUBMIT_INFO", commandBufferCount=1)
        self._commands = ffi.new("VkCommandBuffer[1]")
        self._submit.pCommandBuffers = self._commands
        self._fence = ffi.new("VkFence[1]")
        self._usage = sum(
            number(f"VK_BUFFER_USAGE_{name}_BIT") for name in ("STORAGE_BUFFER", "TRANSFER_SRC", "TRANSFER_DST")
        )

    def _open(self) -> Handle:
        """The device with every feature that its adapter names."""
        adapter = self.adapter
        wanted = _EXTENSIONS | (_OF_FRAGMENTS if adapter.fragments else {})
        used = frozenset(name for feature, name in wanted.items() if feature in adapter.features)
        names = {name for name in used if not core(name, adapter.version)}
        chain = feature_chain(used)
        for structure, field, feature in chain:
            setattr(structure, field, int(feature in adapter.features))
        first = link([structure for structure, _, _ in chain])
        features: Any = typed("VkPhysicalDeviceFeatures2", "PHYSICAL_DEVICE_FEATURES_2", pNext=first)
        features.features.robustBufferAccess = 1
        priority = ffi.new("float[1]", [1.0])
        queue = typed(
            "VkDeviceQueueCreateInfo", "DEVICE_QUEUE_CREATE_INFO",
            queueFamilyIndex=adapter.queue, queueCount=1, pQueuePriorities=priority,
        )  # fmt: skip
        texts = [ffi.new("char[]", name.encode()) for name in sorted(names)]
        array = ffi.new("char *[]", texts or 1)
        create = typed(
            "VkDeviceCreateInfo", "DEVICE_CREATE_INFO", pNext=features, queueCreateInfoCount=1,
            pQueueCreateInfos=queue, enabledExtensionCount=len(texts), ppEnabledExtensionNames=array,
        )  # fmt: skip
        made = ffi.new("VkDevice *")
        check("vkCreateDevice", self.functions.vkCreateDevice(self._physical, create, ffi.NULL, made))
        return made[0]

    def close(self) -> None:
        """Give the device and the instance back. Nothing of it may be left."""
        self.functions.vkDestroyDevice(self.device, ffi.NULL)
        self._instance.close()

    # Memory

    def create_buffer(self, nbytes: int) -> tuple[Handle, int, int, int]:
        """A buffer without memory: it, and the size, alignment and set of memory types (a bit each) that it needs."""
        create = typed("VkBufferCreateInfo", "BUFFER_CREATE_INFO", size=nbytes, usage=self._usage)
        made = ffi.new("VkBuffer *")
        check("vkCreateBuffer", self.functions.vkCreateBuffer(self.device, create, ffi.NULL, made))
        needs: Any = ffi.new("VkMemoryRequirements *")
        self.functions.vkGetBufferMemoryRequirements(self.device, made[0], needs)
        return made[0], int(needs.size), int(needs.alignment), int(needs.memoryTypeBits)

    def destroy_buffer(self, buffer: Handle) -> None:
        """Give a buffer back, not its memory."""
        self.functions.vkDestroyBuffer(self.device, buffer, ffi.NULL)

    def bind(self, buffer: Handle, memory: Handle, offset: int) -> None:
        """Let a buffer lie in memory, for good."""
        check("vkBindBufferMemory", self.functions.vkBindBufferMemory(self.device, buffer, memory, offset))

    def allocate(self, type: int, nbytes: int) -> Handle | None:
        """Memory of a type; None where there is not enough."""
        info = typed("VkMemoryAllocateInfo", "MEMORY_ALLOCATE_INFO", allocationSize=nbytes, memoryTypeIndex=type)
        made = ffi.new("VkDeviceMemory *")
        result = self.functions.vkAllocateMemory(self.device, info, ffi.NULL, made)
        if result in OUT_OF_MEMORY:
            return None
        check("vkAllocateMemory", result)
        return made[0]

    def free(self, memory: Handle) -> None:
        """Give memory back. A mapping of it ends."""
        self.functions.vkFreeMemory(self.device, memory, ffi.NULL)

    def map(self, memory: Handle, nbytes: int) -> Any:
        """All of it as a writeable buffer of bytes."""
        pointer = ffi.new("void **")
        check("vkMapMemory", self.functions.vkMapMemory(self.device, memory, 0, nbytes, 0, pointer))
        return ffi.buffer(pointer[0], nbytes)

    def budget(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """(budget, usage) of each heap in bytes; None where the driver does not say."""
        return self._instance.budget(self._physical) if "budget" in self.adapter.features else None

    # Submission

    def create_fence(self) -> Handle:
        """A fence that is not signalled."""
        made = ffi.new("VkFence *")
        create = typed("VkFenceCreateInfo", "FENCE_CREATE_INFO")
        check("vkCreateFence", self.functions.vkCreateFence(self.device, create, ffi.NULL, made))
        return made[0]

    def reset_fence(self, fence: Handle) -> None:
        """Let a signalled fence be used again."""
        self._fence[0] = fence
        check("vkResetFences", self.functions.vkResetFences(self.device, 1, self._fence))

    def destroy_fence(self, fence: Handle) -> None:
        """Give a fence back that no submission will signal."""
        self.functions.vkDestroyFence(self.device, fence, ffi.NULL)

    def submit(self, commands: Handle, fence: Handle) -> None:
        """Run a command buffer after everything that was submitted. Raises DeviceLost, whatever the reason is."""
        self._commands[0] = commands
        result = self.functions.vkQueueSubmit(self.queue, 1, self._submit, fence)
        if result != 0:
            raise DeviceLost(f"vkQueueSubmit gave {result_name(result)}; open the device again in a new process")

    def wait(self, fence: Handle, seconds: float) -> bool:
        """Whether a fence was signalled within the bound. Raises DeviceLost, whatever the reason is."""
        self._fence[0] = fence
        nanoseconds = min(int(seconds * 1e9), (1 << 64) - 1)
        result = self.functions.vkWaitForFences(self.device, 1, self._fence, 1, nanoseconds)
        if result == _TIMEOUT:
            return False
        if result != 0:
            raise DeviceLost(f"vkWaitForFences gave {result_name(result)}; open the device again in a new process")
        return True
