"""Random bits and the draw of a token, by the rules of `random_bits` and `sample_token` in the op table."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def random_bits(seed: Array, position: Array, count: int) -> Array:
    """u32[rows, count]: word 0 of Threefry-2x32-20 (Salmon et al., SC 2011, section 3.2) of seed u32[rows, 2]."""
    key = [seed[:, :1], seed[:, 1:], seed[:, :1] ^ seed[:, 1:] ^ np.uint32(0x1BD11BDA)]
    x = position.astype(np.uint32)[:, None] + key[0]
    y = np.arange(count, dtype=np.uint32)[None] + key[1]
    for turn in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            x = x + y
            y = (y << np.uint32(bits) | y >> np.uint32(32 - bits)) ^ x
        x = x + key[(turn + 1) % 3]
        y = y + key[(turn + 2) % 3] + np.uint32(turn + 1)
    return x


def sample(logits: Array, seed: Array, position: Array, settings: Array, top_k: Array, rule: str) -> Array:
    """i32[rows]: a token a row from logits f32[rows, vocabulary]; "sampled" is the one rule there is."""
    bits = random_bits(seed, position, logits.shape[1])
    uniform = ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    noise = -log(-log(uniform))
    rows = zip(logits, noise, settings, top_k, strict=True)
    return np.array([draw(*row) for row in rows], np.int32)


def draw(logits: Array, noise: Array, settings: Array, top_k: Any) -> int:
    """One row; settings are (1 / temperature, min-p, top-p, noise scale)."""
    scale, min_p, top_p, noise_scale = settings
    scores = logits * scale
    scores[np.isnan(scores)] = -np.inf
    top = scores.max()
    keep = scores == top
    keep |= scores >= top + log(min_p) if min_p > 0 else True
    if 0 < top_k < keep.sum():
        keep &= scores >= np.sort(scores[keep])[-top_k]
    ids = np.flatnonzero(keep)
    if top_p < 1:
        ids = ids[np.argsort(-scores[ids], kind="stable")]
        falling = scores[ids]
        weights = np.rint(np.nan_to_num(np.exp(np.float64(falling - top)).astype(np.float32)) * np.float32(1 << 24))
        mass = np.cumsum(weights.astype(np.int64))
        above = np.concatenate([[0], mass])[np.searchsorted(-falling, -falling)]  # of strictly higher scores
        target = max(ceil(Fraction(float(top_p)) * int(mass[-1])), 1)
        ids = np.sort(ids[(above < target) | (falling == top)])
    perturbed = scores[ids] + noise_scale * noise[ids] if noise_scale != 0 else scores[ids]
    return int(ids[np.where(np.isnan(perturbed), -np.inf, perturbed).argmax()])


def log(x: Any) -> Any:
    """Through float64, rounded to float32: accurate near 1 too, where float32 noise needs it."""
    return np.float32(np.log(np.float64(x)))
