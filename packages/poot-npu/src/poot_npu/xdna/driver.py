"""`XdnaDriver`, what the entry point `xdna` names. Importing this module loads no native library."""

from __future__ import annotations

from pathlib import Path

from poot_executor.device import Device, Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings, read_settings
from poot_npu.xdna.hardware import SYS, look
from poot_npu.xdna.kernels import MANIFEST, KernelSet, read_kernel_set

FOLDER = "xdna"
NO_KERNELS = (
    "an AMD NPU is here and runs kernels that you supply: --device xdna:FOLDER, "
    f"where FOLDER has {MANIFEST}, or is one in {{home}}; docs/xdna.md says what it holds"
)


class XdnaDriver:
    """The first AMD NPU, once for each kernel set. Experimental: "auto" never chooses it.

    A selector is a folder with a kernel set, or the name of one in the folder `xdna` of poot's cache. `sys` is where
    sysfs is mounted.
    """

    automatic = False

    def __init__(self, sys: Path = SYS) -> None:
        self._sys = sys

    def probe(self) -> list[Found | Missing]:
        """The kernel sets in poot's cache, or why nothing could be run: no NPU, no driver, no pyxrt, no kernels."""
        from poot_npu.xdna.runtime import load

        hardware = look(self._sys)
        if hardware.lacking is not None:
            return [Missing(hardware.lacking)]
        try:
            load()
        except DeviceNotFound as error:
            return [Missing(str(error))]
        home = read_settings().home / FOLDER
        found: list[Found | Missing] = []
        for manifest in sorted(home.glob(f"*/{MANIFEST}")):
            try:
                kernels = read_kernel_set(manifest.parent)
            except DeviceNotFound as error:
                found.append(Missing(str(error)))
            else:
                found.append(Found(kernels.name, f"AMD NPU, {len(kernels.contractions)} contractions, experimental"))
        return found or [Missing(NO_KERNELS.format(home=home))]

    def open(self, selector: str, settings: DeviceSettings) -> Device:
        """Open the NPU with a kernel set; "" is the first in poot's cache. Raises DeviceNotFound with the reason."""
        from poot_npu.xdna.device import XdnaDevice
        from poot_npu.xdna.runtime import Runtime, load

        hardware = look(self._sys)
        if hardware.lacking is not None:
            raise DeviceNotFound(hardware.lacking)
        xrt = load()
        return XdnaDevice(Runtime(xrt, _kernels(selector)), settings.timeout)


def _kernels(selector: str) -> KernelSet:
    """The kernel set that a selector names. Raises DeviceNotFound."""
    home = read_settings().home / FOLDER
    if not selector:
        manifests = sorted(home.glob(f"*/{MANIFEST}"))
        if not manifests:
            raise DeviceNotFound(NO_KERNELS.format(home=home))
        return read_kernel_set(manifests[0].parent)
    named = home / selector
    return read_kernel_set(named if (named / MANIFEST).is_file() else Path(selector).expanduser())
