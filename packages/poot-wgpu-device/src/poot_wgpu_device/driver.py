"""`WgpuDriver`, what the entry point `wgpu` names. Importing this module loads no native library."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings

if TYPE_CHECKING:
    from poot_wgpu_device.device import WgpuDevice

BACKENDS = ("Vulkan", "Metal", "D3D12")
"""Backends that are used. OpenGL shows the same hardware a second time, with fewer features."""

NO_ADAPTER = (
    "wgpu found no Vulkan, Metal or Direct3D 12 adapter: install a driver, or for the CPU on Debian and Ubuntu "
    "`apt-get install mesa-vulkan-drivers libvulkan1`"
)

logger = logging.getLogger(__name__)


class WgpuDriver:
    """Adapters in the library's order. A selector is a number, or part of an adapter's name."""

    def probe(self) -> list[Found | Missing]:
        """Every adapter, or why there is none."""
        try:
            adapters = _adapters()
        except (ImportError, OSError, RuntimeError) as error:
            return [Missing(f"wgpu's native library did not load: {error}; install wgpu again for this platform")]
        found: list[Found | Missing] = [
            Found(str(place), f"{a.info['device']} ({a.info['backend_type']}, {a.info['description'] or 'no driver name'})",
                  a.info["adapter_type"] == "CPU")
            for place, a in enumerate(adapters)
        ]  # fmt: skip
        return found or [Missing(NO_ADAPTER)]

    def open(self, selector: str, settings: DeviceSettings) -> WgpuDevice:
        """Open an adapter and try its optional features. Raises DeviceNotFound."""
        from poot_wgpu_device.opening import open_adapter

        try:
            adapters = _adapters()
        except (ImportError, OSError, RuntimeError) as error:
            raise DeviceNotFound(f"wgpu's native library did not load: {error}; install wgpu again for this platform") from error
        if not adapters:
            raise DeviceNotFound(NO_ADAPTER)
        device = open_adapter(_choose(adapters, selector), settings)
        for feature, reason in device.switched_off.items():
            logger.warning("wgpu: %s is switched off: %s", feature, reason)
        return device


def _adapters() -> list[Any]:
    from wgpu.backends.wgpu_native import gpu

    return [a for a in gpu.enumerate_adapters_sync() if a.info["backend_type"] in BACKENDS]


def _choose(adapters: list[Any], selector: str) -> Any:
    names = [a.info["device"] for a in adapters]
    if selector.isdecimal():
        if int(selector) < len(adapters):
            return adapters[int(selector)]
    else:
        for adapter, name in zip(adapters, names, strict=True):
            if selector.lower() in name.lower():
                return adapter
    known = ", ".join(f"{place}: {name}" for place, name in enumerate(names))
    raise DeviceNotFound(f"wgpu has no adapter {selector!r}; it has {known}")
