"""The device contract with every option: kernels start, and load their weights, before the kernel ahead has ended, and
warpgroups multiply where they gave their known answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poot_eval.conformance import DeviceConformance, open_or_skip
from poot_executor.device import Device
from poot_executor.kernel.warpgroups import FEATURE as WARPGROUP
from poot_executor.settings import DeviceSettings
from poot_ptx_device.caps import DEPENDENT_LAUNCH, EARLY_LAUNCH, EARLY_LOADS
from poot_ptx_device.native import Native
from poot_ptx_device.opening import open_gpu

pytestmark = pytest.mark.device("ptx")


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    open_or_skip("ptx").close()
    from cuda.bindings import driver

    native = Native(driver)
    gpu = native.gpus()[0]
    if gpu.capability < (9, 0):
        pytest.skip(f"{gpu.name} has no dependent launch")
    with open_gpu(
        native, gpu, DeviceSettings(), options={DEPENDENT_LAUNCH, EARLY_LOADS, EARLY_LAUNCH, WARPGROUP}
    ) as opened:
        yield opened


class TestPtxDependent(DeviceConformance):
    """Inherits every contract test; overrides none."""
