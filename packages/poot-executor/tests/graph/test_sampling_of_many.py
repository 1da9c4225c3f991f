"""The sampling rule over many ids, where it selects and leaves out, against sorting and the noise of every id."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_executor.graph.gumbel import FEW
from poot_executor.graph.numerics import ORACLE, Arithmetic
from poot_executor.graph.sampling import gumbel_noise, integer_weights, sampled_tokens
from poot_executor.graph.threefry import random_words
from poot_executor.graph.thresholds import BUCKETS_EACH, DEPTH, nth_greatest, whole_weights

Floats = NDArray[np.float32]
ROWS = 4


def rounded(logits: Floats, rng: np.random.Generator) -> Floats:
    return np.round(logits)


def masked(logits: Floats, rng: np.random.Generator) -> Floats:
    return np.where(rng.random(logits.shape) < 0.9, -np.inf, logits)


def damaged(logits: Floats, rng: np.random.Generator) -> Floats:
    return np.where(rng.random(logits.shape) < 0.1, np.nan, logits)


def infinite(logits: Floats, rng: np.random.Generator) -> Floats:
    return np.where(rng.random(logits.shape) < 0.001, np.inf, logits)


def alike(logits: Floats, rng: np.random.Generator) -> Floats:
    return np.full_like(logits, logits[0, 0])


def as_is(logits: Floats, rng: np.random.Generator) -> Floats:
    return logits


def plain_kept(scores: Floats, min_p: float, top_p: float, top_k: int, arithmetic: Arithmetic) -> NDArray[np.bool_]:
    top = scores.max()
    kept = np.ones(scores.shape, np.bool_)
    if min_p > 0:
        kept = (scores >= top + np.float32(np.log(np.asarray(min_p, arithmetic.numpy)))) | (scores == top)
    if 0 < top_k < kept.sum():
        kept &= scores >= np.sort(scores[kept])[-top_k]
    if top_p < 1:
        weights = integer_weights(scores[kept], top, arithmetic)
        distinct, place = np.unique(-scores[kept], return_inverse=True)
        mass = np.zeros(len(distinct), np.uint64)
        np.add.at(mass, place.reshape(-1), weights)
        target = ceil(Fraction(top_p) * int(weights.sum()))
        kept &= scores >= -distinct[np.flatnonzero(np.cumsum(mass) >= np.uint64(target))[0]]
    return kept


def plain_tokens(
    logits: Floats, seed: NDArray[np.uint32], position: NDArray[np.int32], settings: Floats, top_k: NDArray[np.int32],
    arithmetic: Arithmetic,
) -> list[int]:  # fmt: skip
    """The steps of `graph.sampling`, each over every id."""
    noise, tokens = gumbel_noise(random_words(seed, position, logits.shape[1]), arithmetic), []
    for row, (scale, min_p, top_p, noise_scale) in enumerate(settings):
        scores = np.nan_to_num(logits[row] * scale, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        kept = np.flatnonzero(plain_kept(scores, float(min_p), float(top_p), int(top_k[row]), arithmetic))
        drawn = scores if noise_scale == 0 else scores + noise_scale * noise[row]
        drawn = np.where(np.isnan(drawn), np.float32(-np.inf), drawn)
        tokens.append(int(kept[np.argmax(drawn[kept])]))
    return tokens


@pytest.mark.parametrize("shape", [as_is, rounded, masked, damaged, infinite, alike])
@pytest.mark.parametrize("vocabulary", [FEW + 1, 5_003, 40_000])
def test_tokens_are_those_of_the_plain_steps(
    shape: Callable[[Floats, np.random.Generator], Floats], vocabulary: int, rng: np.random.Generator
) -> None:
    for spread in (0.01, 1.0, 6.0, 1e6):
        logits = shape(rng.normal(0, spread, (ROWS, vocabulary)).astype(np.float32), rng).astype(np.float32)
        seed = rng.integers(0, 1 << 32, (ROWS, 2), dtype=np.uint32)
        position = rng.integers(0, 1 << 31, ROWS).astype(np.int32)
        columns = [(1.0, 1.25, 0.3), (0.0, 0.0, 1e-7, 0.02, 1.0), (1.0, 1.0, 0.9, 0.9999999, 0.0), (1.0, 1.0, 0.0, 2.5)]
        settings = np.stack([rng.choice(column, ROWS) for column in columns], 1).astype(np.float32)
        top_k = rng.choice((0, 0, 1, 40, vocabulary // 3), ROWS).astype(np.int32)
        for arithmetic in (ORACLE, Arithmetic("f32", "blas")):
            given = (logits, seed, position, settings, top_k, arithmetic)
            with np.errstate(all="ignore"):
                assert sampled_tokens(*given).tolist() == plain_tokens(*given), (spread, settings, top_k)


def test_rows_that_filter_nothing_draw_what_every_id_s_noise_says(rng: np.random.Generator) -> None:
    """Thousands of draws in which a far id must win now and then: leaving out the wrong one would show."""
    logits = np.tile(np.linspace(0, 9, 2 * FEW, dtype=np.float32), (500, 1))
    seed = rng.integers(0, 1 << 32, (500, 2), dtype=np.uint32)
    settings = np.tile(np.array([1, 0, 1, 1], np.float32), (500, 1))
    given = (logits, seed, np.zeros(500, np.int32), settings, np.zeros(500, np.int32), ORACLE)
    drawn = sampled_tokens(*given)
    assert drawn.tolist() == plain_tokens(*given)
    assert (logits[0, drawn] < 6).any() and (logits[0, drawn] > 8.9).any()


@pytest.mark.parametrize("n", [1, 7, 64])
def test_the_nth_greatest_is_that_of_sorting(n: int, rng: np.random.Generator) -> None:
    for count in (n, DEPTH * n, DEPTH * BUCKETS_EACH * n, DEPTH * BUCKETS_EACH * n + 5):
        for values in (rng.normal(0, 1, count), rng.integers(-2, 2, count), np.full(count, -np.inf)):
            scores = values.astype(np.float32)
            assert nth_greatest(scores, n) == np.sort(scores)[-n]


@pytest.mark.parametrize("arithmetic", [ORACLE, Arithmetic("f32", "blas")], ids=str)
def test_weights_are_those_of_the_exact_exponential(arithmetic: Arithmetic, rng: np.random.Generator) -> None:
    """Where they nearly lie between two whole numbers too: by half numbers' logarithms and their neighbours."""
    halves = np.log((np.arange(1 << 12) + 0.5) * 2.0**-24).astype(np.float32)
    around = [halves, np.nextafter(halves, np.float32(0)), np.nextafter(halves, np.float32(-99))]
    spread = rng.uniform(-20, 0, 1 << 16).astype(np.float32)
    below = np.concatenate([*around, spread, np.array([0, -np.inf, -3e38, -1e-45], np.float32)])
    expected = integer_weights(below, np.float32(0), arithmetic)
    np.testing.assert_array_equal(whole_weights(below, arithmetic), expected.astype(np.float32))
