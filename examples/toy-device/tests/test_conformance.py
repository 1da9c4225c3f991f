"""The device contract, on the toy device."""

import pytest

from poot_eval.conformance import DeviceConformance, open_or_skip

pytestmark = pytest.mark.device("toy")


@pytest.fixture(scope="module")
def device():
    with open_or_skip("toy") as opened:
        yield opened


class TestToy(DeviceConformance):
    """Inherits every contract test; overrides none."""
