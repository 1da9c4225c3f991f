"""Known answers: a device's own pass, one wrong bit anywhere is noticed, and what is wrong is off and said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poot_eval.kernel_values import fma
from poot_executor.kernel.ir import KERNEL_OPS
from poot_vulkan_device.known_answers import CONTRACTION, DENORMALS, FUSED, GROUP, Case, cases, subgroup_width
from poot_vulkan_device.opening import settled

CASES = {case.feature: case for case in cases()}
ARITHMETIC = {CONTRACTION, DENORMALS, FUSED}


def answers(run: Any, device: Any, case: Case) -> np.ndarray:
    caps = device.target.caps
    stated = {CONTRACTION: not caps.contracts, DENORMALS: not caps.flushes_denormals, FUSED: not caps.errors.get("fma")}
    if not stated.get(case.feature, case.feature in caps.features):
        pytest.skip(f"this device has no {case.feature}: {device.switched_off.get(case.feature, 'not named')}")
    given, count = case.given, case.given.size
    (answer,) = run(case.kernel, [given, np.zeros(count * case.per_thread, np.uint32)], count // GROUP)
    return answer


def test_every_optional_operation_has_a_case() -> None:
    assert {row.needs for row in KERNEL_OPS.values()} - {None} <= set(CASES)


def test_what_is_expected_of_a_fused_product_is_exact() -> None:
    """The case rounds twice, once to float64; the interpreter's fma rounds once."""
    case = CASES[FUSED]
    x, y, z = (case.given ^ np.uint32(mask) for mask in (0, 0x00155555, 0x002AAAAA))
    exact = fma(*(v.view(np.float32) for v in (x, y, z)))
    assert case.wrong(case.given, exact.view(np.uint32)) is None
    twice = x.view(np.float32) * y.view(np.float32) + z.view(np.float32)
    assert case.wrong(case.given, twice.view(np.uint32)) is not None


def test_whole_groups_and_no_more() -> None:
    assert all(case.given.size % GROUP == 0 for case in CASES.values())


@pytest.mark.device("vulkan")
@pytest.mark.parametrize("feature", CASES)
def test_a_feature_that_is_on_answers_right(device: Any, run: Any, feature: str) -> None:
    case = CASES[feature]
    assert case.wrong(case.given, answers(run, device, case)) is None


@pytest.mark.device("vulkan")
@pytest.mark.parametrize("feature", CASES)
def test_one_wrong_bit_is_noticed(device: Any, run: Any, rng: np.random.Generator, feature: str) -> None:
    case = CASES[feature]
    right = answers(run, device, case)
    noticed = 0
    for place in rng.choice(right.size, 40, replace=False):
        wrong = right.copy()
        wrong[place] ^= np.uint32(1)
        noticed += case.wrong(case.given, wrong) is not None
    # One NaN is as good as another, so a few bits do not matter.
    assert noticed == 40 if feature in ("subgroup", "dot4", *ARITHMETIC) else noticed >= 25


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


def test_threads_that_disagree_have_no_width() -> None:
    answer = np.full(CASES["subgroup"].given.size * 8, 8, np.uint32)
    assert subgroup_width(answer) == 8
    answer[80] = 16
    assert subgroup_width(answer) == 0
    assert CASES["subgroup"].wrong(CASES["subgroup"].given, answer) == "subgroups of 0 threads"
