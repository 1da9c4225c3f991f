"""What the driver reports, as poot's errors."""

from __future__ import annotations

from poot_executor.errors import DeviceError


class CudaError(DeviceError):
    """An error of the driver that leaves the context usable: the call, the result's name, its message."""

    def __init__(self, call: str, result: str, message: str) -> None:
        super().__init__(f"{call}: {result}: {message}; this is a fault of the program or of poot, the device goes on")
        self.call = call
        self.result = result
        self.message = message
