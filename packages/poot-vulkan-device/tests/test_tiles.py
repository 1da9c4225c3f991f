"""Tiles of many activation rows on whatever device there is: by fragments where it has them, else in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.launching import launch
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.conformance.random_graphs import RandomGraphConformance
from poot_eval.conformance.regions import ContractionRegions
from poot_executor.dtype import F16, F32, U32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.ir import Access, Kernel

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


def test_products_keep_their_stated_error(device: Any, rng: Any) -> None:
    """Halves of many magnitudes: each sum within what the caps state of its terms."""
    caps = device.target.caps
    shapes = [s for s in caps.fragments if s.element is F16]
    if not shapes:
        pytest.skip("this device has no matrix products of f16")
    for shape in shapes:
        sizes = ((GROUPS, shape.rows, shape.depth), (GROUPS, shape.columns, shape.depth))
        x, y = ((rng.standard_normal(n) * np.exp2(rng.integers(-6, 7, n))).astype(np.float16) for n in sizes)
        c = rng.standard_normal((GROUPS, shape.rows, shape.columns)).astype(np.float32)
        arrays = [x.reshape(-1).view(np.uint32), y.reshape(-1).view(np.uint32), c.reshape(-1).copy()]
        got = launch(device, product(shape, caps.subgroup_width), arrays, (GROUPS, 1, 1))[2].reshape(c.shape)
        a, b = x.astype(np.float64), y.astype(np.float64).transpose(0, 2, 1)
        terms = np.abs(a) @ np.abs(b) + np.abs(c)
        assert (np.abs(got - (a @ b + c)) <= caps.errors["fragment_mma"] * shape.depth * 2.0**-23 * terms).all()


GROUPS = 64


def product(shape: FragmentShape, width: int) -> Kernel:
    """c = a·b + c, a subgroup a group."""
    b = KernelBuilder("product", width)
    x, y = (b.buffer(name, U32, Access.READ) for name in "xy")
    c = b.buffer("c", F32, Access.READ_WRITE)
    line, count = shape.depth // 2, shape.rows * shape.columns
    sizes = {"left": (U32, shape.rows * line), "right": (U32, shape.columns * line), "sums": (F32, count)}
    left, right, sums = (b.shared(name, dtype, size) for name, (dtype, size) in sizes.items())
    for held, buffer in ((left, x), (right, y), (sums, c)):
        with b.range(b.thread_id(), held.count, width) as i:
            held[i] = buffer[b.group_id() * held.count + i]
    b.barrier()
    factors = left.load_fragment(0, shape.a, line), right.load_fragment(0, shape.b, line, "column")
    sums.store_fragment(0, b.fragment_mma(*factors, sums.load_fragment(0, shape.sum, shape.columns)), shape.columns)
    b.barrier()
    with b.range(b.thread_id(), count, width) as i:
        c[b.group_id() * count + i] = sums[i]
    return b.finish()


@pytest.mark.sweep
class TestVulkanTiles(ContractionRegions, RandomGraphConformance):
    """Whatever has rows enough for half a tile is one; with fragments, two."""
