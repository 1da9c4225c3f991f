"""The numpy rules of elementwise operations, reductions, contractions and movement.

A rule takes arrays as numpy holds values (see `poot_executor.dtype`), params, the result's type and
the arithmetic. Rules do not change their operands; the result may be a view of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from poot_executor.dtype import BF16, BOOL, F16, F32, DType, round_bf16
from poot_executor.errors import GraphError
from poot_executor.graph.graph import TensorType
from poot_executor.graph.numerics import (
    Arithmetic,
    Array,
    ascending_matmul,
    ascending_sum,
    narrow,
    to_dtype,
)

Arrays = Sequence[Array]
Params = Mapping[str, Any]
Rule = Callable[[Arrays, Params, TensorType, Arithmetic], Array]


# Elementwise


def exact(function: Callable[..., Array]) -> Rule:
    """Correctly rounded operations: floats in f32, whatever the precision; integers wrap."""

    def rule(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
        if not out.dtype.is_float:
            return np.asarray(function(*arrays), out.dtype.numpy)
        return to_dtype(function(*(np.asarray(a, np.float32) for a in arrays)), out.dtype)

    return rule


def transcendental(function: Callable[..., Array]) -> Rule:
    """Operations evaluated in the precision of the arithmetic and then rounded."""

    def rule(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
        return to_dtype(function(*(a.astype(how.numpy) for a in arrays)), out.dtype)

    return rule


def negate(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """-x. Of a float it changes the sign bit and nothing else, NaN included."""
    return np.negative(arrays[0])


def absolute(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """|x|. Of a float it clears the sign bit, NaN included."""
    return np.abs(arrays[0])


def compare(function: Callable[[Array, Array], Array]) -> Rule:
    """Comparisons of values as they are held; the result is bool."""

    def rule(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
        return np.asarray(function(arrays[0], arrays[1]))

    return rule


def _nan(x: Array) -> Array:
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, np.bool_)


def maximum(a: Array, b: Array) -> Array:
    """The number where one is NaN; b where both are equal, so a zero's sign follows the order."""
    return np.where((a > b) | _nan(b), a, b)


def minimum(a: Array, b: Array) -> Array:
    """The number where one is NaN; b where both are equal."""
    return np.where((a < b) | _nan(b), a, b)


def _whole_divisor(b: Array, name: str) -> None:
    if not b.all():
        raise GraphError(f"{name}: an integer divisor is 0, which no target defines")


def divide(a: Array, b: Array) -> Array:
    """Floats: IEEE. Integers: towards zero."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    _whole_divisor(b, "div")
    wide, by = a.astype(np.int64), b.astype(np.int64)
    quotient = np.abs(wide) // np.abs(by)
    return np.where((wide < 0) == (by < 0), quotient, -quotient).astype(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    """The remainder of integer division towards zero: it has the sign of the dividend."""
    _whole_divisor(b, "rem")
    return np.fmod(a.astype(np.int64), b.astype(np.int64)).astype(a.dtype)


def shift_left(a: Array, count: Array) -> Array:
    """By the low 5 bits of the count."""
    return a << (count & a.dtype.type(31))


def shift_right(a: Array, count: Array) -> Array:
    """By the low 5 bits of the count; i32 keeps its sign."""
    return a >> (count & a.dtype.type(31))


def erf(x: Array) -> Array:
    """The error function, of C's libm."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype)  # of a 0-d array it gives a Python float


def select(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """The bits of one choice or the other."""
    return np.where(arrays[0], arrays[1], arrays[2])


def cast(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """To a float: rounded to nearest even through f32. Float to integer: towards zero, saturating,
    NaN is 0. Integer to integer: the low bits. To bool: x != 0; a bool is 0 or 1."""
    x, target = arrays[0], out.dtype
    if target is BOOL:
        return np.asarray(x != 0)
    if target.is_float:
        return narrow(np.asarray(x, np.float32), target)
    if x.dtype.kind == "f":
        info = np.iinfo(target.numpy)
        whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
        return np.clip(whole, info.min, info.max).astype(target.numpy)
    return x.astype(target.numpy)


def bitcast(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """A result of 2 bytes from float32 values means that they are bf16, which numpy holds so."""
    x, target = np.ascontiguousarray(arrays[0]).reshape(out.shape), out.dtype
    if target.size != 2:
        return x.view(target.numpy)
    bits = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if x.itemsize == 4 else x.view(np.uint16)
    if target is F16:
        return bits.view(np.float16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


# Reductions and contractions


def sum_(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """The sum over an axis in the order and precision asked for; integers wrap."""
    if not out.dtype.is_float:
        return np.asarray(arrays[0].sum(axis=params["axis"], dtype=out.dtype.numpy))
    return to_dtype(ascending_sum(arrays[0], params["axis"], how), out.dtype)


def without_nan(x: Array) -> Array:
    """NaN counts as -inf wherever values are ranked, so that no order of comparisons shows."""
    return np.where(np.isnan(x), x.dtype.type(-np.inf), x) if x.dtype.kind == "f" else x


def reduce_max(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """The greatest over an axis."""
    return np.asarray(without_nan(arrays[0]).max(axis=params["axis"]))


def argmax(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """The lowest index of the greatest over an axis."""
    return np.asarray(without_nan(arrays[0]).argmax(axis=params["axis"]), np.int32)


def matmul(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """The batched product, rounded to f32."""
    return to_dtype(ascending_matmul(arrays[0], arrays[1], how), F32)


def indexed_matmul(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Each row times the matrix that its index names, rounded to f32."""
    x, w, index = arrays
    check_index("indexed_matmul", index, w.shape[0])
    result = np.empty(out.shape, np.float32)
    for expert in np.unique(index):
        rows = index == expert
        result[rows] = to_dtype(ascending_matmul(x[rows], w[expert], how), F32)
    return result


def check_index(name: str, index: Array, limit: int, low: int = 0) -> None:
    """Raise GraphError for the first index outside [low, limit): a fault, never clamped."""
    wrong = np.argwhere((index < low) | (index >= limit))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        value = int(index[place])
        raise GraphError(f"{name}: index {value} at {list(place)} is outside [{low}, {limit}): a fault")


# Movement


def reshape(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """The same elements in row-major order."""
    return arrays[0].reshape(out.shape)


def transpose(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Axes in another order."""
    return arrays[0].transpose(params["permutation"])


def broadcast(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Dimensions of 1 repeated."""
    return np.broadcast_to(arrays[0], out.shape)


def slice_(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Every step-th element of [start, stop) of each axis."""
    bounds = zip(params["start"], params["stop"], params["step"], strict=True)
    return np.asarray(arrays[0][tuple(slice(*b) for b in bounds)])


def concat(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Operands one after another."""
    return np.concatenate(arrays, axis=params["axis"])


def pad(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """A constant around the operand."""
    result = literal(params["value"], out.dtype, out.shape)
    low = params["low"]
    result[tuple(slice(a, a + d) for a, d in zip(low, arrays[0].shape, strict=True))] = arrays[0]
    return result


def literal(value: float | bool, dtype: DType, shape: tuple[int, ...] = ()) -> Array:
    """A fresh array that holds one Python number, rounded to a float dtype."""
    if dtype is BF16:
        return np.full(shape, round_bf16(np.full((1,), value, np.float32))[0])
    return np.full(shape, value, dtype.numpy)


def iota(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """0, 1, 2 ... along an axis."""
    shape = [1] * len(out.shape)
    shape[params["axis"]] = -1
    line = np.arange(out.shape[params["axis"]], dtype=out.dtype.numpy)
    return np.broadcast_to(line.reshape(shape), out.shape)


# Indexed movement


def gather(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Rows by index. Raises GraphError for an index out of range."""
    data, index = arrays
    check_index("gather", index, data.shape[0])
    return np.asarray(data[index])


def scatter_update(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Rows replaced. Raises GraphError for an index out of range or one that occurs twice."""
    data, index, updates = arrays
    kept = index >= 0
    check_index("scatter_update", np.where(kept, index, 0), data.shape[0])
    places, counts = np.unique(index[kept], return_counts=True)
    if (counts > 1).any():
        twice = int(places[np.argmax(counts > 1)])
        raise GraphError(f"scatter_update: index {twice} occurs twice: which update wins is undefined")
    result = data.copy()
    result[index[kept]] = updates[kept]
    return result


def dynamic_update_slice(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """A block replaced. Raises GraphError for a start out of range."""
    (data, update, start), axis = arrays, params["axis"]
    first, limit = int(start), data.shape[axis] - update.shape[axis]
    if not 0 <= first <= limit:
        raise GraphError(f"dynamic_update_slice: start {first} is outside [0, {limit}]: a fault")
    place = [slice(0, n) for n in update.shape]
    place[axis] = slice(first, first + update.shape[axis])
    result = data.copy()
    result[tuple(place)] = update
    return result


def arg_top_k(arrays: Arrays, params: Params, out: TensorType, how: Arithmetic) -> Array:
    """Indices of the k greatest, by a stable sort."""
    x = without_nan(arrays[0])
    falling = -(x.astype(np.int64) if x.dtype.kind != "f" else x.astype(np.float32))
    return np.argsort(falling, axis=-1, kind="stable")[..., : params["k"]].astype(np.int32)
