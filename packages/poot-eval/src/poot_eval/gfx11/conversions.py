"""Conversions between number types: to whole numbers towards zero, saturating, a NaN to 0; to floats to the nearest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.rules import Rule, rule

Array = NDArray[Any]
Function = Callable[..., Array]


def to_integer(dtype: str, rounding: Function = np.trunc) -> Function:
    """Floats to a whole number type."""
    limits = np.iinfo(dtype)

    def convert(x: Array) -> Array:
        whole = rounding(x.astype(np.float64))
        kept = np.where(np.isnan(whole), 0.0, np.clip(whole, float(limits.min), float(limits.max)))
        return kept.astype(np.int64).astype(dtype)

    return convert


def _cast(dtype: str) -> Function:
    return lambda x: x.astype(dtype)


def toward_zero_half(x: Array) -> Array:
    """float32 to float16, rounded towards zero: what is too large becomes the largest half."""
    half = x.astype(np.float16)
    away = np.abs(half.astype(np.float32)) > np.abs(x)
    bits = half.view(np.uint16)
    return np.where(away, bits - np.uint16(1), bits).view(np.float16)


def _pack(low: Array, high: Array) -> Array:
    low, high = np.broadcast_arrays(low, high)
    return low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << np.uint32(16)


def _pack_saturated(dtype: str) -> Function:
    limits = np.iinfo(dtype)

    def convert(a: Array, b: Array) -> Array:
        low, high = (np.clip(x.astype(np.int64), limits.min, limits.max).astype(dtype) for x in (a, b))
        return _pack(*np.broadcast_arrays(low, high))

    return convert


def _byte(shift: int) -> Function:
    return lambda x: ((x >> np.uint32(shift)) & np.uint32(0xFF)).astype(np.float32)


def _pack_byte(value: Array, place: Array, word: Array) -> Array:
    byte = np.clip(np.nan_to_num(np.rint(value.astype(np.float64))), 0, 255).astype(np.uint32)
    shift = (place & np.uint32(3)) << np.uint32(3)
    return (word & ~(np.uint32(0xFF) << shift)) | byte << shift


def _normalised(dtype: str, scale: float) -> Function:
    convert = to_integer(dtype, np.rint)
    return lambda a, b: _pack(
        *(convert(np.clip(x.astype(np.float64), -1 if dtype == "i2" else 0, 1) * scale) for x in (a, b))
    )


CONVERSIONS: dict[str, Rule] = {
    "v_cvt_f32_i32": rule("f32 i32", _cast("f4")), "v_cvt_f32_u32": rule("f32 u32", _cast("f4")),
    "v_cvt_f64_i32": rule("f64 i32", _cast("f8")), "v_cvt_f64_u32": rule("f64 u32", _cast("f8")),
    "v_cvt_f64_f32": rule("f64 f32", _cast("f8")), "v_cvt_f32_f64": rule("f32 f64", _cast("f4")),
    "v_cvt_f32_f16": rule("f32 f16", _cast("f4")), "v_cvt_f16_f32": rule("f16 f32", _cast("f2")),
    "v_cvt_f16_u16": rule("f16 u16", _cast("f2")), "v_cvt_f16_i16": rule("f16 i16", _cast("f2")),
    "v_cvt_i32_i16": rule("i32 i16", _cast("i4")), "v_cvt_u32_u16": rule("u32 u16", _cast("u4")),
    "v_cvt_i32_f32": rule("i32 f32", to_integer("i4")), "v_cvt_u32_f32": rule("u32 f32", to_integer("u4")),
    "v_cvt_i32_f64": rule("i32 f64", to_integer("i4")), "v_cvt_u32_f64": rule("u32 f64", to_integer("u4")),
    "v_cvt_i16_f16": rule("i16 f16", to_integer("i2")), "v_cvt_u16_f16": rule("u16 f16", to_integer("u2")),
    "v_cvt_floor_i32_f32": rule("i32 f32", to_integer("i4", np.floor)),
    "v_cvt_flr_i32_f32": rule("i32 f32", to_integer("i4", np.floor)),
    "v_cvt_nearest_i32_f32": rule("i32 f32", to_integer("i4", lambda x: np.floor(x + 0.5))),
    "v_cvt_rpi_i32_f32": rule("i32 f32", to_integer("i4", lambda x: np.floor(x + 0.5))),
    "v_cvt_pk_rtz_f16_f32": rule("u32 f32 f32", lambda a, b: _pack(toward_zero_half(a), toward_zero_half(b))),
    "v_cvt_pkrtz_f16_f32": rule("u32 f32 f32", lambda a, b: _pack(toward_zero_half(a), toward_zero_half(b))),
    "v_cvt_pk_i16_i32": rule("u32 i32 i32", _pack_saturated("i2")),
    "v_cvt_pk_u16_u32": rule("u32 u32 u32", _pack_saturated("u2")),
    "v_cvt_pk_i16_f32": rule("u32 f32 f32", lambda a, b: _pack(to_integer("i2")(a), to_integer("i2")(b))),
    "v_cvt_pk_u16_f32": rule("u32 f32 f32", lambda a, b: _pack(to_integer("u2")(a), to_integer("u2")(b))),
    "v_cvt_pk_norm_i16_f32": rule("u32 f32 f32", _normalised("i2", 32767)),
    "v_cvt_pk_norm_u16_f32": rule("u32 f32 f32", _normalised("u2", 65535)),
    "v_cvt_pk_u8_f32": rule("u32 f32 u32 u32", _pack_byte),
    "v_pack_b32_f16": rule("u32 f16 f16", _pack),
    **{f"v_cvt_f32_ubyte{i}": rule("f32 u32", _byte(8 * i)) for i in range(4)},
}  # fmt: skip
"""Rules by mnemonic."""
