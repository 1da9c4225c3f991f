"""The reference device passes the suite, with every optional feature and with none."""

import pytest

from poot_eval.conformance import DeviceConformance, open_or_skip

pytestmark = pytest.mark.device("reference")


@pytest.fixture(scope="module", params=["reference:subgroups", "reference:plain"])
def device(request):
    with open_or_skip(request.param) as opened:
        yield opened


@pytest.mark.part(test_contraction=4)
class TestReference(DeviceConformance):
    """Inherits every contract test; overrides none."""
