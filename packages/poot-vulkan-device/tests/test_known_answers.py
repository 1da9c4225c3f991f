"""What `open` makes of known answers: what is wrong is off, and said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poot_executor.known_answers import DOT4, SUBGROUP
from poot_executor.known_arithmetic import CONTRACTION, DENORMALS, FUSED
from poot_vulkan_device import opening
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.features import SIZE_CONTROL
from poot_vulkan_device.opening import settled


@pytest.mark.device("vulkan")
def test_what_is_off_is_reported(device: Any) -> None:
    features = device.target.caps.features
    assert not features & set(device.switched_off)
    assert all(device.switched_off.values())
    assert features | set(device.switched_off) >= {"pack_half", "unpack_half", "unbounded_loops"}


@pytest.mark.device("vulkan")
def test_a_wrong_answer_becomes_caps(device: Any) -> None:
    """What `open` makes of reasons, one at a time."""
    adapter = device.adapter
    features = frozenset({"subgroup", "dot4", "pack_half", "inf_nan_preserve", "rounding_rte"})
    right = settled(adapter, features, {}, 8)
    assert (right.features, right.subgroup_width, right.contracts) == (features, 8, False)
    assert settled(adapter, features, {"dot4": "wrong"}, 8).features == features - {"dot4"}
    none = settled(adapter, features, {"subgroup": "wrong"}, None)
    assert none.subgroup_width is None
    assert settled(adapter, features, {"inf_nan_preserve": "wrong"}, 8).features == {"subgroup", "dot4", "pack_half"}
    assert settled(adapter, features, {CONTRACTION: "wrong"}, 8).contracts
    assert settled(adapter, features, {DENORMALS: "wrong"}, 8).flushes_denormals
    assert "fma" not in right.errors
    assert settled(adapter, features, {FUSED: "wrong"}, 8).errors["fma"] == 1.0


@pytest.mark.device("vulkan")
@pytest.mark.parametrize("feature", [SUBGROUP, DOT4, "pack_half", "inf_nan_preserve"])
def test_a_wrong_answer_switches_the_feature_off_and_is_logged(
    open_device: Callable[..., VulkanDevice],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    feature: str,
) -> None:
    """One bit of what the device gives is turned before it is looked at."""
    real = opening.answer_of

    def turned(device: Any, case: Any) -> Any:
        answer = real(device, case)
        answer[0] ^= np.uint32(case.feature == feature)
        return answer

    monkeypatch.setattr(opening, "answer_of", turned)
    with caplog.at_level(logging.INFO, "poot_vulkan_device.opening"), open_device() as device:
        assert feature not in device.target.caps.features
        assert device.switched_off[feature]
        assert device.target.caps.subgroup_width is None or feature != SUBGROUP
    assert f"vulkan: {feature} is switched off: {device.switched_off[feature]}" in caplog.text


def varying(table: Any, greatest: int) -> None:
    """Let a physical device say that its subgroups are of 8 to so many threads, as its pipelines ask."""
    from poot_vulkan_device.api import ffi, number

    wanted = number("VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES")

    def widen(_physical: Any, properties: Any) -> None:
        following = properties.pNext
        while following != ffi.NULL:
            base = ffi.cast("VkBaseOutStructure *", following)
            if base.sType == wanted:
                ffi.cast("VkPhysicalDeviceSubgroupSizeControlProperties *", base).maxSubgroupSize = greatest
            following = base.pNext

    table.after["vkGetPhysicalDeviceProperties2"] = widen


@pytest.mark.device("vulkan")
def test_a_width_that_pipelines_ask_for_is_proved(
    open_device: Callable[..., VulkanDevice], new_table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device of several widths: its default is asked for, and stands where its threads report it."""
    table = new_table()
    varying(table, 32)
    with open_device(functions=table) as device:
        if SIZE_CONTROL not in device.adapter.features:
            pytest.skip("this device has no subgroup size control")
        assert device.adapter.subgroup[1] < device.adapter.subgroup[2]
        width = device.target.caps.subgroup_width
        assert width == device.adapter.subgroup[0]
    real, seen = opening.answer_of, []

    def other(device: Any, case: Any) -> Any:
        answer = real(device, case)
        if case.feature == SUBGROUP:
            seen.append(case)
            if len(seen) == 2:
                # Right in itself, and of another width than was asked for.
                answer = np.array(expected_of(case, 16), np.uint32)
        return answer

    monkeypatch.setattr(opening, "answer_of", other)
    with open_device(functions=table) as device:
        assert device.target.caps.subgroup_width is None
        assert "16 threads where 8 were asked for" in device.switched_off[SIZE_CONTROL]


def expected_of(case: Any, width: int) -> np.ndarray:
    """What the subgroup case's kernel gives where subgroups have that width, by the interpreter."""
    from poot_eval.kernel_ir import run_kernel

    arrays = [case.given.copy(), np.zeros(case.given.size * case.per_thread, np.uint32)]
    run_kernel(case.kernel, arrays, (case.given.size // case.kernel.group_size, 1, 1), subgroup_width=width)
    return arrays[1]
