"""What is ordered and placed: regions with their dispatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_executor.compile.lower.draft import Draft
from poot_executor.compile.region import Region
from poot_executor.graph.graph import Value


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Dispatches that run together: those of one region, or a single one that is joined of as many as there are
    `regions`. `reads` are the stored values that they read, besides the `roots` that they store and what those
    update."""

    regions: tuple[Region, ...]
    drafts: tuple[Draft, ...]
    reads: frozenset[Value]
    roots: tuple[Value, ...]

    @property
    def kind(self) -> str:
        """The kind of its region, or of each that is joined."""
        return "+".join(region.kind for region in self.regions)

    @property
    def updates(self) -> dict[Value, Value]:
        """Of each root that is an update of another value, that value."""
        return {root: old for region in self.regions for root, old in region.updates.items()}

    @property
    def touches(self) -> frozenset[Value]:
        """Every value that must be there before: read, updated in place or copied."""
        return self.reads | frozenset(self.updates.values())


def make_unit(region: Region, drafts: Sequence[Draft]) -> Unit:
    """A lowered region."""
    reads = frozenset(o.value for d in drafts for o in d.operands) - set(region.roots)
    return Unit((region,), tuple(drafts), reads, region.roots)
