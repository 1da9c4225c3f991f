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

import numpy as np
from numpy.typing import NDArray

from poot_executor.graph.gumbel import Race, gumbel_noise, winners
from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.thresholds import integer_weights, least_kept

__all__ = ["gumbel_noise", "integer_weights", "kept_tokens", "sampled_tokens", "scaled_scores"]

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
    tokens = np.empty(logits.shape[0], np.int32)
    races: dict[int, Race] = {}
    for row in range(logits.shape[0]):
        scale, min_p, top_p, noise_scale = settings[row]
        scores = scaled_scores(logits[row], scale)
        greatest = int(scores.argmax())
        if noise_scale == 0:
            tokens[row] = greatest  # whatever is kept, the greatest is, with its ties
            continue
        least = least_kept(scores, scores[greatest], float(min_p), float(top_p), int(top_k[row]), arithmetic)
        ids = np.flatnonzero(scores >= least) if least > -np.inf else np.arange(len(scores))
        kept = scores[ids] if least > -np.inf else scores
        races[row] = Race(ids, kept, noise_scale, seed[row], position[row])
    tokens[list(races)] = winners(list(races.values()), arithmetic)
    return tokens


def scaled_scores(logits: Floats, scale: np.float32) -> Floats:
    """Step 1: f32[vocabulary] scores of one row."""
    return np.fmax(logits * scale, np.float32(-np.inf))


def kept_tokens(scores: Floats, min_p: float, top_p: float, top_k: int, arithmetic: Arithmetic) -> NDArray[np.bool_]:
    """Steps 2 to 4: bool[vocabulary], what min-p, top-k and top-p keep of one row. At least the
    highest score.
    """
    return scores >= least_kept(scores, scores.max(), min_p, top_p, top_k, arithmetic)
