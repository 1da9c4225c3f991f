"""Norms before contractions join them, computed by every group for itself."""

from __future__ import annotations

from poot_executor.compile.classify import weight_of
from poot_executor.compile.experts import takes_norm
from poot_executor.compile.fusing import Fusing
from poot_executor.compile.norm_reads import NORM_READS, norm_reads
from poot_executor.compile.program import Decline
from poot_executor.compile.reading import reads
from poot_executor.compile.region import Region, Segment
from poot_executor.compile.schedule_fragments import STEP_ROWS
from poot_executor.compile.schedule_picks import MEASURED, norm_key
from poot_executor.compile.schedule_tile import tile_schedule
from poot_executor.graph.graph import Value
from poot_executor.layout import WeightLayout

PROLOGUE_BYTES = 1 << 20
"""An input larger than this is normed once: recomputing it in every group would cost more than a dispatch."""


class Prologues:
    """Finds the norm that what reads an input takes in, and says why not where none is."""

    def __init__(self, state: Fusing) -> None:
        self.state = state

    def of(self, left: Value) -> Region | None:
        """The row reduction that makes the input `left`, where every segment of it can take it in."""
        source = self._source(left)
        region = self.state.by_root.get(source)
        if region is None or region.kind != "row_reduction" or region.anchor is not None or source in self.state.wanted:
            return None
        if source.shape[-1] != left.shape[-1] or source.type.nbytes > PROLOGUE_BYTES:
            return None
        if "mma" in self.state.caps.features and left.shape[0] > STEP_ROWS:
            return None  # Fragments stage many rows in any order, and would norm each of them for every group.
        if self._tiles(left):
            return None  # Likewise.
        experts = self.experts(region)
        readers = [r for r in self.state.readers[source] if r not in experts]
        if not all(r.root in self.state.taken for r in readers):
            return None
        segments = [s for _, s in self.state.segments[left]]
        joined = {a.output for s in segments for a in s.anchors}
        if any(reads(self.state.graph, s.domain, source, joined | self.state.stored - {s.domain}) for s in segments):
            return None  # An epilogue reads the normed input itself.
        for reader in readers:
            if reader.anchor is None or reader.anchor.output not in joined:
                return None
        measured = dict(self.state.norms.get(norm_key(self.state.graph, left, segments, self.state.layouts), ())).get(
            "apart"
        )
        reads_of_norm = norm_reads(self._weights(left), left, source, self.state.caps)
        if measured or (measured is None and reads_of_norm > NORM_READS):
            why = f"its groups would read {reads_of_norm:,} bytes for their norms"
            if measured:
                why = f"{MEASURED}: a norm of its own is faster"
            self.state.declines.append(Decline("projection", self.state.position[region.root], why))
            return None
        return region

    def experts(self, norm: Region) -> list[Region]:
        """Regions of experts whose groups can norm their rows for themselves."""
        return [r for r in self.state.readers[norm.root] if takes_norm(self.state.graph, r, norm, self.state.stored)]

    def _tiles(self, left: Value) -> bool:
        """Do tiles of many rows take what reads this input?"""
        return tile_schedule(self._weights(left), left.shape[0], left.dtype, self.state.caps) is not None

    def _weights(self, left: Value) -> list[tuple[WeightLayout, Segment]]:
        """The first weight of each segment that reads this input."""
        weights = [(weight_of(self.state.graph, s.anchors[0]), s) for _, s in self.state.segments[left]]
        return [(self.state.layouts[weight], s) for weight, s in weights if weight is not None]

    def _source(self, value: Value) -> Value:
        """The stored value under reshapes and casts, which a contraction's input may wear."""
        while (
            value not in self.state.stored
            and (equation := self.state.graph.equation(value)) is not None
            and equation.op in ("reshape", "cast")
        ):
            value = equation.inputs[0]
        return value
