"""A device of each mode on the CPU plug-in, one for a module."""

import pytest

from poot_eval.conformance import open_or_skip


@pytest.fixture(scope="module", params=["cpu", "cpu-fast"])
def any_mode(request):
    with open_or_skip(f"vpu:{request.param}") as opened:
        yield opened


@pytest.fixture(scope="module")
def device():
    with open_or_skip("vpu:cpu") as opened:
        yield opened
