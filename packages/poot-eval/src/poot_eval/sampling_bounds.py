"""Which draws of `sample_token` the inputs decide, when a device's exp and log are only so good.

The steps are those of `poot_executor.graph.sampling`. A row is decided where one token wins over
every token that may be kept, by more than both scores may move, and is itself certainly kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.error_steps import U, ulp
from poot_executor.compile.target import Caps
from poot_executor.graph.numerics import ORACLE
from poot_executor.graph.sampling import gumbel_noise, integer_weights, scaled_scores
from poot_executor.graph.threefry import random_words

Array = NDArray[Any]
Errors = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """Tokens that are kept whatever the rounding, and tokens that may be."""

    surely: Mask
    maybe: Mask


def sampling_error(operands: tuple[Array, ...], logits_error: Errors, caps: Caps) -> Errors:
    """0 for a row whose token is decided, infinity for one that rounding may flip: f64[rows]."""
    logits, seed, position, settings, top_k = operands
    noise = gumbel_noise(random_words(seed, position, logits.shape[1]), ORACLE).astype(np.float64)
    log_ulps = caps.errors.get("log", 0.5) + 0.5
    # A relative error of the inner logarithm is an absolute one of the outer.
    noise_error = log_ulps * (2 * U + ulp(np.abs(noise)))
    result = np.zeros(logits.shape[0])
    for row in range(logits.shape[0]):
        scale, min_p, top_p, spread = (float(v) for v in settings[row])
        scores = scaled_scores(logits[row], settings[row, 0])
        error = abs(scale) * logits_error[row]
        error = np.where(error == 0, 0.0, error + ulp(np.abs(scores.astype(np.float64))))
        kept = _min_p(scores, error, min_p, log_ulps)
        kept = _top_k(scores, error, int(top_k[row]), kept)
        kept = _top_p(scores, error, top_p, kept, caps.errors.get("exp", 0.5) + 0.5)
        wide = np.where(np.isnan(scores), -np.inf, scores).astype(np.float64)
        reach = error.copy()
        if spread != 0:
            wide = wide + spread * noise[row]
            reach = reach + abs(spread) * noise_error[row] + 2 * ulp(np.abs(wide))
        result[row] = 0.0 if _decided(wide, np.where(np.isnan(reach), 0, reach), kept) else np.inf
    return result


def _decided(perturbed: Errors, reach: Errors, kept: _Kept) -> bool:
    value = np.where(kept.maybe, perturbed, -np.inf)
    winner = int(np.argmax(value))
    if not np.isfinite(value[winner]):
        return True  # nothing is a number: id 0 by rule
    others = np.where(kept.maybe, value + reach, -np.inf)
    others[winner] = -np.inf
    # Exact ties of exact scores go to the lowest id, which argmax took.
    close = others >= value[winner] - reach[winner]
    exact_tie = (reach[winner] == 0) & (reach == 0) & (value <= value[winner])
    return bool(kept.surely[winner]) and not (close & ~exact_tie).any()


def _min_p(scores: Array, error: Errors, min_p: float, log_ulps: float) -> _Kept:
    everything = np.ones(scores.shape, np.bool_)
    if min_p <= 0:
        return _Kept(everything, everything)
    cut = float(np.log(np.float64(np.float32(min_p))))
    top = float(scores.max())
    floor = float(np.float32(top) + np.float32(cut))
    slack = log_ulps * ulp(np.abs(np.array(cut))) + ulp(np.abs(np.array(floor))) + error.max()
    wide = scores.astype(np.float64)
    best = wide - error >= top - error.max()
    return _Kept((wide - error >= floor + slack) | (best & (wide == top)), wide + error >= floor - slack)


def _top_k(scores: Array, error: Errors, k: int, kept: _Kept) -> _Kept:
    if k <= 0:
        return kept
    wide = scores.astype(np.float64)
    surely, maybe = kept.surely, kept.maybe
    if k < maybe.sum():
        # Of all that may be kept, fewer than k lie above: certain to be within.
        low = np.sort((wide - error)[maybe])[-k]
        high = np.sort((wide + error)[maybe])[-k]
        surely = surely & (wide - error >= high)
        if k < kept.surely.sum():
            low = np.sort((wide - error)[kept.surely])[-k]
            maybe = maybe & (wide + error >= low)
    return _Kept(surely, maybe)


def _top_p(scores: Array, error: Errors, top_p: float, kept: _Kept, exp_ulps: float) -> _Kept:
    if top_p >= 1:
        return kept
    top = scores[kept.maybe].max()
    weights = integer_weights(scores, top, ORACLE).astype(np.float64)
    relative = exp_ulps * 2 * U + np.expm1(np.minimum(error + error.max(), 50.0))
    slack = 1.0 + weights * relative
    light, heavy = np.maximum(weights - slack, 0), weights + slack
    exact_p = Fraction(float(np.float32(top_p)))
    most = ceil(exact_p * ceil(heavy[kept.maybe].sum()))
    least = max(ceil(exact_p * int(light[kept.surely].sum())), 0)
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    above_most = _mass_above(scores, np.where(kept.maybe, heavy, 0), order)
    above_least = _mass_above(scores, np.where(kept.surely, light, 0), order)
    return _Kept(
        kept.surely & ((above_most < least) | (scores == top)),
        kept.maybe & ((above_least < most) | (scores == top)),
    )


def _mass_above(scores: Array, weights: Errors, order: NDArray[np.int64]) -> Errors:
    """For each token, the weight of tokens with a greater score."""
    falling, mass = scores[order], np.cumsum(weights[order])
    first = np.searchsorted(-falling, -falling, side="left")
    above = np.concatenate([[0.0], mass])[first]
    result = np.empty_like(above)
    result[order] = above
    return result
