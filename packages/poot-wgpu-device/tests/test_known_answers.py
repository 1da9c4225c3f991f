"""What `open` makes of known answers: what is wrong is off, and said."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poot_executor.known_answers import DOT4, PACK_HALF, SUBGROUP
from poot_wgpu_device import opening
from poot_wgpu_device.caps import ALWAYS_TRIED
from poot_wgpu_device.device import WgpuDevice

pytestmark = pytest.mark.device("wgpu")


def test_what_is_off_is_reported(device: Any) -> None:
    features = device.target.caps.features
    assert not features & set(device.switched_off)
    assert features | set(device.switched_off) >= ALWAYS_TRIED
    assert all(device.switched_off.values())


@pytest.mark.parametrize("feature", [SUBGROUP, DOT4, PACK_HALF])
def test_a_wrong_answer_switches_the_feature_off_and_is_logged(
    open_device: Callable[..., WgpuDevice],
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
    with caplog.at_level(logging.INFO, "poot_wgpu_device.opening"), open_device() as device:
        assert feature not in device.target.caps.features
        assert device.switched_off[feature]
        assert device.target.caps.subgroup_width is None or feature != SUBGROUP
    assert f"wgpu: {feature} is switched off: {device.switched_off[feature]}" in caplog.text
