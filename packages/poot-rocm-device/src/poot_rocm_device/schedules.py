"""Where schedules start from on each architecture, as data, and the time below which none gets.

Nothing here was measured, since no AMD GPU has run it: the numbers are those of poot's measured GPUs, carried over by
what keeps a scheduler busy. `poot tune` on a GPU replaces what they lead to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from poot_rocm_device.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Schedule:
    """What `Caps` says to the compiler: threads of a group, groups that keep a compute unit busy, the fewest tiles of
    positions that a group of an attention takes, and from how many activation rows on groups take tiles of them.
    """

    group_threads: int
    groups_per_unit: int
    split_tiles: int
    many_rows: int


_CDNA = Schedule(group_threads=128, groups_per_unit=4, split_tiles=2, many_rows=9)
"""A unit has four schedulers, and 128 threads are two waves: four groups are two waves each, as on the H200 that was
measured."""

_RDNA = Schedule(group_threads=128, groups_per_unit=2, split_tiles=2, many_rows=9)
"""A unit has two schedulers, and 128 threads are four waves: two groups are four waves each. These waves are half as
wide, so each has half as many loads on their way."""

SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gfx90a": _CDNA,
        "gfx942": _CDNA,
        "gfx1030": _RDNA,
        "gfx1100": _RDNA,
        "gfx1151": _RDNA,
        "gfx1201": _RDNA,
    }
)
"""By architecture. Below nine activation rows one thread has the registers for all of them, and reads a weight once as
well."""


def floor_seconds(architecture: Architecture, nbytes: int) -> float:
    """The least time in which a large GPU of the architecture reads so many bytes from its memory.

    A step of one token reads each weight and the keys and values of its positions once: that many bytes are its floor,
    whatever the schedule. A large cache that already holds some of them is not counted.
    """
    return nbytes / architecture.bandwidth
