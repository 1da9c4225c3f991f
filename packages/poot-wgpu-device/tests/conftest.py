"""A device for every test, skipped where there is no adapter and failed where POOT_REQUIRE_DEVICE asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings, read_settings
from poot_wgpu_device.device import WgpuDevice
from poot_wgpu_device.driver import WgpuDriver


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the emitter's golden files instead of comparing with them."""
    parser.addoption("--update-golden", action="store_true", help="write the WGSL golden files")


@pytest.fixture(scope="session")
def open_device() -> Callable[..., WgpuDevice]:
    """Opens further devices: `open_device(timeout=…)`."""

    def opened(**settings: Any) -> WgpuDevice:
        try:
            return WgpuDriver().open("", DeviceSettings(**{"timeout": 60.0, **settings}))
        except DeviceNotFound as error:
            if "wgpu" in read_settings().require_devices:
                raise
            pytest.skip(str(error))

    return opened


@pytest.fixture(scope="module")
def device(open_device: Callable[..., WgpuDevice]) -> Iterator[WgpuDevice]:
    with open_device() as opened:
        yield opened
