"""The device contract, on the first NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from poot_eval.conformance import DeviceConformance, open_or_skip
from poot_executor.device import Device

pytestmark = pytest.mark.device("ptx")


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_or_skip("ptx") as opened:
        yield opened


class TestPtx(DeviceConformance):
    """Inherits every contract test; overrides none."""
