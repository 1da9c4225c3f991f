"""The sampling rule against its steps written out one token at a time, and against probabilities."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_executor.dtype import F32, I32, U32
from poot_executor.graph.graph import TensorType
from poot_executor.graph.numerics import ORACLE
from poot_executor.graph.ops import OPS
from poot_executor.graph.sampling import gumbel_noise, kept_tokens

f32 = np.float32


def sample(logits, seed, position, params, top_k):
    arrays = [
        np.asarray(logits, f32), np.asarray(seed, np.uint32), np.asarray(position, np.int32),
        np.asarray(params, f32), np.asarray(top_k, np.int32),
    ]  # fmt: skip
    dtypes = (F32, U32, I32, F32, I32)
    row = OPS["sample_token"]
    out = row.infer([TensorType(a.shape, d) for a, d in zip(arrays, dtypes, strict=True)], {"rule": "sampled"})
    return row.evaluate(arrays, {"rule": "sampled"}, out)


def by_hand(logits, bits, params, top_k):
    """The rule of the docstring with Python numbers."""
    scale, min_p, top_p, noise = (f32(v) for v in params)
    scores = [float(f32(v) * scale) for v in logits]
    top = max(scores)
    kept = list(range(len(scores)))
    if min_p > 0:
        floor = float(f32(top) + f32(math.log(float(min_p))))
        kept = [i for i in kept if scores[i] >= floor or scores[i] == top]
    if 0 < top_k < len(kept):
        bound = sorted((scores[i] for i in kept), reverse=True)[top_k - 1]
        kept = [i for i in kept if scores[i] >= bound]
    if top_p < 1:
        weight = {i: round(float(f32(math.exp(float(f32(scores[i]) - f32(top))))) * 2**24) for i in kept}
        target = math.ceil(Fraction(float(top_p)) * sum(weight.values()))
        chosen, mass = [], 0
        for value in sorted({scores[i] for i in kept}, reverse=True):
            if chosen and mass >= target:
                break
            tied = [i for i in kept if scores[i] == value]
            chosen += tied
            mass += sum(weight[i] for i in tied)
        kept = chosen

    def perturbed(i):
        u = ((int(bits[i]) >> 9) + 0.5) * 2.0**-23
        inner = f32(-f32(math.log(u)))
        g = f32(-f32(math.log(float(inner))))
        return float(f32(scores[i]) + noise * g) if noise else scores[i]

    return min(kept, key=lambda i: (-perturbed(i), i))


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    st.sampled_from([0.001, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0, 1, 3, 100]),
    st.sampled_from([0.0, 1.0]),
)
def test_the_rule_is_its_steps(seed, vocabulary, min_p, top_p, top_k, noise):
    rng = np.random.default_rng(seed)
    # Quarters make ties.
    logits = np.round(rng.standard_normal(vocabulary) * 8) / 4
    key, position = rng.integers(0, 2**32, (1, 2), dtype=np.uint32), rng.integers(0, 5000, 1, np.int32)
    params = (1 / f32(rng.uniform(0.2, 2)), min_p, top_p, noise)
    bits = OPS["random_bits"].evaluate([key, position], {"count": vocabulary}, TensorType((1, vocabulary), U32))[0]
    assert sample([logits], key, position, [params], [top_k])[0] == by_hand(logits, bits, params, top_k)


def test_without_noise_the_lowest_of_the_greatest_wins():
    assert sample([[1, 3, 3, 2]], [[1, 2]], [0], [(1, 0, 1, 0)], [0]).tolist() == [1]


def test_kept_sets():
    scores = np.log(np.array([0.5, 0.25, 0.125, 0.125], f32))

    def kept(min_p=0.0, top_p=1.0, top_k=0):
        return np.flatnonzero(kept_tokens(scores, min_p, top_p, top_k, ORACLE)).tolist()

    assert kept() == [0, 1, 2, 3]
    assert kept(min_p=0.3) == [0, 1] and kept(min_p=1.0) == [0]
    assert kept(top_k=1) == [0] and kept(top_k=3) == [0, 1, 2, 3], "ties stay together"
    assert kept(top_p=0.4) == [0] and kept(top_p=0.6) == [0, 1] and kept(top_p=0.8) == [0, 1, 2, 3]
    assert kept(top_p=0.0) == [0]
    # After min-p the rest is renormalized: 0.5 of 0.75 is below 0.7.
    assert kept(min_p=0.3, top_p=0.7) == [0, 1] and kept(min_p=0.3, top_p=0.6) == [0]


def test_draws_follow_the_softmax(rng):
    logits = np.array([2.0, 1.0, 0.0, -1.0, -math.inf], f32)
    rows = 4000
    probabilities = np.exp(logits / 0.8) / np.exp(logits / 0.8).sum()
    seed = rng.integers(0, 2**32, (rows, 2), dtype=np.uint32)
    drawn = sample(
        np.tile(logits, (rows, 1)), seed, np.zeros(rows), np.tile((1.25, 0, 1, 1), (rows, 1)), np.zeros(rows)
    )
    share = np.bincount(drawn, minlength=5) / rows
    assert np.all(np.abs(share - probabilities) <= 5 * np.sqrt(probabilities * (1 - probabilities) / rows))


def test_a_row_draws_alike_alone_and_in_a_batch(rng):
    logits = rng.standard_normal((5, 300)).astype(f32)
    seed, position = rng.integers(0, 2**32, (5, 2), dtype=np.uint32), np.arange(5)
    params, top_k = np.tile((1.0, 0.02, 0.95, 1.0), (5, 1)), np.array([0, 5, 0, 50, 1])
    together = sample(logits, seed, position, params, top_k)
    alone = [
        sample(*(part[i : i + 1] for part in (logits, seed, position, params, top_k)))[0] for i in range(5)
    ]  # fmt: skip
    assert together.tolist() == alone
    moved = sample(logits, seed, position + 1, params, np.zeros(5))
    assert moved.tolist() != sample(logits, seed, position, params, np.zeros(5)).tolist()


def test_noise_is_finite_for_every_word():
    extremes = np.array([0, 511, 512, 2**31, 2**32 - 1], np.uint32)
    noise = gumbel_noise(extremes, ORACLE)
    assert np.isfinite(noise).all() and noise[0] == noise[1] < noise[2] < noise[3] < noise[4]
    assert 16 < noise[4] < 17


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_without_finite_logits_give_an_id(bad):
    for params in [(1, 0, 1, 0), (1, 0.1, 0.5, 1)]:
        token = sample([[bad] * 7], [[3, 4]], [5], [params], [2])[0]
        assert 0 <= token < 7
    assert sample([[1.0, bad, 2.0]], [[3, 4]], [5], [(1, 0, 1, 0)], [0])[0] == (1 if bad == math.inf else 2)
