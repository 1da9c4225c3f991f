"""`VpuDriver`, what the entry point `vpu` names. Importing this module loads no native library."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_npu.vpu.modes import FAST, Mode, modes
from poot_npu.vpu.runtime import NotUsable, core

if TYPE_CHECKING:
    from poot_npu.vpu.device import VpuDevice


class VpuDriver:
    """The devices that OpenVINO's runtime names, each with its modes. "" is the first: NPU, then GPU, then CPU."""

    def probe(self) -> list[Found | Missing]:
        """Every mode of every device, or why there is none."""
        try:
            runtime = core()
        except NotUsable as reason:
            return [Missing(str(reason))]
        found: list[Found | Missing] = [
            Found(mode.selector, f"{_name(runtime, mode)} (OpenVINO, {mode.arithmetic})")
            for mode in modes(runtime.available_devices)
        ]
        return found or [Missing("OpenVINO offers no CPU, GPU or NPU here: its plug-ins are not installed")]

    def open(self, selector: str, settings: DeviceSettings) -> VpuDevice:
        """Open one device. Raises DeviceNotFound with the reason, and with what there is."""
        try:
            runtime = core()
        except NotUsable as reason:
            raise DeviceNotFound(str(reason)) from reason
        from poot_npu.vpu.device import VpuDevice

        return VpuDevice(runtime, choose(modes(_offered(runtime, selector)), selector), settings)


def choose(offered: list[Mode], selector: str) -> Mode:
    """The mode that a selector names; "" is the first. Raises DeviceNotFound with what there is."""
    for mode in offered:
        if selector.lower() in ("", mode.selector):
            return mode
    there = ", ".join(f"vpu:{mode.selector}" for mode in offered) or "no device"
    wants = " (an Intel NPU needs a Core Ultra processor and Intel's NPU driver)" if selector.startswith("npu") else ""
    raise DeviceNotFound(f"there is no vpu:{selector}{wants}; there is {there}")


def _offered(runtime: Any, selector: str) -> list[str]:
    """The devices there are. For a CPU that is asked for by name the other plug-ins are not loaded."""
    if selector.lower() in ("cpu", "cpu" + FAST):
        with contextlib.suppress(RuntimeError):
            runtime.get_property("CPU", "FULL_DEVICE_NAME")
            return ["CPU"]
    return list(runtime.available_devices)


def _name(runtime: Any, mode: Mode) -> str:
    """What the plug-in calls the hardware; the device's name where it does not say."""
    try:
        return " ".join(str(runtime.get_property(mode.device, "FULL_DEVICE_NAME")).split())
    except RuntimeError:
        return mode.device
