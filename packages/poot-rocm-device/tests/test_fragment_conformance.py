"""Contractions by matrix fragments over the simulated runtime: emitted text runs, compiled for this processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from poot_eval.conformance.known import KnownAnswerConformance
from poot_eval.conformance.operations import ContractionConformance
from poot_eval.conformance.regions import ContractionRegions
from poot_eval.hsa import FakeRuntime
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.runtime import Runtime

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def device(module_library: Path, tmp_path_factory: pytest.TempPathFactory, hosting: ModuleType) -> Iterator[RocmDevice]:
    """With every matrix product that its architecture has."""
    folder = tmp_path_factory.mktemp("fragments")
    kernels, fake = hosting.Hosting(folder), FakeRuntime(module_library)
    with hosting.open_hosting(fake, Runtime(str(module_library)), kernels, fragments=True) as opened:
        assert opened.target.caps.fragments
        yield opened


class TestRocmFragments(KnownAnswerConformance, ContractionConformance, ContractionRegions):
    """What fragments change: products, and what is fused with them."""
