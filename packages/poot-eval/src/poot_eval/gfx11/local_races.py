"""Races in local memory: two waves of a group touch a byte, one of them writes it, and no barrier lies between.

Lanes of one wave are ordered by the wave itself. What is initialised or exchanged without a barrier
that would be needed shows whatever order the waves happened to run in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_eval.faults import RaceError
from poot_eval.races import Actors, Tracker

Ints = NDArray[np.int64]


class LocalRaces:
    """All accesses of the local memory of some groups. `epoch` counts the barriers that each group has passed."""

    def __init__(self, kernel: str, size: int, local_size: int, group: Ints, groups: int) -> None:
        self._kernel = kernel
        self._local_size = local_size
        self._group = group
        self._tracker = Tracker(size)
        self.epoch = np.zeros(groups, np.int64)

    def touch(self, kind: str, instruction: int, offsets: Ints, waves: Ints, size: int) -> None:
        """Accesses of `size` bytes, each by a wave. Raises RaceError."""
        places = (offsets[:, None] + np.arange(size)).reshape(-1)
        wave = np.repeat(waves, size)
        group = self._group[wave]
        by = Actors(wave, group, self.epoch[group])
        match kind:
            case "load":
                race = self._tracker.read(places, by)
            case "store":
                race = self._tracker.write(places, by, None)
            case _:
                race = self._tracker.atomic(places, by)
        if race.any():
            at = int(places[race][0]) % self._local_size
            what = f"{kind} by wave {int(wave[race][0])}, another wave's access with no barrier between"
            raise RaceError(self._kernel, "local memory", at, what, f"instruction at {instruction:#x}")
