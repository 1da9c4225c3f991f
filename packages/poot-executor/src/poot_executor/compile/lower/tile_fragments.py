"""A tile of products by opaque matrix fragments: weights and activations are staged as halves, subgroups multiply.

A block of quants is multiplied exactly, as halves, and then scaled; its minimum meets the sum of the block's
activations: scale · Σ q·x + minimum · Σ x, as where threads sum in registers. No lane knows which elements of a
fragment it has, so that scales, minima and sums come as fragments too: a line of shared memory that is every line of
one. Where activations are f32, each is three bf16, and a block's products start from nothing for every kind of weight,
so that they are off by no more than those of f32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.epilogue import Products
from poot_executor.compile.lower.tile_staging import Place, Staging
from poot_executor.compile.schedule_tile import ACROSS, RUN, TileSchedule
from poot_executor.graph.graph import Value
from poot_executor.kernel.builder import Var
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.handle import Handle

Sums = list[list[list[Var]]]
"""By weight, fragment of rows and fragment of columns of the subgroup."""


class FragmentTile:
    """The tile of one group. `summed` says that a weight has minima."""

    def __init__(self, frame: Frame, left: Value, schedule: TileSchedule, shape: FragmentShape, summed: bool) -> None:
        self.b, self.depth, self.schedule, self.shape = frame.b, left.shape[1], schedule, shape
        self.staging = Staging(frame, left, schedule, shape.element, summed)
        subgroup = self.b.subgroup_id()
        self.down, self.along = subgroup % ACROSS, subgroup // ACROSS

    def multiply(self, readers: list[BlockReader], row: Place, token: Place) -> Iterator[tuple[int, Products]]:
        """See `tile.Tile`."""
        b, schedule, shape, staging = self.b, self.schedule, self.shape, self.staging
        rows, chunks = schedule.rows_of(len(readers)), self.depth // schedule.chunk
        tall, wide = rows // (ACROSS * shape.rows), schedule.tokens // (ACROSS * shape.columns)
        sums: Sums = [
            [[b.var(b.fragment_zero(shape.sum), name="sums") for _ in range(wide)] for _ in range(tall)]
            for _ in readers
        ]
        for w, reader in enumerate(readers):
            if self.schedule.parts > 1 and not reader.scaled:
                staging.ones(w, rows)
        waiting = staging.ahead(readers, rows, row, token)
        with b.range(0, chunks, name="chunk") as chunk:
            staging.stage(waiting, readers, rows, chunk * schedule.chunk, token)
            b.barrier()
            after = b.min(chunk + 1, chunks - 1) * schedule.chunk
            staging.fetch(waiting, readers, rows, after, row, token)
            for run in range(schedule.runs):
                self._add(readers, sums, rows, run)
            b.barrier()
        step = schedule.piece // (ACROSS * shape.columns)
        products = Products(staging.floats, schedule.piece, rows, len(readers))
        for start in range(0, wide, step):
            if start:
                b.barrier()
            for w, weight in enumerate(sums):
                for r, fragments in enumerate(weight):
                    for n in range(step):
                        place = products.place(0, w, self._token(n), self._row(r, rows))
                        staging.floats.store_fragment(place, fragments[start + n].get(), rows, "column")
            b.barrier()
            yield start * ACROSS * shape.columns, products

    def _row(self, r: int, rows: int) -> Handle:
        """The first row of the subgroup's fragment of rows: its fragments are neighbours."""
        return self.down * (rows // ACROSS) + r * self.shape.rows

    def _token(self, n: int) -> Handle:
        """The first token of the subgroup's fragment of columns: subgroups take turns, so that pieces are whole."""
        return self.along * self.shape.columns + n * (ACROSS * self.shape.columns)

    def _add(self, readers: Sequence[BlockReader], sums: Sums, rows: int, run: int) -> None:
        """The products of a run of columns."""
        b, shape, staging, pitch = self.b, self.shape, self.staging, self.schedule.pitch
        steps = range(RUN // shape.depth)
        words = [(run * RUN + k * shape.depth) // 2 for k in steps]

        def factor(w: int, r: int) -> list[Handle]:
            line = staging.weight_line(w, self._row(r, rows), rows)
            return [staging.halves.load_fragment(line + at, shape.a, pitch) for at in words]

        tall = range(len(sums[0]))
        left = [[factor(w, r) for r in tall] for w in range(len(readers))]
        scales = [[self._scales(reader, w, r, rows, run) for r in tall] for w, reader in enumerate(readers)]
        for n in range(len(sums[0][0])):
            # The small thirds first: sums that they would round are not there yet.
            lines = [staging.token_line(self._token(n), part) for part in reversed(range(self.schedule.parts))]
            right = [
                [staging.halves.load_fragment(line + at, shape.b, pitch, "column") for at in words] for line in lines
            ]
            total_x = self._column_sums(n, run) if staging.summed else None
            for w, weight in enumerate(sums):
                for r, fragments in enumerate(weight):
                    scale, minimum = scales[w][r]
                    total = fragments[n].get()
                    product = total if scale is None else b.fragment_zero(shape.sum)
                    for part in right:
                        for k in steps:
                            product = b.fragment_mma(left[w][r][k], part[k], product)
                    total = product if scale is None else b.fragment_fma(scale, product, total)
                    if minimum is not None and total_x is not None:
                        total = b.fragment_fma(minimum, total_x, total)
                    fragments[n].set(total)

    def _scales(self, reader: BlockReader, w: int, r: int, rows: int, run: int) -> tuple[Handle | None, Handle | None]:
        """Scale and minimum of each row of a fragment, in all its columns."""
        if not reader.scaled and self.schedule.parts == 1:
            return None, None
        floats, at = self.staging.floats, self.staging.scale_place(w, self._row(r, rows), rows, run)
        scale = floats.load_fragment(at, self.shape.sum, 0, "column")
        if not reader.has_minimum:
            return scale, None
        return scale, floats.load_fragment(at + self.staging.minima, self.shape.sum, 0, "column")

    def _column_sums(self, n: int, run: int) -> Handle:
        """Σ x of the run of each column of a fragment, in all its rows."""
        return self.staging.floats.load_fragment(self.staging.sum_place(self._token(n), run), self.shape.sum, 0, "row")
