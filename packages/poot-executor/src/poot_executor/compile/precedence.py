"""Which regions must come before which, while regions are merged: two may become one only where neither waits for the
other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_executor.compile.region import Region
from poot_executor.graph.graph import Value


class Precedence:
    """Regions by root, each with those that it waits for. A region that updates a value waits for the others that read
    the old one too, unless they wait for it: then it updates a copy."""

    def __init__(self, regions: Sequence[Region], readers: Mapping[Value, Sequence[Region]]) -> None:
        """`readers` are the regions that read each stored value."""
        self._merged: dict[Value, Value] = {}
        self._before: dict[Value, set[Value]] = {r.root: set() for r in regions}
        for root in self._before:
            for reader in readers.get(root, ()):
                self._before[reader.root].add(root)
        for region in regions:
            for root, old in region.updates.items():
                others = [r.root for r in readers.get(old, ()) if r.root != root]
                self._before[root].update(other for other in others if not self.waits(other, root))

    def waits(self, root: Value, other: Value) -> bool:
        """Must the region of `root` come after that of `other`?"""
        goal = self._find(other)
        stack, seen = [self._find(root)], set()
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            before = {self._find(v) for v in self._before[at]} - {at}
            if goal in before:
                return True
            stack.extend(before)
        return False

    def independent(self, one: Value, other: Value) -> bool:
        """May two regions be merged without a circle?"""
        return not self.waits(one, other) and not self.waits(other, one)

    def merge(self, one: Value, other: Value) -> None:
        """Make two regions one: independent ones, or one that is the other's only reader."""
        one, other = self._find(one), self._find(other)
        if one != other:
            self._merged[other] = one
            self._before[one] |= self._before.pop(other)

    def _find(self, root: Value) -> Value:
        while root in self._merged:
            root = self._merged[root]
        return root
