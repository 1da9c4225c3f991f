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
MOST_NOISE = 16.64
"""More than any noise: the greatest is 16.6356."""
RARE_NOISE = 3.0
"""Noise that one id in twenty has."""
RARE_WORD = np.uint32((1 << 32) * 0.951)
"""Words below it give less than RARE_NOISE, which is that of u = exp(-exp(-3)) = 0.9514."""
NEAR = (np.float32(6.0), np.float32(2.0), np.float32(0.0))
"""How far below the greatest ids are tried first, in noise scales: as many as there may be, those that likely win."""


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
    long = [race for race in races if _is_long(race)]
    bars = iter(_bars(long, arithmetic))
    held = [_able(race, next(bars)) if _is_long(race) else (race, None) for race in races]
    few = iter(_apart([race for race, words in held if words is None]))
    return [
        int(race.ids[race.perturbed(next(few) if words is None else words, arithmetic).argmax()])
        for race, words in held
    ]


def _is_long(race: Race) -> bool:
    return len(race.ids) > FEW and bool(race.noise_scale > 0) and bool(np.isfinite(race.scores.max()))


def _bars(races: Sequence[Race], arithmetic: Arithmetic) -> list[np.float32]:
    """Of each race a score that an id reaches with its noise."""
    near = []
    for race in races:
        top = race.scores.max()
        places = np.flatnonzero(race.scores >= top - NEAR[0] * race.noise_scale)
        for reach in NEAR[1:]:
            if len(places) > FEW:
                places = places[race.scores[places] >= top - reach * race.noise_scale]
        near.append(race.among(places[:FEW]))
    return [race.perturbed(words, arithmetic).max() for race, words in zip(near, _apart(near), strict=True)]


def _able(race: Race, bar: np.float32) -> tuple[Race, Words]:
    """Without ids that cannot win, with the words of the others: a score does not reach the bar whose distance is more
    than its noise can be, and than the rounding of their sum, which is below 2^-23 of either.
    """
    if not np.isfinite(bar):
        return race, words_of([race])
    scale, slack = float(race.noise_scale), 2.0**-20 * (1 + abs(float(bar)))

    def least(noise: float) -> np.float32:
        return np.float32(float(bar) - scale * noise * (1 + 2.0**-20) - slack)

    able = race.among(np.flatnonzero(race.scores >= least(MOST_NOISE)))
    words = words_of([able])
    places = np.flatnonzero((words >= RARE_WORD) | (able.scores >= least(RARE_NOISE)))
    return able.among(places), words[places]


def _apart(races: Sequence[Race]) -> list[Words]:
    """Random words of the ids of each race, made together: many take hardly longer than few."""
    return np.split(words_of(races), np.cumsum([len(race.ids) for race in races])[:-1]) if races else []


def words_of(races: Sequence[Race]) -> Words:
    """Random words of the ids of all races, one after the other."""
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
