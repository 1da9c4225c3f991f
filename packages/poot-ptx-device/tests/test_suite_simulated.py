"""The contract's whole suite over the simulated driver: everything of the package but the PTX runs, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from poot_eval.conformance import DeviceConformance
from poot_ptx_device.device import PtxDevice


@pytest.fixture(scope="module")
def device(simulated: ModuleType, open_simulated: Callable[..., PtxDevice]) -> Iterator[PtxDevice]:
    driver = simulated.SimulatedDriver()
    opened = open_simulated(driver)
    yield opened
    opened.close()
    assert not driver.leaks


class TestPtxSimulated(DeviceConformance):
    """Inherits every contract test; overrides none."""
