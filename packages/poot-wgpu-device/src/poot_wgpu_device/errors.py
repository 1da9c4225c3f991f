"""What the library reports, as poot's errors."""

from __future__ import annotations

from poot_executor.errors import DeviceError


class WgpuError(DeviceError):
    """An error that wgpu reported for a call: the call's name, the kind (validation, out_of_memory, internal) and its
    message."""

    def __init__(self, call: str, kind: str, message: str) -> None:
        super().__init__(
            f"wgpu {call}: {kind} error: {message}; this is a fault of the program or of poot, the device goes on"
        )
        self.call = call
        self.kind = kind
        self.message = message
