"""Layouts and schedules of a GPU, on whatever device there is: lanes share rows, groups are many and of 64 threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.random_graphs import RandomGraphConformance
from poot_eval.conformance.regions import AttentionRegions, ContractionRegions, IndexedRegions, RowRegions
from poot_executor.compile.schedule import shares_rows

pytestmark = [pytest.mark.device("wgpu"), pytest.mark.sweep]


@pytest.fixture(scope="module")
def device():
    with open_or_skip("wgpu") as opened:
        caps = replace(opened.target.caps, tile_rows=1, group_threads=64, parallel_groups=256)
        if not shares_rows(caps):
            pytest.skip("this device has no subgroups of one width")
        opened.settle(caps, opened.switched_off)
        yield opened


class TestWgpuAsGpu(ContractionRegions, AttentionRegions, RowRegions, IndexedRegions, RandomGraphConformance):
    """Regions whose kernels depend on what a GPU's caps say."""
