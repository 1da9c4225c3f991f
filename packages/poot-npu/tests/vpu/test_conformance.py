"""The device contract, on OpenVINO's CPU plug-in."""

import pytest

from poot_eval.conformance import DeviceConformance, open_or_skip

pytestmark = pytest.mark.device("vpu")


@pytest.fixture(scope="module")
def device():
    with open_or_skip("vpu:cpu") as opened:
        yield opened


@pytest.mark.part(test_contraction=4)
class TestVpu(DeviceConformance):
    """Inherits every contract test; overrides none."""
