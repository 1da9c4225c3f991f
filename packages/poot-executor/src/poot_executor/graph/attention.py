"""Attention as a composition of primitives: rotary positions, masks, grouped-query attention.

Masking is by selection, on scores and on V rows, with a finite minimum: a position that a row may
not see can hold anything, NaN included, and 0 * NaN must not reach the row.
"""

from __future__ import annotations

import numpy as np

from poot_executor.dtype import F32, I32, DType
from poot_executor.errors import GraphError
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced

MASKED = float(np.finfo(np.float32).min)
"""The score of a masked position: finite, so that a row which sees nothing has no NaN."""


def token_positions(position: Traced, tokens: int) -> Traced:
    """Positions of a row's tokens from that of its first: i32[rows] -> i32[rows, tokens]."""
    rows = position.shape[0]
    return p.reshape(position, (rows, 1)) + p.iota(position.builder, (rows, tokens), 1, I32)


def rotary_table(position: Traced, tokens: int, frequencies: Traced, scale: float = 1.0) -> tuple[Traced, Traced]:
    """Cosines and sines of token positions: position i32[rows] of the first token, inverse
    frequencies f32[half] -> two of f32[rows, tokens, half], each times `scale`."""
    at = p.cast(token_positions(position, tokens), F32)
    angle = p.reshape(at, (*at.shape, 1)) * frequencies
    cos, sin = p.cos(angle), p.sin(angle)
    return (cos, sin) if scale == 1.0 else (cos * scale, sin * scale)


def rope(x: Traced, cos: Traced, sin: Traced, interleaved: bool = False) -> Traced:
    """Rotate x f32[rows, tokens, heads, head_dim] by f32[rows, tokens, half] cosines and sines.

    Pair i is (x[i], x[i + half]), or interleaved (x[2i], x[2i + 1]). Only the first 2 * half of
    head_dim turn; the rest passes. Raises GraphError where half is too big. Source: Su et al. 2021.
    """
    rows, tokens, heads, width = x.shape
    half = cos.shape[-1]
    if 2 * half > width:
        raise GraphError(f"rope of {x.type}: {half} frequencies turn more than {width} columns")
    cos, sin = (p.reshape(t, (rows, tokens, 1, half)) for t in (cos, sin))
    if interleaved:
        pairs = p.reshape(_columns(x, 0, 2 * half), (rows, tokens, heads, half, 2))
        first, second = (p.reshape(_columns(pairs, i, i + 1), (rows, tokens, heads, half)) for i in (0, 1))
    else:
        first, second = _columns(x, 0, half), _columns(x, half, 2 * half)
    turned = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        each = [p.reshape(t, (rows, tokens, heads, half, 1)) for t in turned]
        turned = [p.reshape(p.concat(each, 4), (rows, tokens, heads, 2 * half))]
    if 2 * half < width:
        turned.append(_columns(x, 2 * half, width))
    return turned[0] if len(turned) == 1 else p.concat(turned, 3)


def _columns(x: Traced, start: int, stop: int) -> Traced:
    if (start, stop) == (0, x.shape[-1]):
        return x
    lead = x.shape[:-1]
    return p.slice_(x, (*(0 for _ in lead), start), (*lead, stop))


def causal_mask(position: Traced, last: Traced, tokens: int, capacity: int, window: int | None = None) -> Traced:
    """Which positions each token sees -> bool[rows, tokens, capacity].

    position i32[rows] is that of a row's first token, last i32[rows] the index of its last real
    one. Token t is at position + t and sees itself and what is before it, the nearest `window` of
    them where that is given. A token after the last sees what the last does and no more, since
    nothing was written for it.
    """
    rows = position.shape[0]
    builder = position.builder
    token = p.iota(builder, (rows, tokens), 1, I32)
    last = builder.broadcast_to(p.reshape(last, (rows, 1)), token.shape)
    at = p.reshape(position, (rows, 1)) + p.minimum(token, last)
    at = p.reshape(at, (rows, tokens, 1))
    column = p.iota(builder, (rows, tokens, capacity), 2, I32)
    mask = column <= at
    return mask if window is None else mask & (column > at - window)


def written_mask(position: Traced, last: Traced, capacity: int) -> Traced:
    """Which positions hold something that was written for the row: bool[rows, capacity]."""
    rows = position.shape[0]
    end = p.reshape(position + last, (rows, 1))
    return p.iota(position.builder, (rows, capacity), 1, I32) <= end


def visible_rows(mask: Traced) -> Traced:
    """Positions that any token of a row sees: bool[rows, tokens, capacity] -> [rows, capacity]."""
    rows, tokens, capacity = mask.shape
    if tokens == 1:
        return p.reshape(mask, (rows, capacity))
    return p.reduce_max(p.cast(mask, I32), 1) != 0


def linear_bias(slopes: Traced, position: Traced, tokens: int, capacity: int) -> Traced:
    """What a score loses by distance: slopes f32[heads], position i32[rows] of a row's first token -> f32[rows, heads,
    tokens, capacity], slope · (column − position of the token). Source: Press, Smith and Lewis 2022 (ALiBi)."""
    rows, heads, builder = position.shape[0], slopes.shape[0], position.builder
    column = p.iota(builder, (rows, tokens, capacity), 2, I32)
    at = p.reshape(token_positions(position, tokens), (rows, tokens, 1))
    distance = p.reshape(p.cast(column - at, F32), (rows, 1, tokens, capacity))
    return p.reshape(slopes, (1, heads, 1, 1)) * distance


def attention(
    q: Traced,
    k: Traced,
    v: Traced,
    mask: Traced,
    scale: float,
    visible: Traced | None = None,
    softcap: float | None = None,
    activations: DType = F32,
    bias: Traced | None = None,
    sinks: Traced | None = None,
) -> Traced:
    """softmax(scale * q k^T, masked) v with grouped heads -> f32[rows, tokens, heads, head_dim].

    q [rows, tokens, heads, d], k [rows, capacity, kv_heads, d], v [rows, capacity, kv_heads, dv],
    mask bool[rows, tokens, capacity]; query head h reads KV head h // (heads / kv_heads).
    `visible` bool[rows, capacity] says which V rows may enter, by default those that any token
    sees; it must hold wherever the mask does. `softcap` c replaces a score s by c * tanh(s / c).
    `activations` is the dtype that q and the probabilities are rounded to before they are
    contracted. `bias` f32, of a shape that repeats to [rows, heads, tokens, capacity], is added to
    the scores. `sinks` f32[heads] is a score more a head, which has a share of the softmax and no
    value. Source: Vaswani et al. 2017; Ainslie et al. 2023 for grouped queries.
    """
    rows, tokens, heads, width = q.shape
    capacity, kv_heads = k.shape[1:3]
    if heads % kv_heads:
        raise GraphError(f"attention: {heads} query heads do not share {kv_heads} KV heads evenly")
    group = heads // kv_heads

    split = p.reshape(q, (rows, tokens, kv_heads, group, width))
    queries = p.reshape(p.transpose(split, (0, 2, 3, 1, 4)), (rows, kv_heads, group * tokens, width))
    scores = p.matmul(p.cast(queries, activations), p.transpose(k, (0, 2, 3, 1))) * scale
    if softcap is not None:
        scores = p.tanh(scores / softcap) * softcap
    scores = p.reshape(scores, (rows, kv_heads, group, tokens, capacity))
    if bias is not None:
        scores = scores + _of_groups(bias, kv_heads, group)
    weights = _masked_softmax(scores, mask, None if sinks is None else _of_groups(sinks, kv_heads, group))

    seen = visible_rows(mask) if visible is None else visible
    values = _selected(p.reshape(seen, (rows, capacity, 1, 1)), v, 0.0)
    flat = p.reshape(p.cast(weights, activations), (rows, kv_heads, group * tokens, capacity))
    out = p.matmul(flat, p.transpose(values, (0, 2, 1, 3)))
    out = p.reshape(out, (rows, kv_heads, group, tokens, v.shape[-1]))
    return p.reshape(p.transpose(out, (0, 3, 1, 2, 4)), (rows, tokens, heads, v.shape[-1]))


def _of_groups(x: Traced, kv_heads: int, group: int) -> Traced:
    """[..., heads, tokens, capacity], or [heads], as [rows, kv_heads, group, tokens, capacity], 1 where it repeats.
    Raises GraphError for another number of heads."""
    shape = (*x.shape, 1, 1) if len(x.shape) == 1 else x.shape
    shape = (1,) * (4 - len(shape)) + shape
    if len(shape) != 4 or shape[1] not in (1, kv_heads * group):
        raise GraphError(f"attention: {x.type} is not of {kv_heads * group} heads")
    heads = (1, 1) if shape[1] == 1 else (kv_heads, group)
    return p.reshape(x, (shape[0], *heads, *shape[2:]))


def _masked_softmax(scores: Traced, mask: Traced, sinks: Traced | None) -> Traced:
    rows, _, _, tokens, capacity = scores.shape
    masked = _selected(p.reshape(mask, (rows, 1, 1, tokens, capacity)), scores, MASKED)
    kept = (*scores.shape[:-1], 1)
    most = p.reshape(p.reduce_max(masked, 4), kept)
    if sinks is None:
        powers = p.exp(masked - most)
        return powers / p.reshape(p.sum_(powers, 4), kept)
    sinks = scores.builder.broadcast_to(sinks, kept)
    most = p.maximum(most, sinks)
    powers = p.exp(masked - most)
    return powers / (p.reshape(p.sum_(powers, 4), kept) + p.exp(sinks - most))


def _selected(condition: Traced, x: Traced, otherwise: float) -> Traced:
    builder = x.builder
    return p.select(builder.broadcast_to(condition, x.shape), x, builder.splat(otherwise, x.type))
