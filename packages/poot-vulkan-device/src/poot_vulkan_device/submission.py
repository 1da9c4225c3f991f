"""Submitting command buffers and waiting for them: fences that are used again, waits that are bounded."""

from __future__ import annotations

from poot_executor.errors import DeviceTimeout
from poot_vulkan_device.api import Handle
from poot_vulkan_device.native import Native


class Queue:
    """The device's queue. `timeout` bounds each wait, in seconds."""

    def __init__(self, native: Native, timeout: float) -> None:
        self._native = native
        self.timeout = timeout
        self._fences: list[Handle] = []
        self.submissions = 0

    def submit(self, commands: Handle) -> Handle:
        """Run a command buffer after everything submitted before; gives the fence to `wait` for. Raises DeviceLost."""
        fence = self._fences.pop() if self._fences else self._native.create_fence()
        self._native.submit(commands, fence)
        self.submissions += 1
        return fence

    def wait(self, fence: Handle, what: str) -> None:
        """Wait for a submission; its fence may be used again after that. Raises DeviceLost and DeviceTimeout."""
        if not self._native.wait(fence, self.timeout):
            raise DeviceTimeout(what, self.timeout)
        self._native.reset_fence(fence)
        self._fences.append(fence)

    def close(self) -> None:
        """Give the fences back."""
        for fence in self._fences:
            self._native.destroy_fence(fence)
        self._fences.clear()
