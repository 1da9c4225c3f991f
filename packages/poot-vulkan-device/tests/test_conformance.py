"""The device contract, on the first device that Vulkan finds."""

import pytest

from poot_eval.conformance import DeviceConformance, KernelDeviceConformance, open_or_skip

pytestmark = pytest.mark.device("vulkan")


@pytest.fixture(scope="module")
def device():
    with open_or_skip("vulkan") as opened:
        yield opened


@pytest.mark.part(test_contraction=4)
class TestVulkan(DeviceConformance):
    """Inherits every contract test; overrides none."""


class TestVulkanKernels(KernelDeviceConformance):
    """Inherits every test of devices that run kernels; overrides none."""
