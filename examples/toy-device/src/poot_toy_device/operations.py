"""The table of primitives: a row makes, once for an equation, the function that computes it at every step.

Values are as numpy holds them (`poot_executor.dtype`): a bf16 is a rounded float32. Numbers are computed in float32;
what has no correctly rounded float32 form (exp, log ...) goes through float64, so its error is below one ULP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import BF16, BOOL, DType, from_bytes, round_bf16, to_bytes
from poot_executor.errors import KernelFault
from poot_executor.formats import Format, format_named
from poot_executor.graph.graph import TensorType
from poot_toy_device.sampling import random_bits, sample

Array = NDArray[Any]
Run = Callable[..., Array]
Row = Callable[[Mapping[str, Any], Sequence[TensorType], TensorType], Run]
"""Params, the operands' types and the result's to a function of the operands."""


def held(x: Any, dtype: DType) -> Array:
    """A result as numpy holds its dtype, floats rounded to it from float32."""
    return round_bf16(np.asarray(x, np.float32)) if dtype is BF16 else np.asarray(x, dtype.numpy)


def wide(x: Array) -> Array:
    """f16 is computed in float32."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def ranked(x: Array) -> Array:
    """NaN counts as -inf where values are ranked."""
    return np.where(np.isnan(x), x.dtype.type(-np.inf), x) if x.dtype.kind == "f" else x


def number(function: Run) -> Row:
    """Arithmetic: floats in float32, integers as they are."""
    return lambda params, types, out: lambda *x: held(function(*map(wide, x)), out.dtype)


def through_f64(function: Run) -> Row:
    """Functions that float32 has no correctly rounded form of."""
    return lambda params, types, out: lambda *x: held(np.float32(function(*map(np.float64, x))), out.dtype)


def moved(function: Callable[..., Array]) -> Row:
    """Bits that move: `function` takes the params by name."""
    return lambda params, types, out: lambda *x: function(*x, **params)


def divide(a: Array, b: Array) -> Array:
    """IEEE, or for integers towards zero: exact, since float64 holds every 32-bit integer."""
    if a.dtype.kind == "f":
        return a / b
    return np.trunc(np.float64(a) / np.float64(b)).astype(np.int64).astype(a.dtype)


def cast(params: Mapping[str, Any], types: Sequence[TensorType], out: TensorType) -> Run:
    """To a float through float32; a float to an integer towards zero; integers wrap; to bool x != 0."""
    if out.dtype is BOOL:
        return lambda x: np.asarray(x != 0)
    if out.dtype.is_float:
        return lambda x: held(x.astype(np.float32), out.dtype)
    return lambda x: (x.astype(np.int64) if x.dtype.kind == "f" else x).astype(out.dtype.numpy)


def total(params: Mapping[str, Any], types: Sequence[TensorType], out: TensorType) -> Run:
    """A sum, of floats in float32."""
    within = np.float32 if out.dtype.is_float else out.dtype.numpy
    return lambda x: held(x.sum(params["axis"], dtype=within), out.dtype)


def checked(name: str, index: Array, limit: int, low: int = 0) -> Array:
    """An index out of range is a fault of the step. Its code is the first offender's place."""
    wrong = np.flatnonzero((index < low) | (index >= limit))
    if wrong.size:
        raise KernelFault(name, int(wrong[0]))
    return index


def scatter(data: Array, index: Array, updates: Array) -> Array:
    """Rows replaced; a negative index drops its row."""
    kept = checked("scatter_update", index, len(data), low=-(1 << 31)) >= 0
    data = data.copy()
    data[index[kept]] = updates[kept]
    return data


def update_slice(data: Array, update: Array, start: Array, axis: int) -> Array:
    """A block replaced."""
    checked("dynamic_update_slice", start, data.shape[axis] - update.shape[axis] + 1)
    place = [slice(0, n) for n in update.shape]
    place[axis] = slice(int(start), int(start) + update.shape[axis])
    data = data.copy()
    data[tuple(place)] = update
    return data


def indexed_matmul(x: Array, w: Array, index: Array) -> Array:
    """Each row times the matrix that its index names."""
    return np.matmul(x[:, None], w[checked("indexed_matmul", index, len(w))])[:, 0]


def top_k(x: Array, k: int) -> Array:
    """Indices of the greatest, ties to the lowest index."""
    falling = -(ranked(x) if x.dtype.kind == "f" else x.astype(np.int64))
    return np.argsort(falling, -1, kind="stable")[..., :k].astype(np.int32)


def decode(raw: Array, format: Format) -> Array:
    """Stored blocks u8[..., bytes] to f32[..., columns]: scale · quant, plus the minimum or less the zero point."""
    if format.dtype is not None:
        return from_bytes(raw.tobytes(), format.dtype, (*raw.shape[:-1], -1)).astype(np.float32)
    blocks = raw.reshape(*raw.shape[:-1], -1, format.nbytes)
    fields = {f.name: np.ascontiguousarray(blocks[..., f.offset : f.offset + f.nbytes]) for f in format.fields}
    scale, quants = fields["scale"].view("<f2").astype(np.float32), fields["quants"]
    if quants.shape[-1] == format.columns:
        values = quants.view(np.int8).astype(np.float32)
    else:  # byte i holds column i in its low half and column i + 16 in its high half
        values = np.concatenate([quants & 15, quants >> 4], -1)
        if "high" in fields:
            values |= np.unpackbits(fields["high"], axis=-1, bitorder="little") << 4
        values = values.astype(np.float32)
        if "minimum" not in fields:
            values -= 16 if "high" in fields else 8
    values *= scale
    if "minimum" in fields:
        values += fields["minimum"].view("<f2")
    return values.reshape(*raw.shape[:-1], -1)


def pad(params: Mapping[str, Any], types: Sequence[TensorType], out: TensorType) -> Run:
    """A constant around the operand."""
    value, around = held(params["value"], out.dtype), list(zip(params["low"], params["high"], strict=True))
    return lambda x: np.pad(x, around, constant_values=value)


def iota(params: Mapping[str, Any], types: Sequence[TensorType], out: TensorType) -> Run:
    """0, 1, 2 ... along an axis; made once."""
    places = np.indices(out.shape, sparse=True)[params["axis"]]
    whole = np.broadcast_to(places.astype(out.dtype.numpy), out.shape)
    return lambda: whole


TABLE: dict[str, Row] = {
    # Elementwise
    "neg": number(np.negative), "abs": number(np.abs), "floor": number(np.floor), "round": number(np.rint),
    "sqrt": number(np.sqrt), "recip": number(lambda x: np.float32(1) / x), "not": number(np.invert),
    "exp": through_f64(np.exp), "log": through_f64(np.log), "tanh": through_f64(np.tanh), "sin": through_f64(np.sin),
    "cos": through_f64(np.cos), "pow": through_f64(np.power), "erf": through_f64(np.frompyfunc(math.erf, 1, 1)),
    "add": number(np.add), "sub": number(np.subtract), "mul": number(np.multiply), "div": number(divide),
    "max": number(np.fmax), "min": number(np.fmin), "rem": number(np.fmod), "and": number(np.bitwise_and),
    "or": number(np.bitwise_or), "xor": number(np.bitwise_xor),
    "shl": number(lambda a, b: a << (b & b.dtype.type(31))), "shr": number(lambda a, b: a >> (b & b.dtype.type(31))),
    "eq": number(np.equal), "ne": number(np.not_equal), "lt": number(np.less), "le": number(np.less_equal),
    "gt": number(np.greater), "ge": number(np.greater_equal), "select": moved(np.where), "cast": cast,
    "bitcast": lambda p, types, out: lambda x: from_bytes(to_bytes(x, types[0].dtype), out.dtype, out.shape),
    # Reductions and contractions
    "sum": total,
    "reduce_max": lambda p, t, out: lambda x: np.asarray(ranked(x).max(p["axis"])),
    "argmax": lambda p, t, out: lambda x: np.asarray(ranked(x).argmax(p["axis"]), np.int32),
    "arg_top_k": moved(top_k),
    "matmul": number(np.matmul), "indexed_matmul": number(indexed_matmul),
    # Movement
    "reshape": moved(lambda x, shape: x.reshape(shape)),
    "transpose": moved(lambda x, permutation: x.transpose(permutation)),
    "broadcast": moved(np.broadcast_to),
    "slice": moved(lambda x, start, stop, step: x[tuple(map(slice, start, stop, step))]),
    "concat": moved(lambda *x, axis: np.concatenate(x, axis)), "pad": pad, "iota": iota,
    # By index
    "gather": moved(lambda data, index: data[checked("gather", index, len(data))]),
    "scatter_update": moved(scatter), "dynamic_update_slice": moved(update_slice),
    "packed_dequant": lambda p, t, out: lambda raw: decode(raw, format_named(p["format"])),
    # Random bits and sampling
    "random_bits": moved(random_bits), "sample_token": moved(sample),
}  # fmt: skip
