"""What the kernel says of NPUs, read from sysfs: nothing is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DRIVER = "amdxdna"
SYS = Path("/sys")
AMD = "0x1022"
NPUS = {"0x1502": "Phoenix or Hawk Point", "0x17f0": "Strix, Strix Halo or Krackan Point"}
"""PCI device ids that the amdxdna driver serves."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """NPUs by what the PCI bus shows, and accelerator nodes ("accel0") that the amdxdna driver has made for them."""

    npus: tuple[str, ...]
    nodes: tuple[str, ...]

    @property
    def lacking(self) -> str | None:
        """Why there is none to open; None where there is one."""
        if self.nodes:
            return None
        if self.npus:
            return (
                f"an AMD NPU is here ({', '.join(self.npus)}) and its driver {DRIVER} is not: "
                "it is part of Linux 6.14 and newer (CONFIG_DRM_ACCEL_AMDXDNA)"
            )
        return f"no AMD NPU: no accelerator of the driver {DRIVER}, and none on the PCI bus"


def look(sys: Path = SYS) -> Hardware:
    """NPUs under a sysfs root. A file that is absent or unreadable is an NPU that is not there."""
    npus = []
    for device in sorted(sys.glob("bus/pci/devices/*")):
        name = NPUS.get(_text(device / "device"))
        if name is not None and _text(device / "vendor") == AMD:
            npus.append(name)
    nodes = [node.name for node in sorted(sys.glob("class/accel/accel*")) if _driver(node) == DRIVER]
    return Hardware(tuple(npus), tuple(nodes))


def _driver(node: Path) -> str:
    link = node / "device" / "driver"
    return link.resolve().name if link.exists() else ""


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip().lower()
    except (OSError, UnicodeDecodeError):
        return ""
