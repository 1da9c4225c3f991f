"""Known answers: a device's own pass, and one wrong bit anywhere is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poot_executor.kernel.ir import KERNEL_OPS
from poot_wgpu_device.caps import ALWAYS_TRIED
from poot_wgpu_device.known_answers import GROUP, WORDS, Case, cases, subgroup_width

CASES = {case.feature: case for case in cases()}


def answers(run: Any, device: Any, case: Case) -> np.ndarray:
    if case.feature not in device.target.caps.features:
        pytest.skip(
            f"this adapter has no {case.feature}: {device.switched_off.get(case.feature, 'it does not name it')}"
        )
    (answer,) = run(case.kernel, [case.given, np.zeros(WORDS * case.per_thread, np.uint32)], WORDS // GROUP)
    return answer


def test_every_optional_operation_has_a_case() -> None:
    needed = {row.needs for row in KERNEL_OPS.values()} - {None}
    assert needed <= set(CASES)
    assert set(CASES) == ALWAYS_TRIED | {"subgroup"}


@pytest.mark.device("wgpu")
@pytest.mark.parametrize("feature", CASES)
def test_a_feature_that_is_on_answers_right(device: Any, run: Any, feature: str) -> None:
    case = CASES[feature]
    assert case.wrong(case.given, answers(run, device, case)) is None


@pytest.mark.device("wgpu")
@pytest.mark.parametrize("feature", CASES)
def test_one_wrong_bit_switches_the_feature_off(device: Any, run: Any, rng: np.random.Generator, feature: str) -> None:
    case = CASES[feature]
    right = answers(run, device, case)
    noticed = 0
    for place in rng.choice(right.size, 50, replace=False):
        wrong = right.copy()
        wrong[place] ^= np.uint32(1)
        noticed += case.wrong(case.given, wrong) is not None
    # One NaN is as good as another, so a few bits of halves do not matter.
    assert noticed == 50 if feature not in ("pack2x16float", "unpack2x16float") else noticed >= 40


@pytest.mark.device("wgpu")
def test_what_is_off_is_reported(device: Any) -> None:
    features = device.target.caps.features
    assert not features & set(device.switched_off)
    assert features | set(device.switched_off) >= ALWAYS_TRIED
    assert all(device.switched_off.values())


def test_threads_that_disagree_have_no_width() -> None:
    answer = np.full(WORDS * 8, 8, np.uint32)
    assert subgroup_width(answer) == 8
    answer[80] = 16
    assert subgroup_width(answer) == 0
    assert CASES["subgroup"].wrong(CASES["subgroup"].given, answer) == "subgroups of 0 threads"
