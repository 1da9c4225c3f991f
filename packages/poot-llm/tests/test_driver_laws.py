"""Alone = batched, hit = miss, resumed = uninterrupted, any chunking = whole, one seed one continuation."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from poot_eval.conformance.opening import open_or_skip
from poot_executor.engine import Engine
from poot_llm.driver import Driver, DriverOptions, Layout
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams, Suffix

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
laws = fixture.sibling("laws")

ALONE: dict[str, Any] = {"capacity": 64, "chunk": 64, "ahead": False, "layout": Layout.CONTIGUOUS}
PAGED: dict[str, Any] = {"capacity": 64, "chunk": 8, "rows": 4, "layout": Layout.PAGED, "pool_blocks": 10}
VARIANTS: dict[str, dict[str, Any]] = {
    "paged": PAGED,
    "paged, no step ahead": PAGED | {"ahead": False, "spans": (32,)},
    "paged, guessing": PAGED | {"window": 4},
    "paged, no cache": PAGED | {"prefix_cache": False, "prefill_rows": 4},
    "contiguous": {"capacity": 64, "chunk": 8, "rows": 3, "layout": Layout.CONTIGUOUS, "prefix_cache": True},
    "contiguous, guessing": {
        "capacity": 64, "chunk": 16, "rows": 2, "layout": Layout.CONTIGUOUS, "prefix_cache": True, "window": 3,
    },
    "contiguous, few programs": {
        "capacity": 64, "chunk": 16, "rows": 5, "layout": Layout.CONTIGUOUS, "prefix_cache": True, "few_programs": True,
    },
}  # fmt: skip

ROUNDS = 8
"""Random interleavings may share no prompt that is copied: then there are more of them."""


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_laws_over_the_oracle(handle: ModelHandle, variant: str) -> None:
    with fixture.driving(handle, **VARIANTS[variant]) as rig, fixture.driving(handle, **ALONE) as other:
        rig.driver.prepare([Suffix.GREEDY, Suffix.SAMPLED])
        copies = rig.driver._decoding.copies
        assert (copies is not None) == variant.startswith("contiguous")
        before = rig.engine.stats()
        for _ in range(ROUNDS):
            if copies is not None:
                # Prompts are shorter than what is copied before anything was measured.
                copies._seconds, copies._pace = 0.0, 1.0
            laws.check_laws(rig.driver, other.driver, examples=14, steps=30, faults=True)
            if copies is None or copies.copies > 0:
                break
        after = rig.engine.stats()
        assert (after.recordings, after.allocations) == (before.recordings, before.allocations)
        assert copies is None or copies.copies > 0


def test_rows_that_draw_again_write_a_shared_place_once(handle: ModelHandle) -> None:
    """Equal prompts of one whole block share it, and both compute its last position again. The oracle refuses a place
    that is written twice."""
    prompt, params = laws.BASE[:16], SamplingParams(max_tokens=4, ignore_eos=True)
    with fixture.driving(handle, **PAGED | {"ahead": False}) as rig, fixture.driving(handle, **ALONE) as other:
        expected = [item.token for item in other.driver.generate(prompt, params)]
        both = [rig.driver.open(prompt, params) for _ in range(2)]
        for s in both:
            assert s is not None and not rig.driver.grow([s])
        results = rig.driver.step(both)
        while any(r.token is None for r in results):
            results = rig.driver.step(both)
        for _ in range(2):
            assert [r.token for r in results] == [expected[0]] * 2
            results = rig.driver.step(both)
        blocks = [s.lease.blocks[0] for s in both]
        assert blocks[0] == blocks[1]
        for s in both:
            rig.driver.release(s)


@pytest.mark.parametrize("ahead", [True, False])
def test_laws_where_draws_depend_on_what_came_before(handle: ModelHandle, ahead: bool) -> None:
    """Penalties count the same answer whatever was undone, preempted, reset or submitted ahead."""
    options = PAGED | {"rows": 3, "ahead": ahead}
    with fixture.driving(handle, **options) as rig, fixture.driving(handle, **ALONE) as other:
        rig.driver.prepare([Suffix.SAMPLED, Suffix.FULL])
        laws.check_laws(rig.driver, other.driver, examples=7, steps=30, faults=True, params=laws.PENALIZING)


@contextmanager
def deterministic(handle: ModelHandle, device: str, **options: Any) -> Iterator[tuple[Engine, Driver]]:
    """A driver in deterministic mode on poot's kernels."""
    with (
        open_or_skip(device) as opened,
        Engine(opened) as engine,
        Driver(handle, engine, DriverOptions(deterministic=True, **options)) as driver,
    ):
        yield engine, driver


FEW: dict[str, dict[str, Any]] = {
    "two rows": PAGED | {"rows": 2, "chunk": 4},
    "paged": PAGED | {"rows": 3, "chunk": 4, "window": 4},
    "contiguous": {"capacity": 64, "chunk": 4, "rows": 2, "layout": Layout.CONTIGUOUS, "prefix_cache": True},
}
"""Fewer step shapes, which cost seconds to compile."""

ANOTHER = pytest.mark.sweep(most=1)
"""The driver is the same on every device, and each device's kernels have tests of their own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "variant", "examples"),
    [
        pytest.param("vulkan", "paged", 6, id="vulkan", marks=pytest.mark.device("vulkan")),
        pytest.param("reference", "two rows", 2, id="reference", marks=ANOTHER),
        pytest.param("vulkan", "contiguous", 4, id="vulkan-contiguous", marks=[pytest.mark.device("vulkan"), ANOTHER]),
        pytest.param("wgpu", "paged", 4, id="wgpu", marks=[pytest.mark.device("wgpu"), ANOTHER]),
    ],
)
def test_laws_on_kernels(handle: ModelHandle, device: str, variant: str, examples: int) -> None:
    """Token for token, in deterministic mode."""
    with (
        deterministic(handle, device, **FEW[variant]) as (engine, driver),
        deterministic(handle, device, **ALONE) as (_, alone),
    ):
        driver.prepare([Suffix.SAMPLED])
        before = engine.stats()
        laws.check_laws(driver, alone, examples=examples, steps=20, faults=False)
        after = engine.stats()
        assert (after.recordings, after.allocations) == (before.recordings, before.allocations)
        assert after.steps > before.steps and after.failures == 0
