"""`RocmDriver`, what the entry point `rocm` names. Importing this module loads no native library."""

from __future__ import annotations

import ctypes
import sys

from poot_executor.device import Device, Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings

LIBRARY = "libhsa-runtime64.so.1"


class RocmDriver:
    """AMD GPUs that the HSA runtime sees."""

    def probe(self) -> list[Found | Missing]:
        """Why there is no AMD GPU."""
        return [Missing(_reason())]

    def open(self, selector: str, settings: DeviceSettings) -> Device:
        """Raises DeviceNotFound with the reason."""
        raise DeviceNotFound(f"rocm: {_reason()}")


def _reason() -> str:
    if sys.platform != "linux":
        return "AMD's HSA runtime is for Linux"
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        return f"AMD's HSA runtime did not load ({error}): install ROCm"
    return "kernels compile for AMD GPUs, and nothing runs them yet"
