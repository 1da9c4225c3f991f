"""The device contract on the first AMD GPU. What it ran on is in the report that `--junit-xml` writes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poot_eval.conformance import DeviceConformance, KernelDeviceConformance, open_or_skip
from poot_executor.settings import DeviceSettings
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.driver import RocmDriver

pytestmark = pytest.mark.device("rocm")

VERSION = Path("/opt/rocm/.info/version")


@pytest.fixture(scope="module")
def device(record_testsuite_property: Callable[[str, object], None]) -> Iterator[RocmDevice]:
    with open_or_skip("rocm") as opened:
        assert isinstance(opened, RocmDevice)
        gpu = opened.gpu
        facts = {
            "gpu": gpu.product,
            "instruction set": gpu.name,
            "compute units": gpu.units,
            "memory": gpu.memory,
            "compiler": opened.compiler,
            "kernel": platform.release(),
            "rocm": VERSION.read_text().strip() if VERSION.exists() else "not in its usual folder",
        }
        for name, value in facts.items():
            record_testsuite_property(name, value)
        yield opened


@pytest.fixture(scope="module")
def open_device(device: RocmDevice) -> Callable[..., RocmDevice]:
    """`open_device(timeout=60.0)`: one more device of the GPU."""
    return lambda **settings: RocmDriver().open(
        str(device.gpu.ordinal), DeviceSettings(**{"timeout": 60.0, **settings})
    )


class TestRocmHardware(DeviceConformance):
    """Inherits every contract test; overrides none."""


class TestRocmHardwareKernels(KernelDeviceConformance):
    """Inherits every test of devices that run kernels; overrides none. Last: a failed check costs a queue."""
