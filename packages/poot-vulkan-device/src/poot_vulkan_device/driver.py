"""`VulkanDriver`, what the entry point `vulkan` names. Importing this module loads no native library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_vulkan_device.adapter import Adapter
from poot_vulkan_device.errors import VulkanError

if TYPE_CHECKING:
    from poot_vulkan_device.device import VulkanDevice
    from poot_vulkan_device.instance import Instance

APT = "on Debian and Ubuntu `apt-get install libvulkan1 mesa-vulkan-drivers` brings it for the CPU and for most GPUs"

NO_DEVICE = f"Vulkan found no device: install the driver of your GPU; {APT}"


class VulkanDriver:
    """Physical devices in the loader's order. A selector is a number, or part of a device's name."""

    def probe(self) -> list[Found | Missing]:
        """Every device that can be used, and why the others cannot."""
        try:
            instance = _instance()
        except DeviceNotFound as error:
            return [Missing(str(error))]
        instance.close()
        found = [_entry(place, adapter) for place, adapter in enumerate(instance.adapters)]
        return found or [Missing(NO_DEVICE)]

    def open(self, selector: str, settings: DeviceSettings) -> VulkanDevice:
        """Open a device and try its optional features. Raises DeviceNotFound."""
        instance = _instance()
        from poot_vulkan_device.opening import open_adapter

        try:
            place = choose(instance.adapters, selector)
        except DeviceNotFound:
            instance.close()
            raise
        return open_adapter(instance, place, settings)


def choose(adapters: Sequence[Adapter], selector: str) -> int:
    """The place of the device that a selector names; "" is the first that can be used. Raises DeviceNotFound with what
    there is.
    """
    if not adapters:
        raise DeviceNotFound(NO_DEVICE)
    if selector.isdecimal():
        if int(selector) < len(adapters):
            return int(selector)
    else:
        matching = [place for place, adapter in enumerate(adapters) if selector.lower() in adapter.name.lower()]
        if matching:
            return next((place for place in matching if adapters[place].refusal is None), matching[0])
    known = ", ".join(f"{place}: {adapter.name}" for place, adapter in enumerate(adapters))
    raise DeviceNotFound(f"Vulkan has no device {selector!r}; it has {known}")


def _entry(place: int, adapter: Adapter) -> Found | Missing:
    if adapter.refusal is not None:
        return Missing(adapter.refusal)
    facts = ", ".join(filter(None, (adapter.kind.value, adapter.driver)))
    return Found(str(place), f"{adapter.name} ({facts})", adapter.software)


def _instance() -> Instance:
    try:
        from poot_vulkan_device.instance import Instance
    except (ImportError, OSError) as error:
        raise DeviceNotFound(f"the Vulkan loader did not load ({error}): {APT}") from error
    try:
        return Instance()
    except VulkanError as error:
        raise DeviceNotFound(f"{error}; {APT}") from error
