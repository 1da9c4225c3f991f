"""Contractions of many activation rows: a group computes a tile of weight rows by tokens from shared memory.

The same dispatches as `projection.py` makes, from other products: what is staged a chunk of columns at a time is
multiplied by all threads of the group, and the products go through shared memory into the epilogue. How they multiply
is a part of its own (`tile_floats`, `tile_fragments`). A norm before the contraction is a dispatch of its own: every
group would compute it again for all its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Scene
from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.epilogue import Products, store_products
from poot_executor.compile.lower.projection import declare_reads, layout_of
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.lower.tile_floats import FloatTile
from poot_executor.compile.lower.tile_fragments import FragmentTile
from poot_executor.compile.lower.tile_staging import piece_words
from poot_executor.compile.region import Projection, Region
from poot_executor.compile.schedule_tile import TileSchedule, tile_schedule
from poot_executor.compile.target import Caps
from poot_executor.graph.graph import Equation
from poot_executor.kernel.handle import Handle


class Tile(Protocol):
    """How a group multiplies."""

    def multiply(
        self, readers: list[BlockReader], row: Callable[[Handle], Handle], token: Callable[[Handle], Handle]
    ) -> Iterator[tuple[int, Products]]:
        """The products of the weights side by side, piece by piece: the first token of each, and its products in shared
        memory behind a barrier, to be stored before the next is asked for. `row` and `token` give the weight row and
        the activation row of a place in the tile."""
        ...


def lower_tile(scene: Scene, region: Region, caps: Caps) -> list[Draft] | None:
    """A projection's dispatches, or None where its activation rows are few or its shape is not for tiles."""
    projection = region.projection
    assert projection is not None
    if projection.prologue is not None:
        return None
    segments = projection.segments
    weights = [(layout_of(scene, s.anchors[0]), s) for s in segments]
    schedule = tile_schedule(weights, projection.left.shape[0], projection.left.dtype, caps)
    if schedule is None:
        return None
    hidden = {a.output for s in segments for a in s.anchors} | set(region.roots)
    inner = Scene(scene.graph, scene.stored - hidden, scene.layouts)
    return [
        _Template(Frame(inner, caps, region.kind, schedule.threads), projection, schedule, part).emit()
        for part in range(len(weights[0][0].parts))
    ]


class _Template:
    """One kernel's pieces, in the order in which they run."""

    def __init__(self, frame: Frame, projection: Projection, schedule: TileSchedule, part: int) -> None:
        self.frame, self.b, self.projection = frame, frame.b, projection
        self.schedule, self.part = schedule, part
        self.count = projection.left.shape[0]
        self.readers = [[self._reader(a) for a in s.anchors] for s in projection.segments]
        self.maps = [RowMap(schedule.rows_of(len(s.anchors)), s.block, s.stride) for s in projection.segments]

    def _reader(self, anchor: Equation) -> BlockReader:
        layout, weight = layout_of(self.frame.scene, anchor), weight_of(self.frame.scene.graph, anchor)
        assert weight is not None
        wide, narrow = (self.frame.weight_part(weight, self.part) for _ in range(2))
        # Fragments are staged by words, so that neighbouring threads read neighbouring ones.
        words = None if self.schedule.shape is None else piece_words(layout)
        return BlockReader(self.b, wide, narrow, layout, layout.parts[self.part], words)

    def emit(self) -> Draft:
        frame, b, projection, schedule = self.frame, self.b, self.projection, self.schedule
        declare_reads(frame, projection)
        outs = [frame.write(s.root, separate=True) for s in projection.segments]
        across = [m.groups(r[0].part.rows) for m, r in zip(self.maps, self.readers, strict=True)]
        tiles = -(-self.count // schedule.tokens)
        flat = grid(sum(across) * tiles, frame.caps)
        # Groups of the same weight rows are neighbours: they read them from a cache.
        turn = frame.flat_group(flat)
        place, first = turn // tiles, turn % tiles * schedule.tokens
        tile = self._tile()
        start = 0
        for s, segment in enumerate(projection.segments):
            group, part = place - start, self.readers[s][0].part
            with b.if_((place >= start) & (group < across[s])):
                pieces = tile.multiply(
                    self.readers[s],
                    lambda at, s=s, group=group: self._row(s, group, at),
                    lambda at: b.min(first + at, self.count - 1) if self.count % schedule.tokens else first + at,
                )
                for offset, products in pieces:
                    tokens, threads = first + offset, schedule.threads
                    store_products(
                        frame, segment, outs[s], products, self.maps[s], group, tokens, self.count, part, threads
                    )
            start += across[s]
        return frame.draft(
            flat,
            frame.nbytes(),
            **schedule.describe(),
            weights=[len(s.anchors) for s in projection.segments],
            prologue=False,
            part=self.part,
        )

    def _tile(self) -> Tile:
        anchors = [len(s.anchors) for s in self.projection.segments]
        if self.schedule.shape is None:
            return FloatTile(self.frame, self.projection.left, self.schedule, max(anchors))
        summed = any(r.has_minimum for readers in self.readers for r in readers)
        return FragmentTile(self.frame, self.projection.left, self.schedule, self.schedule.shape, summed)

    def _row(self, s: int, group: Handle, place: Handle) -> Handle:
        """The weight row of a place; beyond the weight its last one, whose product nobody stores."""
        found, rows = self.maps[s].row(group, place), self.readers[s][0].part.rows
        return found if rows % self.maps[s].columns == 0 else self.b.min(found, rows - 1)
