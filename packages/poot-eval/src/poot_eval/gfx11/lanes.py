"""Bits a lane: carries, comparisons, selections by a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.rules import Rule, rule

Array = NDArray[Any]

_LOW = np.uint64(0xFFFFFFFF)


def _sum(a: Array, b: Array, carry: Array | None = None) -> tuple[Array, Array]:
    total = a.astype(np.uint64) + b.astype(np.uint64)
    if carry is not None:
        total = total + carry
    return (total & _LOW).astype(np.uint32), total > _LOW


def _difference(a: Array, b: Array, borrow: Array | None = None) -> tuple[Array, Array]:
    result = a.astype(np.int64) - b.astype(np.int64)
    if borrow is not None:
        result = result - borrow
    return (result.view(np.uint64) & _LOW).astype(np.uint32), result < 0


def _wide_u64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = a.astype(np.uint64) * b.astype(np.uint64) + c
    return total, total < c


def _wide_i64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    product = a.astype(np.int64) * b.astype(np.int64)
    total = product + c
    return total, ((product ^ total) & (c ^ total)) < 0


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
}  # fmt: skip

_FLOAT_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    **{name: _COMPARISONS[name] for name in ("lt", "le", "gt", "ge", "eq", "f", "t")},
    "lg": lambda a, b: (a < b) | (a > b), "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b), "nle": lambda a, b: ~(a <= b), "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


def _class(x: Array, wanted: Array) -> Array:
    """Whether x is of one of the classes whose bits are on: signalling and quiet NaN, then from -inf to +inf."""
    kind = np.dtype(f"u{x.dtype.itemsize}")
    info = np.finfo(x.dtype)
    bits, negative = x.view(kind), np.signbit(x)
    quiet = (bits >> kind.type(info.nmant - 1) & kind.type(1)).astype(np.bool_)
    small = (x != 0) & (np.abs(x) < info.tiny)
    normal = np.isfinite(x) & (np.abs(x) >= info.tiny)
    classes = [
        np.isnan(x) & ~quiet, np.isnan(x) & quiet, np.isneginf(x), normal & negative, small & negative,
        (x == 0) & negative, (x == 0) & ~negative, small & ~negative, normal & ~negative, np.isposinf(x),
    ]  # fmt: skip
    found = np.zeros(np.broadcast_shapes(x.shape, wanted.shape), np.bool_)
    for bit, matches in enumerate(classes):
        found |= matches & (wanted >> wanted.dtype.type(bit) & wanted.dtype.type(1)).astype(np.bool_)
    return found


_INTEGERS = ("u16", "i16", "u32", "i32", "u64", "i64")
_FLOATS = ("f16", "f32", "f64")

LANES: dict[str, Rule] = {
    "v_add_co_u32": rule("u32,lanes u32 u32", _sum), "v_add_co_ci_u32": rule("u32,lanes u32 u32 lanes", _sum),
    "v_sub_co_u32": rule("u32,lanes u32 u32", _difference),
    "v_sub_co_ci_u32": rule("u32,lanes u32 u32 lanes", _difference),
    "v_subrev_co_u32": rule("u32,lanes u32 u32", lambda a, b: _difference(b, a)),
    "v_subrev_co_ci_u32": rule("u32,lanes u32 u32 lanes", lambda a, b, m: _difference(b, a, m)),
    "v_mad_u64_u32": rule("u64,lanes u32 u32 u64", _wide_u64),
    "v_mad_i64_i32": rule("i64,lanes i32 i32 i64", _wide_i64),
    "v_cndmask_b32": rule("f32 f32 f32 lanes", lambda a, b, m: np.where(m, b, a), exact=True),
    "v_cndmask_b16": rule("f16 f16 f16 lanes", lambda a, b, m: np.where(m, b, a), exact=True),
    **{
        f"v_cmp_{name}_{t}": rule(f"lanes {t} {t}", compare)
        for types, comparisons in ((_INTEGERS, _COMPARISONS), (_FLOATS, _FLOAT_COMPARISONS))
        for t in types
        for name, compare in comparisons.items()
    },
    **{
        f"v_cmp_class_{t}": rule(f"lanes {t} {'u16' if t == 'f16' else 'u32'}", _class, exact=True) for t in _FLOATS
    },
}  # fmt: skip
"""Rules by mnemonic; `v_cmpx` is the same comparison, written to EXEC."""
