"""The entry point: says what is there, and opens it."""

from __future__ import annotations

from poot_executor.device import Device, Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings


class ToyDriver:
    """One device, the processor that numpy runs on. It is never chosen by "auto": it is for reading, not for speed."""

    automatic = False

    def probe(self) -> list[Found | Missing]:
        """It is always there."""
        return [Found("cpu", "whole graphs in numpy, one primitive after another", software=True)]

    def open(self, selector: str, settings: DeviceSettings) -> Device:
        """Raises DeviceNotFound for a selector other than "cpu" or ""."""
        # A driver library would be loaded here, not when this module is imported.
        from poot_toy_device.device import ToyDevice

        if selector not in ("", "cpu"):
            raise DeviceNotFound(f"there is no toy:{selector}; there is toy:cpu")
        return ToyDevice(settings.timeout)
