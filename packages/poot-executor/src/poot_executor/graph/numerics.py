"""How the numpy rules compute: precision, order, and the rounding of a result to its dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType, round_bf16

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of float rules.

    `precision` is that of transcendentals, sums and contractions: "f64" rounds once to f32 at the
    end of the operation, "f32" rounds at every step, as a device does. Operations that IEEE 754
    rounds correctly (add, mul, div, sqrt ...) give the same value either way. `order` is that of
    sums and contractions: "ascending" adds terms one by one, so that a result depends neither on
    shape nor on merging; "blas" is the fast order of numpy.
    """

    precision: Literal["f64", "f32"] = "f64"
    order: Literal["ascending", "blas"] = "ascending"

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype of that precision."""
        return np.dtype(np.float64 if self.precision == "f64" else np.float32)


ORACLE = Arithmetic()
"""What constant folding uses and what the oracle uses unless told otherwise."""


def to_dtype(x: Array, dtype: DType) -> Array:
    """Float values rounded to a float dtype: to f32 first and then to a narrower one, as a device
    does; every NaN is the canonical quiet one. Integers and bools are held as they are."""
    if not dtype.is_float:
        return np.asarray(x, dtype.numpy)
    single = np.asarray(x, np.float32)
    nan = np.isnan(single)
    if nan.any():
        single = np.where(nan, np.float32(np.nan), single)
    return narrow(single, dtype)


def narrow(single: NDArray[np.float32], dtype: DType) -> Array:
    """float32 values to f32, f16 or bf16, ties to even; an f32 NaN keeps its bits."""
    if dtype is DType.BF16:
        return round_bf16(single).reshape(single.shape)
    return np.asarray(single, dtype.numpy)


def ascending_sum(x: Array, axis: int, arithmetic: Arithmetic) -> Array:
    """The sum over one axis in the given arithmetic, not rounded to a dtype yet."""
    if arithmetic.order == "blas":
        return np.asarray(x.sum(axis=axis, dtype=arithmetic.numpy))
    terms = np.moveaxis(x, axis, 0)
    total = terms[0].astype(arithmetic.numpy)
    for term in terms[1:]:
        total = total + term
    return np.asarray(total)


def ascending_matmul(a: Array, b: Array, arithmetic: Arithmetic) -> Array:
    """a[..., m, k] @ b[..., k, n] in the given arithmetic, not rounded to a dtype yet."""
    a, b = a.astype(arithmetic.numpy), b.astype(arithmetic.numpy)
    if arithmetic.order == "blas":
        return a @ b
    total = a[..., :, 0, None] * b[..., 0, None, :]
    for k in range(1, a.shape[-1]):
        total += a[..., :, k, None] * b[..., k, None, :]
    return total
