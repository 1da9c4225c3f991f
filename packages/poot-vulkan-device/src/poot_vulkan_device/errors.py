"""What the library reports, as poot's errors."""

from __future__ import annotations

from poot_executor.errors import DeviceError

_OUT_OF_MEMORY = frozenset(
    {"VK_ERROR_OUT_OF_HOST_MEMORY", "VK_ERROR_OUT_OF_DEVICE_MEMORY", "VK_ERROR_MEMORY_MAP_FAILED"}
)


class VulkanError(DeviceError):
    """A call that Vulkan refused: the call's name and its result's."""

    def __init__(self, call: str, result: str) -> None:
        super().__init__(f"Vulkan {call} gave {result}; this is a fault of the program or of poot, the device goes on")
        self.call = call
        self.result = result

    @property
    def out_of_memory(self) -> bool:
        """Whether memory, or room to map it, is what was missing."""
        return self.result in _OUT_OF_MEMORY
