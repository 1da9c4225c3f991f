"""What scalar instructions compute, as data: whole numbers and bits, one value a wave, and the condition SCC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import DTYPES, width
from poot_eval.gfx11.integers import (
    bit_count,
    field_i32,
    field_u32,
    high_i32,
    high_u32,
    leading_signs,
    leading_zeros,
    reverse,
    trailing_zeros,
)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ScalarRule:
    """`types` has the result's first. The function gives a value; with "some" SCC becomes whether it is not 0, with
    "given" the function gives SCC beside it, with "" SCC stays.
    """

    types: tuple[str, ...]
    function: Callable[..., Any]
    condition: str


def _entry(types: str, function: Callable[..., Any], condition: str = "") -> ScalarRule:
    return ScalarRule(tuple(types.split()), function, condition)


def _add_u32(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def add_i32(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum, and whether it left the range of the type."""
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_u32(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, b > a


def _sub_i32(a: Array, b: Array) -> tuple[Array, Array]:
    result = a - b
    return result, ((a ^ b) & (a ^ result)) < 0


def _absolute(a: Array) -> Array:
    return np.where(a < 0, -a, a).astype(a.dtype)


def _shift_add(count: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    def function(a: Array, b: Array) -> tuple[Array, Array]:
        total = (a.astype(np.uint64) << np.uint64(count)) + b
        return (total & np.uint64(0xFFFFFFFF)).astype(np.uint32), total > np.uint64(0xFFFFFFFF)

    return function


def _field(bits: int, signed: bool) -> Callable[[Array, Array], Array]:
    def function(x: Array, where: Array) -> Array:
        offset, count = where & np.uint32(bits - 1), (where >> np.uint32(16)) & np.uint32(0x7F)
        if bits == 32 and not signed:
            return np.where(count >= 32, x >> offset, field_u32(x, offset, count))
        if bits == 32:
            return np.where(count >= 32, x >> offset.view(np.int32), field_i32(x.view(np.uint32), offset, count))
        kind = x.dtype.type
        room = kind(64) - np.minimum(count, np.uint32(64)).astype(x.dtype)
        shifted = x >> offset.astype(x.dtype)
        kept = (shifted << np.minimum(room, kind(63))) >> np.minimum(room, kind(63))
        return np.where(count == 0, kind(0), kept)

    return function


def _mask(dtype: str) -> Callable[[Array, Array], Array]:
    kind = DTYPES[dtype].type
    limit = kind(width(dtype) - 1)
    return lambda n, at: ((kind(1) << (n.astype(kind) & limit)) - kind(1)) << (at.astype(kind) & limit)


def _shift(function: Any, bits: int) -> Callable[[Array, Array], Array]:
    return lambda x, n: function(x, (n & np.uint32(bits - 1)).astype(x.dtype))


def _set_bit(value: int) -> Callable[[Array, Array], Array]:
    def function(at: Array, old: Array) -> Array:
        bit = old.dtype.type(1) << (at & np.uint32(8 * old.dtype.itemsize - 1)).astype(old.dtype)
        return old | bit if value else old & ~bit

    return function


def _whole_quads(x: Array) -> Array:
    kind = x.dtype.type
    some = (x | x >> kind(1) | x >> kind(2) | x >> kind(3)) & kind(int("1" * (x.dtype.itemsize * 2), 16))
    return some * kind(15)


def _halves(x: Array, high: bool) -> Array:
    return x >> np.uint32(16) if high else x & np.uint32(0xFFFF)


def _bitwise(bits: int) -> dict[str, ScalarRule]:
    u, two = f"u{bits}", f"u{bits} u{bits} u{bits}"
    functions: dict[str, Callable[[Array, Array], Array]] = {
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "and_not1": lambda a, b: a & ~b,
        "or_not1": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b),
        "xnor": lambda a, b: ~(a ^ b),
    }  # fmt: skip
    return {
        **{f"s_{name}_b{bits}": _entry(two, function, "some") for name, function in functions.items()},
        f"s_not_b{bits}": _entry(f"{u} {u}", np.invert, "some"),
        f"s_mov_b{bits}": _entry(f"{u} {u}", np.positive),
        f"s_lshl_b{bits}": _entry(f"{u} {u} u32", _shift(np.left_shift, bits), "some"),
        f"s_lshr_b{bits}": _entry(f"{u} {u} u32", _shift(np.right_shift, bits), "some"),
        f"s_ashr_i{bits}": _entry(f"i{bits} i{bits} u32", _shift(np.right_shift, bits), "some"),
        f"s_bfm_b{bits}": _entry(f"{u} u32 u32", _mask(u)),
        f"s_bfe_u{bits}": _entry(f"{u} {u} u32", _field(bits, False), "some"),
        f"s_bfe_i{bits}": _entry(f"i{bits} i{bits} u32", _field(bits, True), "some"),
        f"s_bcnt0_i32_b{bits}": _entry(f"u32 {u}", lambda x: bit_count(~x).astype(np.uint32), "some"),
        f"s_bcnt1_i32_b{bits}": _entry(f"u32 {u}", lambda x: bit_count(x).astype(np.uint32), "some"),
        f"s_ctz_i32_b{bits}": _entry(f"i32 {u}", trailing_zeros),
        f"s_clz_i32_u{bits}": _entry(f"i32 {u}", leading_zeros),
        f"s_wqm_b{bits}": _entry(f"{u} {u}", _whole_quads, "some"),
        f"s_bitset0_b{bits}": _entry(f"{u} u32 +{u}", _set_bit(0)),
        f"s_bitset1_b{bits}": _entry(f"{u} u32 +{u}", _set_bit(1)),
    }  # fmt: skip


def _carries(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) + b.astype(np.uint64) + scc
    return (total & np.uint64(0xFFFFFFFF)).astype(np.uint32), total > np.uint64(0xFFFFFFFF)


def _borrows(a: Array, b: Array, scc: Array) -> tuple[Array, Array]:
    result = a.astype(np.int64) - b.astype(np.int64) - scc
    return (result.view(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32), result < 0


def _larger(a: Array, b: Array) -> tuple[Array, Array]:
    return np.maximum(a, b), a >= b


def _smaller(a: Array, b: Array) -> tuple[Array, Array]:
    return np.minimum(a, b), a < b


SCALAR_RULES: Mapping[str, ScalarRule] = MappingProxyType(
    {
        **_bitwise(32), **_bitwise(64),
        "s_add_u32": _entry("u32 u32 u32", _add_u32, "given"), "s_add_i32": _entry("i32 i32 i32", add_i32, "given"),
        "s_sub_u32": _entry("u32 u32 u32", _sub_u32, "given"), "s_sub_i32": _entry("i32 i32 i32", _sub_i32, "given"),
        "s_addc_u32": _entry("u32 u32 u32 scc", _carries, "given"),
        "s_subb_u32": _entry("u32 u32 u32 scc", _borrows, "given"),
        "s_min_u32": _entry("u32 u32 u32", _smaller, "given"), "s_min_i32": _entry("i32 i32 i32", _smaller, "given"),
        "s_max_u32": _entry("u32 u32 u32", _larger, "given"), "s_max_i32": _entry("i32 i32 i32", _larger, "given"),
        "s_mul_i32": _entry("u32 u32 u32", np.multiply),
        "s_mul_hi_u32": _entry("u32 u32 u32", high_u32), "s_mul_hi_i32": _entry("i32 i32 i32", high_i32),
        "s_abs_i32": _entry("i32 i32", _absolute, "some"),
        "s_absdiff_i32": _entry("i32 i32 i32", lambda a, b: _absolute(a - b), "some"),
        "s_brev_b32": _entry("u32 u32", reverse),
        "s_cls_i32": _entry("i32 i32", leading_signs),
        "s_sext_i32_i8": _entry("i32 i32", lambda x: x << np.int32(24) >> np.int32(24)),
        "s_sext_i32_i16": _entry("i32 i32", lambda x: x << np.int32(16) >> np.int32(16)),
        "s_cselect_b32": _entry("u32 u32 u32 scc", lambda a, b, scc: np.where(scc, a, b)),
        "s_cselect_b64": _entry("u64 u64 u64 scc", lambda a, b, scc: np.where(scc, a, b)),
        "s_cmov_b32": _entry("u32 u32 scc +u32", lambda a, scc, old: np.where(scc, a, old)),
        "s_cmov_b64": _entry("u64 u64 scc +u64", lambda a, scc, old: np.where(scc, a, old)),
        **{f"s_lshl{n}_add_u32": _entry("u32 u32 u32", _shift_add(n), "given") for n in (1, 2, 3, 4)},
        **{
            f"s_pack_{a}{b}_b32_b16": _entry(
                "u32 u32 u32", lambda x, y, a=a, b=b: _halves(x, a == "h") | _halves(y, b == "h") << np.uint32(16)
            )
            for a in "lh" for b in "lh"
        },
    }
)  # fmt: skip
"""By mnemonic."""

COMPARISONS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal, "lt": np.less,
        "le": np.less_equal,
    }
)  # fmt: skip
"""By the two letters in a mnemonic."""
