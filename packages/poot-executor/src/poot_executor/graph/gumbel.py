"""Gumbel-max draws: step 5 of `graph.sampling`.

The noise of an id depends on nothing but seed, position and the id, so that only that of ids which can win is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.threefry import threefry2x32

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]

FEW = 512
"""Ids whose noise is computed without asking whether it could matter."""
MOST_NOISE = np.float32(17.0)
"""More than any noise: the greatest is 16.64."""
RARE_NOISE = np.float32(3.0)
"""Noise that one id in twenty has."""
RARE_WORD = np.uint32((1 << 32) * 0.951)
"""Words below it give less than RARE_NOISE, which is that of u = exp(-exp(-3)) = 0.9514."""


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """The ids of one row that are drawn from, in ascending order, i64[n], and their scores f32[n]."""

    ids: NDArray[np.int64]
    scores: Floats
    noise_scale: np.float32
    seed: Words
    position: np.int32

    def among(self, places: NDArray[np.int64]) -> Race:
        """Of the ids in these places alone."""
        return replace(self, ids=self.ids[places], scores=self.scores[places])

    def perturbed(self, words: Words, arithmetic: Arithmetic) -> Floats:
        """Scores with the noise of the ids' words; NaN counts as -inf."""
        return np.fmax(self.scores + self.noise_scale * gumbel_noise(words, arithmetic), np.float32(-np.inf))


def winners(races: Sequence[Race], arithmetic: Arithmetic) -> list[int]:
    """Of each race the id whose score is greatest with its noise, the lowest of ties."""
    races = [narrowed(race, arithmetic) for race in races]
    found, start, words = [], 0, words_of(races)
    for race in races:
        stop = start + len(race.ids)
        found.append(int(race.ids[race.perturbed(words[start:stop], arithmetic).argmax()]))
        start = stop
    return found


def narrowed(race: Race, arithmetic: Arithmetic) -> Race:
    """Without ids that cannot win. A sum of two floats never falls where one of them grows, so that an id which does
    not reach a bar with more noise than its own does not reach it.
    """
    scale = race.noise_scale
    if len(race.ids) <= FEW or not scale > 0:
        return race
    top = race.scores.max()
    if not np.isfinite(top):
        return race
    near = race.among(np.flatnonzero(race.scores >= top - scale)[:FEW])
    bar = near.perturbed(words_of([near]), arithmetic).max()
    able = race.among(np.flatnonzero(race.scores + scale * MOST_NOISE >= bar))
    likely = able.scores + scale * RARE_NOISE >= bar
    return able.among(np.flatnonzero(likely | (words_of([able]) >= RARE_WORD)))


def words_of(races: Sequence[Race]) -> Words:
    """Random words of the ids of all races, one after the other: many take hardly longer than few."""
    if not races:
        return np.empty(0, np.uint32)
    seeds = np.array([race.seed for race in races], np.uint32)
    positions = np.array([race.position for race in races], np.int32).astype(np.uint32)
    ids = np.concatenate([race.ids for race in races]).astype(np.uint32)
    if len(races) == 1:
        return threefry2x32((seeds[0, :1], seeds[0, 1:]), (positions, ids))[0]
    counts = [len(race.ids) for race in races]
    key = (np.repeat(seeds[:, 0], counts), np.repeat(seeds[:, 1], counts))
    return threefry2x32(key, (np.repeat(positions, counts), ids))[0]


def gumbel_noise(bits: Words, arithmetic: Arithmetic) -> Floats:
    """-log(-log(u)) in float32 of u32 words."""
    u = ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    inner = -np.log(u.astype(arithmetic.numpy)).astype(np.float32)
    return -np.log(inner.astype(arithmetic.numpy)).astype(np.float32)
