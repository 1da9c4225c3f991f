"""KV sized from a device's figures: what gives way, in which order, and what a refusal says."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poot_executor.device import BufferKind, MemoryInfo
from poot_executor.dtype import BF16, F32
from poot_executor.errors import SettingsError
from poot_llm.driver import DriverOptions, Layout
from poot_llm.driver.kv_fit import KvPlan, fit, kv_price, kv_states
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

POSITION = 2 * 2 * 16 * 4
"""Bytes: K and V of two layers, one KV head of 16 columns in f32."""


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"), layers=2, context=4096)


def memory(free: int | None, limit: int | None = None, used: int = 0) -> MemoryInfo:
    counts = dict.fromkeys(BufferKind, 0) | {BufferKind.WEIGHT: used}
    return MemoryInfo(counts, free, limit)


def planned(handle: ModelHandle, positions: int | None, *, state_limit: int | None = None, **options: Any) -> KvPlan:
    """A plan on a device that has room for so many positions beside the weights."""
    known = None if positions is None else memory(handle.stored_bytes + positions * POSITION)
    chosen = DriverOptions(memory_fraction=1.0, **options)
    return fit(handle, chosen, chosen.layout is Layout.PAGED, known, state_limit)


def test_the_price_of_a_position(handle: ModelHandle) -> None:
    price = kv_price(handle, F32)
    assert (price.position, price.state) == (POSITION, POSITION // 4)
    assert kv_price(handle, BF16).position == POSITION // 2


def test_a_family_says_of_its_kv_what_a_step_keeps(handle: ModelHandle) -> None:
    """A family that says nothing is traced: the states of its step and their bytes are the same."""
    assert handle.family.kv is not None
    silent = replace(handle, family=replace(handle.family, kv=None))
    for activations in (F32, BF16):
        assert kv_states(handle, activations) == kv_states(silent, activations)
        assert kv_price(handle, activations) == kv_price(silent, activations)


def test_what_fits_is_left_alone(handle: ModelHandle) -> None:
    for positions in (4 * 512, 10**9, None):
        plan = planned(handle, positions, rows=4, capacity=512)
        assert (plan.rows, plan.capacity, plan.blocks, plan.notes) == (4, 512, None, ())
        assert plan.kv_bytes == 4 * 512 * POSITION
    plan = planned(handle, 4 * 512 + 16, rows=4, capacity=512, layout=Layout.PAGED)
    assert (plan.rows, plan.capacity, plan.blocks, plan.notes) == (4, 512, 129, ())


def test_a_pool_shrinks_before_the_capacity(handle: ModelHandle) -> None:
    plan = planned(handle, 1000, rows=4, capacity=512, layout=Layout.PAGED)
    assert (plan.rows, plan.capacity, plan.blocks) == (4, 512, 62)
    assert "the pool holds 61 of the 128 blocks" in str(plan)
    plan = planned(handle, 1000, rows=4, layout=Layout.PAGED)
    assert (plan.rows, plan.capacity, plan.blocks) == (4, 976, 62)
    assert "the capacity shrank from 2048 to fit" in str(plan)


def test_capacity_shrinks_before_rows(handle: ModelHandle) -> None:
    plan = planned(handle, 4000, rows=4)
    assert (plan.rows, plan.capacity) == (4, 1000)
    plan = planned(handle, 600, rows=4)
    assert (plan.rows, plan.capacity) == (2, 256)
    assert "the rows shrank from 4" in str(plan) and "the capacity shrank from 2048" in str(plan)
    plan = planned(handle, 1100, rows=4, capacity=512)
    assert (plan.rows, plan.capacity) == (2, 512)


def test_a_buffer_may_be_the_limit(handle: ModelHandle) -> None:
    """Free memory is unknown or plenty, and one state of the pool may not be larger than a binding."""
    for positions in (None, 10**6):
        plan = planned(handle, positions, state_limit=1024 * POSITION // 4, rows=8, capacity=512, layout=Layout.PAGED)
        assert plan.blocks == 64


def test_limits_stand_in_for_free_memory(handle: ModelHandle) -> None:
    options = DriverOptions(rows=4, capacity=512, memory_fraction=0.5)
    beside = handle.stored_bytes + 4 * 512 * POSITION
    plan = fit(handle, options, False, memory(None, limit=2 * beside + 1000, used=1000), None)
    assert (plan.rows, plan.budget) == (4, beside)
    plan = fit(handle, options, False, memory(None, limit=2 * beside, used=1000), None)
    assert plan.rows == 3


@pytest.mark.parametrize(
    ("positions", "options", "message"),
    [
        (400, {"capacity": 512}, r"KV of 512 positions takes .* capacity 400 would fit"),
        (400, {"capacity": 512, "layout": Layout.PAGED}, r"KV of 528 positions .* capacity 384 would fit"),
        (100, {}, r"KV of 256 positions .* beside weights of .* capacity 100 would fit"),
        (0, {}, "no capacity fits; take a smaller model"),
        (1600, {"capacity": 512, "layout": Layout.PAGED, "pool_blocks": 200}, "pool_blocks 100 would fit"),
        (None, {"capacity": 512, "layout": Layout.PAGED, "pool_blocks": 20}, "pool_blocks is 20: 512 positions.* 33"),
    ],
)
def test_a_refusal_says_what_would_fit(
    handle: ModelHandle, positions: int | None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        planned(handle, positions, rows=2, **options)


def test_what_a_refusal_names_fits(handle: ModelHandle) -> None:
    assert planned(handle, 400, rows=2, capacity=400).rows == 1
    assert planned(handle, 400, rows=2, capacity=384, layout=Layout.PAGED).blocks == 25
    assert planned(handle, 1600, rows=2, capacity=512, layout=Layout.PAGED, pool_blocks=100).blocks == 100


def test_a_driver_keeps_to_its_plan(handle: ModelHandle) -> None:
    """A device of little memory: the pool is small, and what is allocated stays within the limit."""
    with fixture.oracle_device.OracleDevice() as device, fixture.Engine(device) as engine:
        info = device.memory()
        assert info.free is not None
        wanted = handle.stored_bytes + 1000 * POSITION
        options = DriverOptions(rows=4, capacity=512, layout=Layout.PAGED, memory_fraction=wanted / info.free)
        with fixture.Driver(handle, engine, options) as driver:
            assert driver.plan.blocks in (62, 63) and driver.rows == 4 and driver.capacity == 512
            driver.prepare_for(5, SamplingParams(max_tokens=3))
            states = engine.stats().memory.used[BufferKind.STATE]
            assert driver.plan.kv_bytes <= states <= driver.plan.kv_bytes + 256
