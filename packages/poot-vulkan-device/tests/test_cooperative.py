"""Matrix products of subgroups: what a driver lists as data, and what of it kernels may use."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from poot_executor.dtype import DType
from poot_executor.kernel.fragments import FragmentShape

F16, F32, I8, I32, BFLOAT16 = 0, 1, 3, 5, 1000141000
SUBGROUP, DEVICE = 3, 1
ALL = frozenset({"cooperative", "cooperative_robust", "memory_model", "float16", "int8", "bfloat16"})

pytestmark = pytest.mark.device("vulkan")


def listed(factors: int = F16, sums: int = F32, scope: int = SUBGROUP, **changed: Any) -> Any:
    """A row of a driver's list."""
    from poot_vulkan_device.api import typed

    fields = {
        "MSize": 16, "NSize": 8, "KSize": 32, "AType": factors, "BType": factors, "CType": sums, "ResultType": sums,
        "saturatingAccumulation": 0, "scope": scope,
    }  # fmt: skip
    return typed("VkCooperativeMatrixPropertiesKHR", "COOPERATIVE_MATRIX_PROPERTIES_KHR", **{**fields, **changed})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, FragmentShape(16, 8, 32, DType.F16, DType.F32)),
        ({"factors": BFLOAT16}, FragmentShape(16, 8, 32, DType.BF16, DType.F32)),
        ({"factors": I8, "sums": I32}, FragmentShape(16, 8, 32, DType.I8, DType.I32)),
        ({"sums": F16}, None),
        ({"factors": I8}, None),
        ({"factors": F32}, None),
        ({"factors": 7, "sums": I32}, None),
        ({"scope": DEVICE}, None),
        ({"BType": I8}, None),
        ({"ResultType": F16}, None),
        ({"saturatingAccumulation": 1}, None),
        ({"KSize": 24}, None),
    ],
)
def test_rows_of_a_driver_s_list(device: Any, row: dict[str, Any], expected: FragmentShape | None) -> None:
    from poot_vulkan_device.cooperative import _shape

    assert _shape(listed(**row), ALL) == expected


@pytest.mark.parametrize(("factors", "feature"), [(F16, "float16"), (BFLOAT16, "bfloat16")])
def test_a_factor_s_type_is_a_feature_of_its_own(device: Any, factors: int, feature: str) -> None:
    from poot_vulkan_device.cooperative import _shape

    assert _shape(listed(factors), ALL) is not None
    assert _shape(listed(factors), ALL - {feature}) is None


@pytest.mark.parametrize("missing", ["cooperative", "memory_model"])
def test_without_what_products_need_the_driver_is_not_asked(device: Any, new_table: Any, missing: str) -> None:
    from poot_vulkan_device.cooperative import fragment_shapes

    table = new_table()
    assert fragment_shapes(table, None, None, ALL - {missing}) == ()
    assert not table.calls


def test_structures_are_chained_once_each(device: Any) -> None:
    """Two features of one structure, and a structure that the bindings do not know."""
    from poot_vulkan_device import cooperative as c
    from poot_vulkan_device.api import ffi
    from poot_vulkan_device.instance import feature_chain, link

    chain = feature_chain(frozenset({c.COOPERATIVE_MATRIX, c.MEMORY_MODEL, c.NARROW, c.BFLOAT16}))
    assert {feature for _, _, feature in chain} == {*ALL, "bfloat16_type"}
    following = link([structure for structure, _, _ in chain])
    kinds = []
    while following != ffi.NULL:
        base = ffi.cast("VkBaseOutStructure *", following)
        kinds.append(base.sType)
        following = base.pNext
    assert len(kinds) == len(set(kinds)) == 4
    assert c.BFLOAT16_FEATURES in kinds
    assert feature_chain(frozenset({c.MEMORY_MODEL, c.NARROW})) == []


def test_what_the_device_has_is_in_its_caps(device: Any) -> None:
    """As far as it was proved: what was wrong is told by its shape."""
    caps, named = device.target.caps, device.adapter.fragments
    assert set(caps.fragments) <= set(named)
    assert ("fragments" in caps.features) == bool(caps.fragments)
    off = {str(shape) for shape in named} - {str(shape) for shape in caps.fragments}
    assert caps.subgroup_width is None or off <= set(device.switched_off)


def test_products_that_are_wrong_are_off_and_the_others_stay(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that an adapter names one answers wrongly: by the interpreter's answers, one of them turned."""
    from poot_eval.kernel_ir import run_kernel
    from poot_vulkan_device import opening

    shapes = tuple(FragmentShape(16, 16, depth, DType.F16, DType.F32) for depth in (8, 16, 32))

    def interpreted(_device: Any, case: Any) -> Any:
        import numpy as np

        groups = case.given.size // case.kernel.group_size
        answer = np.zeros(case.given.size * case.per_thread, np.float32)
        run_kernel(case.kernel, [case.given.copy(), answer], (groups, 1, 1), subgroup_width=32)
        answer[0] += case.feature == str(shapes[1])
        return answer.view(np.uint32)

    class Named:
        """As much of a device as the products' proof looks at."""

        adapter = dataclasses.replace(device.adapter, fragments=shapes)

        def settle(self, caps: Any, off: Any) -> None:
            self.caps = caps

    monkeypatch.setattr(opening, "answer_of", interpreted)
    caps = dataclasses.replace(device.target.caps, subgroup_width=32)
    proved, off = opening._with_fragments(Named(), caps, {"dot4": "wrong"})
    assert proved.fragments == (shapes[0], shapes[2])
    assert "fragments" in proved.features
    assert off == {"dot4": "wrong", str(shapes[1]): f"products {shapes[1]} are wrong"}
