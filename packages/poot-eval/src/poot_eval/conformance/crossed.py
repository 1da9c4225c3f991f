"""Parameters of tests that cross lists: a part that every run has, and the rest as a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def crossed(*lists: Sequence[Any]) -> list[Any]:
    """Every combination of one value a list, for `pytest.mark.parametrize`; those off a diagonal are marked `sweep`.

    On it lie the combinations whose places sum to a multiple of the shortest list's length: every value
    of every list is in one, and of lists that are equally long every pair of values.
    """
    every = min(len(values) for values in lists)
    made = []
    for chosen in product(*(list(enumerate(values)) for values in lists)):
        marks = [] if sum(place for place, _ in chosen) % every == 0 else [pytest.mark.sweep]
        made.append(pytest.param(*(value for _, value in chosen), marks=marks))
    return made
