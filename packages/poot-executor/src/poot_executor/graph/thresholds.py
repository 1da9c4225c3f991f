"""The least score that min-p, top-k and top-p keep: steps 2 to 4 of `graph.sampling` for one row.

What each of them keeps is all that reaches a score, so that together they are one threshold. Nothing sorts a whole row:
the greatest are selected, and of what top-p weighs only the greatest that reach its share are put in order.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from poot_executor.graph.numerics import Arithmetic

Floats = NDArray[np.float32]

DEPTH = 32
"""Scores of a bucket, whose maximum stands for them."""
BUCKETS_EACH = 4
"""Buckets for each score that is wanted: of fewer a bound holds back little."""
SMALL = np.float32(1 << 10)
"""Weights that float32 tells well from halves."""
EXP_ERROR = np.float32(2.0**-19)
"""More than numpy's relative error of float32's exponential, 4 units in the last place, with its rounding."""
NEAR = (np.float32(4.0), np.float32(8.0))
"""How far below the greatest the mass of top-p is looked for first."""


def least_kept(
    scores: Floats, top: np.float32, min_p: float, top_p: float, top_k: int, arithmetic: Arithmetic
) -> np.float32:
    """Of scores f32[vocabulary] without NaN, whose greatest is `top`: what reaches the result is kept. At most `top`,
    and -inf where nothing is dropped.
    """
    least = np.float32(-np.inf)
    if min_p > 0:
        least = np.fmin(top + np.float32(np.log(np.asarray(min_p, arithmetic.numpy))), top)
    if 0 < top_k < len(scores) and (least == -np.inf or top_k < np.count_nonzero(scores >= least)):
        least = max(least, nth_greatest(scores, top_k))
    if top_p < 1:
        least = max(least, _nucleus(scores, top, least, top_p, arithmetic))
    return least


def nth_greatest(scores: Floats, n: int) -> np.float32:
    """The n-th greatest, from 1, of scores f32[at least n] without NaN. The n-th greatest maximum of buckets is a bound
    that at least n scores reach, and seldom many more.
    """
    buckets = len(scores) // DEPTH
    if BUCKETS_EACH * n <= buckets:
        maxima = scores[: buckets * DEPTH].reshape(DEPTH, buckets).max(axis=0)
        scores = scores[scores >= np.partition(maxima, buckets - n)[buckets - n]]
    return np.partition(scores, len(scores) - n)[len(scores) - n]


def integer_weights(scores: Floats, top: np.float32, arithmetic: Arithmetic) -> NDArray[np.uint64]:
    """round_half_even(exp(score - top) * 2^24), the fixed-point mass that top-p sums."""
    power = np.exp((scores - top).astype(arithmetic.numpy)).astype(np.float32)
    return np.rint(np.nan_to_num(power, nan=0.0) * np.float32(1 << 24)).astype(np.uint64)


def whole_weights(below: Floats, arithmetic: Arithmetic) -> Floats:
    """`integer_weights` of scores less the greatest, none of them NaN, as float32. Small ones are those of float32's
    exponential, but where its error could have them rounded otherwise; that takes a fourth of the time.
    """
    rough = np.exp(below) * np.float32(1 << 24)
    weights = np.rint(rough)
    if arithmetic.precision == "f64":
        rough -= weights
        unsure = np.flatnonzero((weights >= SMALL) | (np.abs(rough, out=rough) >= 0.5 - SMALL * EXP_ERROR))
        exact = np.exp(below[unsure].astype(np.float64)).astype(np.float32)
        weights[unsure] = np.rint(exact * np.float32(1 << 24))
    return weights


def _nucleus(scores: Floats, top: np.float32, least: np.float32, top_p: float, arithmetic: Arithmetic) -> np.float32:
    if not np.isfinite(top):
        return top  # nothing weighs anything
    if least > -np.inf:
        scores = scores[scores >= least]
    weights = whole_weights(scores - top, arithmetic)
    # They are whole numbers up to 2^24, which float64 sums exactly in any order.
    target = max(ceil(Fraction(top_p) * int(weights.sum(dtype=np.float64))), 0)
    for reach in NEAR:
        near = np.flatnonzero(scores >= top - reach)
        if weights[near].sum(dtype=np.float64) >= target:
            scores, weights = scores[near], weights[near]
            break
    falling = np.argsort(scores)[::-1]
    # Where ties share the mass, any of them has their score.
    return scores[falling[np.searchsorted(np.cumsum(weights[falling], dtype=np.float64), target)]]
