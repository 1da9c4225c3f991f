"""The meaning of `sample_token` with rule "sampled": which token a row draws.

A row's settings are (inverse temperature, min_p, top_p, noise scale) and top_k. Every value between
two steps is a float32; exp and log are evaluated in the rule's precision and rounded to float32.

1. Scores: s = logits * inverse temperature; NaN counts as -inf; m = max s.
2. Min-p: keep s >= m + log(min_p), and m itself. A min_p of 0 keeps all.
3. Top-k: keep s >= the k-th largest kept score, so that ties stay together. A top_k of 0, or one
   that is not below the number kept, keeps all.
4. Top-p: weights are integers, w = round_half_even(exp(s - m) * 2^24) of what is kept (0 where
   s - m is NaN), so that their sum does not depend on order. Going down the distinct kept scores,
   keep a score with its ties while the mass of the higher ones is below ceil(top_p * sum of w),
   computed exactly from the float32 top_p; the highest is always kept. A top_p of 1 keeps all.
5. Draw: the argmax over what is kept of s + noise scale * g, ties to the lowest id, with Gumbel
   noise g = -log(-log(u)), u = ((bits >> 9) + 0.5) * 2^-23, bits = random_bits(seed, position, id).
   A noise scale of 0 makes the row greedy.

`bits >> 9` and not `>> 8`: with 23 bits u is exact in float32 and lies in [2^-24, 1 - 2^-24]. With
24 bits the largest u would round to 1 and its noise be infinite: one id in 2^24 would win whatever
its score. A device whose log is inaccurate near 1 must evaluate -log(u) there by the series of
log1p(u - 1), since u - 1 is exact. A row of logits without a number above -inf gives id 0: its
`non_finite` flag is what tells.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.threefry import random_words

Floats = NDArray[np.float32]


def sampled_tokens(
    logits: Floats,
    seed: NDArray[np.uint32],
    position: NDArray[np.int32],
    settings: Floats,
    top_k: NDArray[np.int32],
    arithmetic: Arithmetic,
) -> NDArray[np.int32]:
    """i32[rows] from logits f32[rows, vocabulary], seed u32[rows, 2], position i32[rows], settings
    f32[rows, 4] and top_k i32[rows]."""
    noise = gumbel_noise(random_words(seed, position, logits.shape[1]), arithmetic)
    tokens = np.empty(logits.shape[0], np.int32)
    for row in range(logits.shape[0]):
        scale, min_p, top_p, noise_scale = settings[row]
        scores = scaled_scores(logits[row], scale)
        kept = kept_tokens(scores, float(min_p), float(top_p), int(top_k[row]), arithmetic)
        perturbed = scores if noise_scale == 0 else scores + noise_scale * noise[row]
        perturbed = np.where(np.isnan(perturbed), np.float32(-np.inf), perturbed)
        ids = np.flatnonzero(kept)
        tokens[row] = ids[np.argmax(perturbed[ids])]
    return tokens


def scaled_scores(logits: Floats, scale: np.float32) -> Floats:
    """Step 1: f32[vocabulary] scores of one row."""
    scores = logits * scale
    return np.where(np.isnan(scores), np.float32(-np.inf), scores)


def kept_tokens(scores: Floats, min_p: float, top_p: float, top_k: int, arithmetic: Arithmetic) -> NDArray[np.bool_]:
    """Steps 2 to 4: bool[vocabulary], what min-p, top-k and top-p keep of one row. At least the
    highest score.
    """
    top = scores.max()
    kept = np.ones(scores.shape, np.bool_)
    if min_p > 0:
        floor = top + np.float32(np.log(np.asarray(min_p, arithmetic.numpy)))
        kept = (scores >= floor) | (scores == top)
    if 0 < top_k < kept.sum():
        kept &= scores >= np.sort(scores[kept])[-top_k]
    if top_p < 1:
        kept &= scores >= _top_p_threshold(scores[kept], top, top_p, arithmetic)
    return kept


def integer_weights(scores: Floats, top: np.float32, arithmetic: Arithmetic) -> NDArray[np.uint64]:
    """round_half_even(exp(score - top) * 2^24), the fixed-point mass that top-p sums."""
    power = np.exp((scores - top).astype(arithmetic.numpy)).astype(np.float32)
    return np.rint(np.nan_to_num(power, nan=0.0) * np.float32(1 << 24)).astype(np.uint64)


def _top_p_threshold(kept: Floats, top: np.float32, top_p: float, arithmetic: Arithmetic) -> np.float32:
    weights = integer_weights(kept, top, arithmetic)
    target = ceil(Fraction(top_p) * int(weights.sum()))
    distinct, place = np.unique(-kept, return_inverse=True)
    mass = np.zeros(len(distinct), np.uint64)
    np.add.at(mass, place.reshape(-1), weights)
    enough = np.flatnonzero(np.cumsum(mass) >= np.uint64(max(target, 0)))
    return -distinct[enough[0]]


def gumbel_noise(bits: NDArray[np.uint32], arithmetic: Arithmetic) -> Floats:
    """Step 5: -log(-log(u)) in float32 of u32 words."""
    u = ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    inner = -np.log(u.astype(arithmetic.numpy)).astype(np.float32)
    return -np.log(inner.astype(arithmetic.numpy)).astype(np.float32)
