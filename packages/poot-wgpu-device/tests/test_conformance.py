"""The device contract, on the first adapter that wgpu finds."""

import pytest

from poot_eval.conformance import DeviceConformance, KernelDeviceConformance, open_or_skip

pytestmark = pytest.mark.device("wgpu")


@pytest.fixture(scope="module")
def device():
    with open_or_skip("wgpu") as opened:
        yield opened


@pytest.mark.part(test_contraction=4)
class TestWgpu(DeviceConformance):
    """Inherits every contract test; overrides none."""


class TestWgpuKernels(KernelDeviceConformance):
    """Inherits every test of devices that run kernels; overrides none."""
