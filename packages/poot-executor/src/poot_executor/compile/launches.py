"""Which small dispatches are launched as one: those that do not wait for each other side by side, and what one group
does after what one group did.

A launch costs a target some microseconds whatever it does, and a step of one row has a dozen that move a few bytes
each: checks and angles before the layers, the pick of a token after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod

from poot_executor.compile.lower.draft import DISPATCH_WORK, Draft, Operand
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.compile.unit import Unit
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.ir import Access, Param
from poot_executor.kernel.side_by_side import Launch, side_by_side

MOST_JOINED = 16
"""Dispatches that one launch has at most: a kernel of more takes long to be made ready, for every target."""

SCRATCHES = 1 << 16
"""More than any region numbers its scratch memory."""

SMALL_KINDS = frozenset(("pointwise", "gather", "row_reduction", "argmax", "top_k", "random_bits", "sample"))
"""Regions that may be small. Contractions and attention are not: schedules choose their grids for themselves alone."""

_WRITTEN = Access.READ_WRITE

_Node = tuple[int, int]
"""A dispatch: its unit, and its place there."""


@dataclass(frozen=True, slots=True, eq=False)
class _Small:
    """A dispatch that may share a launch. `roots` are the values of its region that are there after it."""

    node: _Node
    region: Region
    draft: Draft
    roots: tuple[Value, ...]

    @property
    def alone(self) -> bool:
        """Is it one group?"""
        return prod(self.draft.groups) == 1


@dataclass(slots=True, eq=False)
class _Launch:
    """What is launched together: `tracks` side by side, or a `unit` as it is."""

    unit: Unit | None = None
    tracks: list[list[_Small]] = field(default_factory=list)

    @property
    def smalls(self) -> list[_Small]:
        """Every dispatch, track by track."""
        return [small for track in self.tracks for small in track]


def share_launches(units: Sequence[Unit], order: Iterable[int], after: Sequence[Set[int]], caps: Caps) -> list[Unit]:
    """The units in order, small ones joined: `after` gives for each unit those that come before it.

    A dispatch joins the first launch that it may, so that it may run earlier than in `order`, never later.
    """
    launches: list[_Launch] = []
    place: dict[_Node, int] = {}
    last = [(i, len(unit.drafts) - 1) for i, unit in enumerate(units)]
    for i in order:
        unit = units[i]
        before = {last[j] for j in after[i]}
        if not _is_small(unit, caps):
            place.update(((i, k), len(launches)) for k in range(len(unit.drafts)))
            launches.append(_Launch(unit))
            continue
        for small in _smalls(i, unit):
            at = _join(launches, small, before, place, caps)
            place[small.node] = at
            before = {small.node}
    return [launch.unit if launch.unit is not None else _joined(launch) for launch in launches]


def _is_small(unit: Unit, caps: Caps) -> bool:
    """May its dispatches be joined to others? What updates a value in place, or copies one before, stays by itself."""
    (region,) = unit.regions
    return (
        region.kind in SMALL_KINDS
        and not region.updates
        and all(prod(draft.groups) <= caps.joined_groups for draft in unit.drafts)
    )


def _smalls(i: int, unit: Unit) -> list[_Small]:
    """The dispatches of a unit. What one of several keeps for the next gets a name of its own: another unit of the same
    launch would take the same memory for it."""
    (region,) = unit.regions
    there: set[Value] = set()
    found = []
    for k, draft in enumerate(unit.drafts):
        operands = tuple(Operand(_own(i, o.value), o.part) for o in draft.operands)
        roots = tuple(v for v in unit.roots if v not in there and any(o.value == v for o in operands))
        there.update(roots)
        found.append(_Small((i, k), region, replace(draft, operands=operands), roots))
    return found


def _own(i: int, value: Value) -> Value:
    """The value, or of scratch memory (numbered below 0) the unit's own."""
    return value if value.id >= 0 else Value(value.id - SCRATCHES * (i + 1), value.type)


def _join(launches: list[_Launch], small: _Small, before: Set[_Node], place: dict[_Node, int], caps: Caps) -> int:
    """Put a dispatch into the first launch that takes it, or one of its own at the end; gives which."""
    first = max((place[node] for node in before), default=0)
    for at in range(first, len(launches)):
        tracks = _with(launches[at], small, before, caps)
        if tracks is not None:
            launches[at].tracks = tracks
            return at
    launches.append(_Launch(tracks=[[small]]))
    return len(launches) - 1


def _with(launch: _Launch, small: _Small, before: Set[_Node], caps: Caps) -> list[list[_Small]] | None:
    """The tracks of a launch with one dispatch more: after those it waits for, or beside all; None where it cannot."""
    if launch.unit is not None:
        return None
    waits = [track for track in launch.tracks if any(s.node in before for s in track)]
    others = [track for track in launch.tracks if track not in waits]
    if waits and not all(s.alone for s in (small, *(s for track in waits for s in track))):
        return None
    tracks = [*others, [*(s for track in waits for s in track), small]]
    smalls = [s for track in tracks for s in track]
    fits = (
        len(smalls) <= MOST_JOINED
        and len({s.draft.kernel.group_size for s in smalls}) == 1
        and sum(prod(track[0].draft.groups) for track in tracks) <= caps.joined_groups
        and len(_bindings(smalls)) <= caps.max_bindings
    )
    return tracks if fits else None


def _bound(small: _Small) -> list[tuple[Operand, DType]]:
    """What its parameters are bound to, and as what elements they read that."""
    return [(o, p.dtype) for o, p in zip(small.draft.operands, small.draft.kernel.params, strict=True)]


def _bindings(smalls: Sequence[_Small]) -> list[tuple[Operand, DType]]:
    return list(dict.fromkeys(binding for s in smalls for binding in _bound(s)))


def _joined(launch: _Launch) -> Unit:
    """The unit of what is launched together; a dispatch that shares its launch with none stays as it is."""
    # Large tracks first: the first needs no arithmetic for its places in the grid.
    launch.tracks.sort(key=lambda track: -prod(track[0].draft.groups))
    smalls = launch.smalls
    roots = tuple(root for s in smalls for root in s.roots)
    draft = smalls[0].draft if len(smalls) == 1 else _draft(launch)
    reads = frozenset(o.value for o in draft.operands) - set(roots)
    return Unit(tuple(s.region for s in smalls), (draft,), reads, roots)


def _draft(launch: _Launch) -> Draft:
    smalls = launch.smalls
    bindings = _bindings(smalls)
    written = {b for s in smalls for b, p in zip(_bound(s), s.draft.kernel.params, strict=True) if p.access is _WRITTEN}
    params = [
        Param(f"in{i}", binding[1], _WRITTEN if binding in written else Access.READ)
        for i, binding in enumerate(bindings)
    ]
    tracks = [
        [Launch(s.draft.kernel, s.draft.groups, tuple(bindings.index(b) for b in _bound(s))) for s in track]
        for track in launch.tracks
    ]
    kernel, groups = side_by_side("+".join(dict.fromkeys(s.draft.kernel.name for s in smalls)), params, tracks)
    work = sum(s.draft.work - DISPATCH_WORK for s in smalls) + DISPATCH_WORK
    schedule = {"threads": kernel.group_size, "joined": [len(track) for track in tracks]}
    return Draft(kernel, tuple(operand for operand, _ in bindings), groups, work, schedule)
