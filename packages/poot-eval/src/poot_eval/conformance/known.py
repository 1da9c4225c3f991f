"""Known answers on a device: what is on gives them, and one wrong bit anywhere is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.inputs import Rng
from poot_eval.kernel_values import fma
from poot_executor.kernel.fragments import FEATURE as FRAGMENTS
from poot_executor.kernel.ir import KERNEL_OPS
from poot_executor.kernel_device import KernelDevice
from poot_executor.known_answers import GROUP, SUBGROUP, Words, answer_of, cases, subgroup_width
from poot_executor.known_arithmetic import CONTRACTION, DENORMALS, FUSED, arithmetic_cases
from poot_executor.known_fragments import fragment_case

CASES = {case.feature: case for case in (*cases(), *arithmetic_cases())}
ARITHMETIC = frozenset({CONTRACTION, DENORMALS, FUSED})


def answers(device: KernelDevice, feature: str) -> Words:
    """What the device gives, where it states that it is right; else the test is skipped."""
    caps = device.target.caps
    stated = {CONTRACTION: not caps.contracts, DENORMALS: not caps.flushes_denormals, FUSED: not caps.errors.get("fma")}
    # A target that fuses, or flushes, without having been asked is not asked here either.
    if not stated.get(feature, feature in caps.features) or (caps.contracts and feature in ARITHMETIC):
        pytest.skip(f"this device has no {feature}")
    return answer_of(device, CASES[feature])


class KnownAnswerConformance:
    """Features that are on were proved, and stay so."""

    def test_every_optional_operation_that_the_device_has_is_proved(self, device: KernelDevice) -> None:
        """What the operation table needs and the caps name has a case."""
        needed = {row.needs for row in KERNEL_OPS.values()} & device.target.caps.features
        assert needed <= {*CASES, FRAGMENTS}

    def test_matrix_products_are_right(self, device: KernelDevice) -> None:
        """Each that the caps name."""
        caps = device.target.caps
        if not caps.fragments or caps.subgroup_width is None:
            pytest.skip("this device has no matrix fragments")
        for shape in caps.fragments:
            case = fragment_case(shape, caps.subgroup_width)
            assert case.wrong(case.given, answer_of(device, case)) is None

    @pytest.mark.parametrize("feature", CASES)
    def test_a_feature_that_is_on_answers_right(self, device: KernelDevice, feature: str) -> None:
        """In every bit."""
        case = CASES[feature]
        assert case.wrong(case.given, answers(device, feature)) is None

    @pytest.mark.parametrize("feature", CASES)
    def test_one_wrong_bit_is_noticed(self, device: KernelDevice, rng: Rng, feature: str) -> None:
        """Wherever it is; of NaN a few bits do not matter."""
        case = CASES[feature]
        right = answers(device, feature)
        noticed = 0
        for place in rng.choice(right.size, 40, replace=False):
            wrong = right.copy()
            wrong[place] ^= np.uint32(1)
            noticed += case.wrong(case.given, wrong) is not None
        assert noticed == 40 if feature in {SUBGROUP, "dot4", *ARITHMETIC} else noticed >= 25

    def test_what_is_expected_of_a_fused_product_is_exact(self, device: KernelDevice) -> None:
        """The case rounds twice, once to float64; the interpreter's fma rounds once."""
        case = CASES[FUSED]
        x, y, z = (case.given ^ np.uint32(mask) for mask in (0, 0x00155555, 0x002AAAAA))
        exact = fma(*(v.view(np.float32) for v in (x, y, z)))
        assert case.wrong(case.given, exact.view(np.uint32)) is None
        twice = x.view(np.float32) * y.view(np.float32) + z.view(np.float32)
        assert case.wrong(case.given, twice.view(np.uint32)) is not None

    def test_cases_are_of_whole_groups(self, device: KernelDevice) -> None:
        """And of no more threads than there are words."""
        assert all(case.given.size % GROUP == 0 for case in CASES.values())

    def test_threads_that_disagree_have_no_width(self, device: KernelDevice) -> None:
        """One thread of another opinion is enough."""
        case = CASES[SUBGROUP]
        answer = np.full(case.given.size * 8, 8, np.uint32)
        assert subgroup_width(answer) == 8
        answer[80] = 16
        assert subgroup_width(answer) == 0
        assert case.wrong(case.given, answer) == "subgroups of 0 threads"
