"""The entry point of the `reference` device."""

from __future__ import annotations

from poot_eval.device import PLAIN_CAPS, SUBGROUP_CAPS, ReferenceDevice
from poot_executor.cache import CompileCache
from poot_executor.compile.target import Caps
from poot_executor.device import Device, Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings

_CAPS: tuple[tuple[str, Caps], ...] = (("subgroups", SUBGROUP_CAPS), ("plain", PLAIN_CAPS))


class ReferenceDriver:
    """Opens the interpreter: `subgroups` (the default) has every optional feature, `plain` none."""

    automatic = False
    """Never chosen by "auto"."""

    def probe(self) -> list[Found | Missing]:
        """It is always there."""
        what = "kernel IR interpreted in numpy, for tests"
        return [Found(name, f"{what} ({name})", software=True) for name, _ in _CAPS]

    def open(self, selector: str, settings: DeviceSettings) -> Device:
        """Raises DeviceNotFound for a selector that is not one of `probe`'s."""
        caps = dict(_CAPS).get(selector or _CAPS[0][0])
        if caps is None:
            names = ", ".join(name for name, _ in _CAPS)
            raise DeviceNotFound(f"there is no reference:{selector}; there are {names}")
        cache = CompileCache(settings.cache)
        return ReferenceDevice(caps, cache=cache, timeout=settings.timeout)
