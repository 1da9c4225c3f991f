"""What the HSA runtime reports, as poot's errors."""

from __future__ import annotations

from poot_executor.errors import DeviceError


class HsaError(DeviceError):
    """A status of the runtime that leaves it usable: the call, the status, its words."""

    def __init__(self, call: str, status: int, words: str) -> None:
        super().__init__(
            f"{call}: status {status:#x}: {words}; this is a fault of the program or of poot, the device goes on"
        )
        self.call = call
        self.status = status
        self.words = words


class OutOfDeviceMemory(Exception):
    """The runtime found no memory; the caller knows what was asked for."""
