"""Shape and dtype rules of the op table: operand types and checked params give the result's type.

Rules raise `Mismatch` with a reason; the table turns it into a GraphError that names the operation
and its types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from poot_executor.dtype import BF16, BOOL, F16, F32, I32, U8, U32, DType
from poot_executor.errors import Unsupported
from poot_executor.formats import format_named
from poot_executor.graph.graph import TensorType

Types = Sequence[TensorType]
Params = Mapping[str, Any]
Inference = Callable[[Types, Params], TensorType]

FLOATS = (F32, F16, BF16)
NUMBERS = (*FLOATS, I32, U32)
INTS = (I32, U32)
BITS = (I32, U32, BOOL)


class Mismatch(ValueError):
    """Why operand types or params do not fit an operation."""


def need(condition: bool, reason: str) -> None:
    """Raise Mismatch unless the condition holds."""
    if not condition:
        raise Mismatch(reason)


def _dtype(type: TensorType, allowed: Sequence[DType], what: str = "operands") -> None:
    names = ", ".join(map(str, allowed))
    need(type.dtype in allowed, f"{what} must have dtype {names}, not {type.dtype}")


def _axis(axis: int, rank: int) -> None:
    need(0 <= axis < rank, f"axis {axis} is not in [0, {rank})")


def _positive(shape: Sequence[int]) -> None:
    need(all(d >= 1 for d in shape), f"shape {list(shape)} has a dimension below 1")


def unary(allowed: Sequence[DType]) -> Inference:
    """One operand; the result has its type."""

    def rule(types: Types, params: Params) -> TensorType:
        _dtype(types[0], allowed)
        return types[0]

    return rule


def binary(allowed: Sequence[DType]) -> Inference:
    """Two operands of one type, which is the result's."""

    def rule(types: Types, params: Params) -> TensorType:
        a, b = types
        _dtype(a, allowed)
        need(a == b, "operands must have one type: broadcast or cast one of them")
        return a

    return rule


def comparison(types: Types, params: Params) -> TensorType:
    """Two operands of one type; the result is bool."""
    return TensorType(binary(NUMBERS)(types, params).shape, BOOL)


def select(types: Types, params: Params) -> TensorType:
    """bool, and two choices of one type."""
    condition, a, b = types
    _dtype(condition, (BOOL,), "the condition")
    need(a == b, "both choices must have one type")
    need(condition.shape == a.shape, "the condition must have the choices' shape")
    return a


def cast(types: Types, params: Params) -> TensorType:
    """Any dtype to any."""
    return TensorType(types[0].shape, params["dtype"])


def bitcast(types: Types, params: Params) -> TensorType:
    """Dtypes of one size, bool apart."""
    source, target = types[0].dtype, params["dtype"]
    need(BOOL not in (source, target), "bool has no bits of its own: cast it")
    need(source.size == target.size, f"{source} and {target} differ in size")
    return TensorType(types[0].shape, target)


def reduction(allowed: Sequence[DType], result: DType | None = None) -> Inference:
    """One axis goes away; the dtype stays unless `result` names another."""

    def rule(types: Types, params: Params) -> TensorType:
        (x,), axis = types, params["axis"]
        _dtype(x, allowed)
        _axis(axis, len(x.shape))
        return TensorType(x.shape[:axis] + x.shape[axis + 1 :], result or x.dtype)

    return rule


def matmul(types: Types, params: Params) -> TensorType:
    """Equal leading dimensions; floats to f32."""
    a, b = types
    _dtype(a, FLOATS)
    _dtype(b, FLOATS)
    need(params["dtype"] is F32, f"the result is f32, not {params['dtype']}")
    need(len(a.shape) == len(b.shape) >= 2, "operands must have one rank, 2 or more")
    need(a.shape[:-2] == b.shape[:-2], "leading dimensions differ")
    need(a.shape[-1] == b.shape[-2], f"contracted dimensions are {a.shape[-1]} and {b.shape[-2]}")
    return TensorType((*a.shape[:-1], b.shape[-1]), F32)


def indexed_matmul(types: Types, params: Params) -> TensorType:
    """x[r, k], w[e, k, n], index i32[r] to f32[r, n]."""
    x, w, index = types
    _dtype(x, FLOATS)
    _dtype(w, FLOATS)
    need(len(x.shape) == 2 and len(w.shape) == 3, "x is [r, k] and w [e, k, n]")
    need(index == TensorType(x.shape[:1], I32), f"the index must be i32[{x.shape[0]}]")
    need(x.shape[1] == w.shape[1], f"contracted dimensions are {x.shape[1]} and {w.shape[1]}")
    return TensorType((x.shape[0], w.shape[2]), F32)


def reshape(types: Types, params: Params) -> TensorType:
    """As many elements."""
    (x,), shape = types, params["shape"]
    _positive(shape)
    need(prod(shape) == x.count, f"{list(shape)} has {prod(shape)} elements, not {x.count}")
    return TensorType(shape, x.dtype)


def transpose(types: Types, params: Params) -> TensorType:
    """A permutation of the axes."""
    (x,), order = types, params["permutation"]
    rank = len(x.shape)
    need(sorted(order) == list(range(rank)), f"{list(order)} is no permutation of {rank} axes")
    return TensorType(tuple(x.shape[i] for i in order), x.dtype)


def broadcast(types: Types, params: Params) -> TensorType:
    """The same rank; only 1 grows."""
    (x,), shape = types, params["shape"]
    _positive(shape)
    need(len(shape) == len(x.shape), f"{list(shape)} has another rank: reshape first")
    fits = all(a in (1, b) for a, b in zip(x.shape, shape, strict=True))
    need(fits, f"{list(x.shape)} does not broadcast to {list(shape)}: only 1 grows")
    return TensorType(shape, x.dtype)


def slice_(types: Types, params: Params) -> TensorType:
    """Within each axis and not empty."""
    (x,), dims = types, []
    start, stop, step = (params[k] for k in ("start", "stop", "step"))
    need(len(start) == len(stop) == len(step) == len(x.shape), "one start, stop and step an axis")
    for low, high, stride, dim in zip(start, stop, step, x.shape, strict=True):
        need(0 <= low < high <= dim, f"[{low}, {high}) is empty or outside [0, {dim})")
        need(stride >= 1, f"step {stride} is below 1")
        dims.append(-(-(high - low) // stride))
    return TensorType(tuple(dims), x.dtype)


def concat(types: Types, params: Params) -> TensorType:
    """Shapes that differ in one axis at most."""
    first, axis = types[0], params["axis"]
    _axis(axis, len(first.shape))
    for other in types[1:]:
        same = len(other.shape) == len(first.shape) and all(
            a == b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if i != axis
        )
        need(same and other.dtype is first.dtype, f"operands may differ in axis {axis} alone")
    total = sum(t.shape[axis] for t in types)
    return TensorType((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


def pad(types: Types, params: Params) -> TensorType:
    """Low and high an axis; the value is one of the dtype."""
    (x,), low, high = types, params["low"], params["high"]
    need(len(low) == len(high) == len(x.shape), "one low and one high an axis")
    need(all(n >= 0 for n in (*low, *high)), "padding is not negative: slice instead")
    check_literal(params["value"], x.dtype)
    shape = tuple(a + d + b for a, d, b in zip(low, x.shape, high, strict=True))
    return TensorType(shape, x.dtype)


def check_literal(value: float | bool, dtype: DType) -> None:
    """Raise Mismatch where a Python number is not a value of `dtype`: a bool for bool, an int in
    range for integers, any number for floats."""
    if dtype is BOOL:
        need(isinstance(value, bool), f"{value!r} is not a bool")
    elif dtype.is_int:
        need(isinstance(value, int) and not isinstance(value, bool), f"{value!r} is not an integer")
        info = np.iinfo(dtype.numpy)
        need(info.min <= value <= info.max, f"{value} does not fit {dtype}")
    else:
        need(not isinstance(value, bool), f"{value!r} is a bool, not a number")


def iota(types: Types, params: Params) -> TensorType:
    """A shape whose axis counts exactly in the dtype."""
    shape, axis, dtype = params["shape"], params["axis"], params["dtype"]
    _positive(shape)
    _axis(axis, len(shape))
    need(dtype in (I32, U32, F32), f"dtype is i32, u32 or f32, not {dtype}")
    limit = 1 << (24 if dtype is F32 else 31)
    need(shape[axis] <= limit, f"{shape[axis]} values do not fit {dtype} exactly")
    return TensorType(shape, dtype)


def gather(types: Types, params: Params) -> TensorType:
    """data[n, ...], index i32[...] to index.shape + data.shape[1:]."""
    data, index = types
    need(len(data.shape) >= 1, "data must have a first axis")
    _dtype(index, (I32,), "the index")
    return TensorType(index.shape + data.shape[1:], data.dtype)


def scatter_update(types: Types, params: Params) -> TensorType:
    """data[n, ...], index i32[m], updates[m, ...] to the data's type."""
    data, index, updates = types
    need(len(data.shape) >= 1, "data must have a first axis")
    need(len(index.shape) == 1 and index.dtype is I32, "the index must be i32[m]")
    expected = TensorType(index.shape + data.shape[1:], data.dtype)
    need(updates == expected, f"updates must be {expected}")
    return data


def dynamic_update_slice(types: Types, params: Params) -> TensorType:
    """data, an update no larger, start i32[] to the data's type."""
    (data, update, start), axis = types, params["axis"]
    need(len(data.shape) == len(update.shape), "data and update must have one rank")
    need(data.dtype is update.dtype, "data and update must have one dtype")
    fits = all(u <= d for u, d in zip(update.shape, data.shape, strict=True))
    need(fits, "the update is larger than the data")
    _axis(axis, len(data.shape))
    need(start == TensorType((), I32), "the start must be i32[]")
    return data


def arg_top_k(types: Types, params: Params) -> TensorType:
    """x[..., n] to i32[..., k]."""
    (x,), k = types, params["k"]
    _dtype(x, NUMBERS)
    need(len(x.shape) >= 1, "x must have a last axis")
    need(1 <= k <= x.shape[-1], f"k = {k} is not in [1, {x.shape[-1]}]")
    return TensorType((*x.shape[:-1], k), I32)


def packed_dequant(types: Types, params: Params) -> TensorType:
    """u8[..., bytes] to f32[..., columns]."""
    (x,) = types
    _dtype(x, (U8,))
    try:
        format = format_named(params["format"])
    except Unsupported as error:
        raise Mismatch(str(error)) from None
    need(format.is_packed, f"format {format.name} is dense: use cast or bitcast")
    need(len(x.shape) >= 1, "x must have a last axis")
    blocks, rest = divmod(x.shape[-1], format.nbytes)
    need(rest == 0, f"{x.shape[-1]} bytes are not whole blocks of {format.nbytes}")
    return TensorType((*x.shape[:-1], blocks * format.columns), F32)


def random_bits(types: Types, params: Params) -> TensorType:
    """seed u32[rows, 2], position i32[rows] to u32[rows, count]."""
    (seed, position), count = types, params["count"]
    need(len(seed.shape) == 2, "the seed must be u32[rows, 2]")
    rows = seed.shape[0]
    _expect("the seed", seed, TensorType((rows, 2), U32))
    _expect("the position", position, TensorType((rows,), I32))
    need(count >= 1, f"count {count} is below 1")
    return TensorType((rows, count), U32)


def sample_token(types: Types, params: Params) -> TensorType:
    """logits f32[rows, v] and their settings to i32[rows]."""
    logits, seed, position, settings, top_k = types
    need(params["rule"] == "sampled", f"there is no sampling rule {params['rule']!r}")
    need(len(logits.shape) == 2 and logits.dtype is F32, "logits must be f32[rows, vocabulary]")
    rows = logits.shape[0]
    _expect("the seed", seed, TensorType((rows, 2), U32))
    _expect("the position", position, TensorType((rows,), I32))
    _expect("the parameters", settings, TensorType((rows, 4), F32))
    _expect("top_k", top_k, TensorType((rows,), I32))
    return TensorType((rows,), I32)


def _expect(what: str, type: TensorType, expected: TensorType) -> None:
    need(type == expected, f"{what} must be {expected}")
