"""What the library reports, as poot's errors."""

from __future__ import annotations

from poot_executor.errors import DeviceError


class VulkanError(DeviceError):
    """A call that Vulkan refused: the call's name and its result's."""

    def __init__(self, call: str, result: str) -> None:
        super().__init__(f"Vulkan {call} gave {result}; this is a fault of the program or of poot, the device goes on")
        self.call = call
        self.result = result
