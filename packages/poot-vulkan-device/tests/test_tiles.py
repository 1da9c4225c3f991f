"""Tiles of many activation rows on whatever device there is: by fragments where it has them, else in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.conformance.random_graphs import RandomGraphConformance
from poot_eval.conformance.regions import ContractionRegions
from poot_executor.dtype import F16
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f

pytestmark = pytest.mark.device("vulkan")


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with open_or_skip("vulkan") as opened:
        caps = replace(opened.target.caps, tile_rows=1, group_threads=64, parallel_groups=1, many_rows=2)
        opened.settle(caps, opened.switched_off)
        yield opened


@pytest.mark.parametrize("format", ["q4_1", "f16"])
def test_halves_are_multiplied_by_what_the_device_has(device: Any, rng: Any, format: str) -> None:
    g = Recorder("gated", rng)
    h = f.rms_norm(g.floats(40, 96), g.floats(96), 1e-5)
    gate, up = (f.linear(h, g.weight(FORMATS[format], 80, 96), FORMATS[format], activations=F16) for _ in range(2))
    g.output(f.swiglu(gate, up))
    program = assert_device_matches(device, g.builder.build(), g.given()).program
    schedule = program.dispatches[-1].schedule
    halves = any(shape.element is F16 for shape in device.target.caps.fragments)
    assert schedule["weights"] == [2] and (schedule["shape"] is not None) == halves


@pytest.mark.sweep
class TestVulkanTiles(ContractionRegions, RandomGraphConformance):
    """Whatever has two activation rows is a tile."""
