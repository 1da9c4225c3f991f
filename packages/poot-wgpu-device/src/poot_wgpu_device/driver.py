"""`WgpuDriver`, what the entry point `wgpu` names. Importing this module loads no native library."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_wgpu_device.caps import Adapter

if TYPE_CHECKING:
    from poot_wgpu_device.device import WgpuDevice

NO_ADAPTER = (
    "wgpu found no Vulkan, Metal or Direct3D 12 adapter: install the driver of your GPU, "
    "or for the CPU, on Debian and Ubuntu, `apt-get install mesa-vulkan-drivers libvulkan1`"
)

logger = logging.getLogger(__name__)


class WgpuDriver:
    """Adapters in the library's order. A selector is a number, or part of an adapter's name."""

    def probe(self) -> list[Found | Missing]:
        """Every adapter, or why there is none."""
        try:
            from poot_wgpu_device.adapters import Instance
        except (ImportError, OSError, RuntimeError) as error:
            return [Missing(_not_loaded(error))]
        with Instance() as instance:
            adapters = instance.adapters
        found: list[Found | Missing] = [
            Found(str(place), f"{a.name} ({', '.join(filter(None, (a.backend, a.driver)))})", a.software)
            for place, a in enumerate(adapters)
        ]
        return found or [Missing(NO_ADAPTER)]

    def open(self, selector: str, settings: DeviceSettings) -> WgpuDevice:
        """Open an adapter and try its optional features. Raises DeviceNotFound."""
        try:
            from poot_wgpu_device.adapters import Instance
        except (ImportError, OSError, RuntimeError) as error:
            raise DeviceNotFound(_not_loaded(error)) from error
        from poot_wgpu_device.opening import open_adapter

        with Instance() as instance:
            place = choose(instance.adapters, selector)
            device = open_adapter(instance.handles[place], instance.adapters[place], settings)
        for feature, reason in device.switched_off.items():
            logger.info("wgpu: %s is switched off: %s", feature, reason)
        return device


def choose(adapters: Sequence[Adapter], selector: str) -> int:
    """The place of the adapter that a selector names; "" is the first. Raises DeviceNotFound with what there is."""
    if not adapters:
        raise DeviceNotFound(NO_ADAPTER)
    if selector.isdecimal():
        if int(selector) < len(adapters):
            return int(selector)
    else:
        for place, adapter in enumerate(adapters):
            if selector.lower() in adapter.name.lower():
                return place
    known = ", ".join(f"{place}: {adapter.name}" for place, adapter in enumerate(adapters))
    raise DeviceNotFound(f"wgpu has no adapter {selector!r}; it has {known}")


def _not_loaded(error: Exception) -> str:
    return f"wgpu's native library did not load ({error}): install the package wgpu again, for this platform"
