"""Compositions of primitives that models are written in: projections, norms, activations, softmax.

Values are f32 between them; a weight may be dense in any float dtype or dequantized. Nothing here
is a primitive: the compiler recognizes these by structure.
"""

from __future__ import annotations

from math import pi, prod, sqrt

from poot_executor.dtype import F32, I32, U8, U32, DType
from poot_executor.errors import GraphError
from poot_executor.formats import Format
from poot_executor.graph import primitives as p
from poot_executor.graph.attention import (
    MASKED,
    attention,
    causal_mask,
    linear_bias,
    rope,
    rotary_table,
    token_positions,
    visible_rows,
    written_mask,
)
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.traced import Traced
from poot_executor.weights import WeightKey

__all__ = [
    "MASKED",
    "attention",
    "causal_mask",
    "dequantized",
    "embedding",
    "geglu",
    "gelu",
    "gelu_tanh",
    "last_token",
    "layer_norm",
    "linear",
    "linear_bias",
    "mean",
    "non_finite",
    "rms_norm",
    "rope",
    "rotary_table",
    "silu",
    "softmax",
    "stored_weight",
    "swiglu",
    "token_positions",
    "visible_rows",
    "written_mask",
]


def stored_weight(builder: Builder, key: WeightKey, format: Format, shape: tuple[int, ...]) -> Traced:
    """The weight input for a tensor of logical `shape` stored in `format`, as stored: its dtype for
    a dense format, u8[..., row_bytes] for a packed one. Raises Unsupported where blocks do not fill
    a row."""
    if format.dtype is not None:
        return builder.weight(key, TensorType(shape, format.dtype))
    rows = (*shape[:-1], format.row_bytes(shape[-1]))
    return builder.weight(key, TensorType(rows, U8))


def dequantized(weight: Traced, format: Format) -> Traced:
    """A stored weight as numbers: itself for a dense format, f32[..., columns] for a packed one."""
    return p.packed_dequant(weight, format.name) if format.is_packed else weight


def linear(
    x: Traced,
    weight: Traced,
    format: Format,
    bias: Traced | None = None,
    activations: DType = F32,
) -> Traced:
    """x[..., k] times the transpose of a stored weight [n, k], plus bias[n] -> f32[..., n].

    `activations` is the dtype that x is rounded to before the contraction.
    """
    w = p.transpose(dequantized(weight, format), (1, 0))
    k, n = w.shape
    if x.shape[-1:] != (k,):
        raise GraphError(f"linear of {x.type}: the weight contracts {k} columns to {n}")
    lead = x.shape[:-1]
    flat = p.cast(x, activations)
    if len(lead) != 1:
        flat = p.reshape(flat, (prod(lead), k))
    y = p.matmul(flat, w)
    if len(lead) != 1:
        y = p.reshape(y, (*lead, n))
    return y if bias is None else y + p.cast(bias, F32)


def embedding(table: Traced, format: Format, tokens: Traced) -> Traced:
    """Rows of a stored table [vocabulary, k] by tokens i32[...] -> f32[..., k]: stored rows are
    gathered and only they are decoded."""
    rows = p.gather(table, tokens)
    return p.cast(dequantized(rows, format), F32)


def last_token(x: Traced, last: Traced) -> Traced:
    """x[rows, tokens, n] at token last[row] (i32[rows]) of each row -> [rows, n]."""
    rows, tokens, n = x.shape
    place = p.iota(x.builder, (rows,), 0, I32) * tokens + last
    return p.gather(p.reshape(x, (rows * tokens, n)), place)


# Norms


def mean(x: Traced) -> Traced:
    """The mean over the last axis, which stays as 1: f32[..., n] -> f32[..., 1]."""
    total = p.sum_(x, len(x.shape) - 1)
    return p.reshape(total, (*x.shape[:-1], 1)) / float(x.shape[-1])


def rms_norm(x: Traced, weight: Traced, epsilon: float, offset: float = 0.0) -> Traced:
    """x[..., n] / sqrt(mean(x^2) + epsilon) * (weight[n] + offset) -> f32[..., n].

    Source: Zhang and Sennrich 2019. `offset` is 1 where a family stores weights around 0.
    """
    x = p.cast(x, F32)
    scale = p.cast(weight, F32)
    if offset:
        scale = scale + offset
    return x * p.recip(p.sqrt(mean(x * x) + epsilon)) * scale


def layer_norm(x: Traced, weight: Traced, bias: Traced | None, epsilon: float) -> Traced:
    """(x - mean) / sqrt(variance + epsilon) * weight[n] + bias[n], over the last axis, as f32.

    Source: Ba, Kiros and Hinton 2016; the variance is the mean of squared differences.
    """
    x = p.cast(x, F32)
    centred = x - mean(x)
    y = centred * p.recip(p.sqrt(mean(centred * centred) + epsilon)) * p.cast(weight, F32)
    return y if bias is None else y + p.cast(bias, F32)


# Activations


def softmax(x: Traced) -> Traced:
    """Over the last axis, with the maximum subtracted: f32[..., n] -> f32[..., n]."""
    axis, kept = len(x.shape) - 1, (*x.shape[:-1], 1)
    powers = p.exp(x - p.reshape(p.reduce_max(x, axis), kept))
    return powers / p.reshape(p.sum_(powers, axis), kept)


def silu(x: Traced) -> Traced:
    """x / (1 + exp(-x)), elementwise."""
    return x / (p.exp(-x) + 1.0)


def gelu(x: Traced) -> Traced:
    """x * (1 + erf(x / sqrt(2))) / 2, elementwise. Source: Hendrycks and Gimpel 2016."""
    return x * 0.5 * (p.erf(x * sqrt(0.5)) + 1.0)


def gelu_tanh(x: Traced) -> Traced:
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2, elementwise: the same paper's
    approximation."""
    inner = (x + x * x * x * 0.044715) * sqrt(2 / pi)
    return x * 0.5 * (p.tanh(inner) + 1.0)


def swiglu(gate: Traced, up: Traced) -> Traced:
    """silu(gate) * up, of one shape. Source: Shazeer 2020."""
    return silu(gate) * up


def geglu(gate: Traced, up: Traced, tanh: bool = True) -> Traced:
    """gelu(gate) * up, of one shape, by default in the tanh approximation. Source: Shazeer 2020."""
    return (gelu_tanh if tanh else gelu)(gate) * up


# What a row's logits hold


def non_finite(logits: Traced) -> Traced:
    """1 for each row that holds NaN or +inf, else 0: f32[rows, n] -> i32[rows]. It compares integer
    bits, since a float comparison with NaN may be compiled away. -inf is a masked token: fine."""
    bits = p.bitcast(logits, U32)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return p.reduce_max(p.cast(is_nan | (bits == 0x7F800000), I32), 1)
