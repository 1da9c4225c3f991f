"""What `tune` tries: for a region's schedule, others that change one tunable, within what the target can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from poot_executor.compile.schedule_attention import POSITIONS, TILES, WARPS
from poot_executor.compile.schedule_picks import NORM, TOKENS, legal
from poot_executor.compile.target import Caps, Pick

TRIED: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "attention": {
        "threads": (32, 64, 128, 256),
        "splits": (1, 2, 4, 8, 16, 32),
        "queries": (1, 2, 3, 4, 8),
        "unroll": (2, 4, 8, 16),
        "fragments": (0,),
        "warps": WARPS,
        "tiles": TILES,
        "positions": POSITIONS,
        "apart": (0, 1),
    },
    "contraction": {
        "fragments": (0,),
        "tokens": TOKENS,
        "threads": (32, 64, 128, 256),
        "lanes": (4, 8, 16, 32, 64, 128),
        "rows": (1, 2, 3, 4),
        "tile": (1, 2, 4, 8),
    },
    NORM: {"apart": (0, 1)},
}
"""Values of each tunable, by the first word of a region key; projections are contractions."""


OF_FRAGMENTS = frozenset({"fragments", "warps", "tiles", "positions", "apart", "splits"})
"""Tunables of what matrix fragments multiply; the splits of an attention are those of its other kernels as well."""


def kind_of(key: str) -> str:
    """Which of `TRIED` a region key is: projections are contractions."""
    kind = key.partition(" ")[0]
    return "contraction" if kind == "projection" else kind


def candidates(key: str, schedule: Mapping[str, Any], pick: Pick, caps: Caps) -> Iterator[Pick]:
    """Picks that differ from `pick` in one tunable and from the present `schedule` too; each is legal on its own."""
    tried = TRIED[kind_of(key)]
    fragments = "warps" in schedule
    for name, values in tried.items():
        if fragments and name not in OF_FRAGMENTS:
            continue  # Fragments have tunables of their own.
        if not fragments and name in OF_FRAGMENTS and name != "splits":
            continue
        if (name == "tokens") != ("warpgroups" in schedule) and "tokens" in tried:
            continue  # So have products of warpgroups.
        for value in values:
            if _present(schedule, name) == value:
                continue
            made = tuple(sorted({**dict(pick), name: value}.items()))
            if made != pick and legal(key, made, caps) is None:
                yield made


def _present(schedule: Mapping[str, Any], name: str) -> Any:
    """A tunable's present value; of several segments the one they share."""
    value = schedule.get(name)
    if isinstance(value, list):
        return value[0] if len(set(value)) == 1 else None
    return value
