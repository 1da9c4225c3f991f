"""The kernel of flash attention: tiles of positions, a thread a position for scores, a thread a column for values."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.elementwise import narrowed
from poot_executor.compile.indexing import Index, unravel
from poot_executor.compile.lower.attention_combine import Gathered, Partials, finished
from poot_executor.compile.lower.attention_rows import LOWEST, AttentionRows, Loaded
from poot_executor.compile.lower.attention_visible import VisibleRows
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.mask_bounds import MaskBounds
from poot_executor.compile.region import Attention
from poot_executor.compile.schedule import FOUR, AttentionSchedule
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.buffers import SharedRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle


class AttentionKernel(AttentionRows):
    """One kernel's pieces, in the order in which they run: a thread a position for scores, a thread a column for
    values."""

    def __init__(
        self,
        frame: Frame,
        attention: Attention,
        lead: tuple[int, ...],
        schedule: AttentionSchedule,
        bounds: MaskBounds,
    ) -> None:
        super().__init__(frame, attention, lead)
        self.schedule, self.bounds = schedule, bounds
        self.threads, self.queries, self.parts = schedule.threads, schedule.queries, schedule.parts
        self.positions = schedule.positions

    def emit(self, root: Value) -> None:
        """Write the kernel that stores `root`, or with several splits what each gathered."""
        frame, b, attention = self.frame, self.frame.b, self.attention
        split = self.schedule.splits > 1
        self.declare_reads(root, split=split)
        partials = Partials.declare(frame, attention, self.schedule.splits) if split else None
        out = None if split else frame.write(root)
        batch = unravel(b, b.group_id(1), self.lead) if self.lead else ()
        first = b.group_id(0) * self.queries
        row = [
            first + m if self.rows % self.queries == 0 else b.min(first + m, self.rows - 1) for m in range(self.queries)
        ]
        tiles = -(-self.span // self.positions)
        start, step = (b.group_id(2), self.schedule.splits) if split else (b.const(0, DType.I32), 1)
        loaded = self._loaded(batch, start) if self.schedule.early else None
        query = self._share_queries(batch, row)
        self._declare(row)
        greatest = [b.var(LOWEST, DType.F32, name="greatest") for _ in row]
        total = [b.var(0.0, DType.F32, name="total") for _ in row]
        low, end = self._visible(batch, row, start, tiles, step)
        if loaded is not None:
            # Where nobody sees anything of it, all of its weights are 0.
            place, seen = self._place(batch, row, start)
            self._tile(batch, row, query, start, end - start * self.positions, place, seen, greatest, total, loaded)
            low = b.max(low, start + step)
        high = (end + (self.positions - 1)) // self.positions
        with b.range(low, high, step, name="tile") as tile:
            place, seen = self._place(batch, row, tile)
            self._tile(batch, row, query, tile, end - tile * self.positions, place, seen, greatest, total)
        sums = self._joined(greatest, total)
        with b.if_(b.thread_id() // self.columns == 0 if self.parts > 1 else b.const(True, DType.BOOL)):
            for m, at in enumerate(row):
                for j, column in enumerate(self._columns()):
                    flat = self.flat_row(batch, at)
                    inside = (first + m < self.rows) & (b.thread_id() + j * self.threads < self.columns * self.parts)
                    if partials is not None:
                        with b.if_(inside):
                            partials.store(
                                b, flat, b.group_id(2), column, sums[m][j].get(), greatest[m].get(), total[m].get()
                            )
                    else:
                        assert out is not None
                        gathered = Gathered(sums[m][j].get(), greatest[m].get(), total[m].get())
                        value = finished(frame, attention, batch, flat, column, gathered)
                        frame.supply(attention.out.output, lambda _index, value=value: value)
                        position = flat * self.columns + column
                        with b.if_(inside):
                            out[position] = frame.element(root, unravel(b, position, root.shape))

    def _declare(self, row: list[Handle]) -> None:
        """What a thread gathers, and where threads see each other's weights."""
        b = self.frame.b
        self._weights = b.shared("weights", DType.F32, self.queries * self.threads)
        self._sums = [[b.var(0.0, DType.F32, name="sum") for _ in self._columns()] for _ in row]

    def _share_queries(self, batch: Index, row: list[Handle]) -> SharedRef:
        b = self.frame.b
        query = b.shared("query", DType.F32, self.queries * self.depth)
        for m, at in enumerate(row):
            with b.range(b.thread_id(), self.depth, self.threads, name="k") as k:
                query[k + m * self.depth] = self.frame.element(self.attention.scores.inputs[0], (*batch, at, k))
        b.barrier()
        return query

    def _place(self, batch: Index, row: list[Handle], tile: Handle) -> tuple[Handle, list[Handle]]:
        """This thread's position in a tile, and whether each row sees it."""
        b = self.frame.b
        thread, share = b.thread_id(), self.schedule.lanes
        place = tile * self.positions + (thread // share if share > 1 else thread)
        inside = place < self.span
        place = b.min(place, self.span - 1)
        return place, [self.sees(batch, m, place) & inside for m in row]

    def _visible(self, batch: Index, row: list[Handle], start: Handle, tiles: int, step: int) -> tuple[Handle, Handle]:
        """The run of positions outside which no row of the group sees anything: its first tile, and one past its last
        position. A mask that compares nothing is asked at every position once, before any score, so that a long
        capacity costs little."""
        b = self.frame.b
        if self.attention.mask is None:
            return start, b.const(self.span, DType.I32)
        if self.bounds.bounds:
            return self._bounded(batch, row, start, step)
        low, end = b.var(tiles, DType.I32, name="low"), b.var(0, DType.I32, name="end")
        with b.range(start, tiles, step, name="tile") as tile:
            place, seen = self._place(batch, row, tile)
            some = seen[0]
            for other in seen[1:]:
                some = some | other
            low.set(b.select(some, b.min(low.get(), tile), low.get()))
            end.set(b.select(some, place + 1, end.get()))
        return b.group_min(low.get()), b.group_max(end.get())

    def _bounded(self, batch: Index, row: list[Handle], start: Handle, step: int) -> tuple[Handle, Handle]:
        """Likewise, from what the mask compares positions with."""
        b = self.frame.b
        visible = VisibleRows(self, self.bounds, batch, row[0], self.queries, self.threads)
        ends = [visible.ends(at) for at in row]
        end = b.max(ends[0][1], 0)
        for _, other in ends[1:]:
            end = b.max(end, other)
        lows = [low for low, _ in ends if low is not None]
        if len(lows) < len(ends):
            return start, end
        low = lows[0]
        for other in lows[1:]:
            low = b.min(low, other)
        before = b.max(low // self.positions - start, 0)
        return start + (before + (step - 1)) // step * step, end

    def _tile(
        self, batch: Index, row: list[Handle], query: SharedRef, tile: Handle,
        left: Handle, place: Handle, seen: list[Handle], greatest: list[Var], total: list[Var],
        loaded: Loaded | None = None,
    ) -> None:  # fmt: skip
        """One tile of positions, of which `left` from its first on are seen by somebody; `loaded` of it is here."""
        assert loaded is None, "only where subgroups are wide"
        b, weights, sums = self.frame.b, self._weights, self._sums
        filled = b.min(left, self.threads)
        for m, exponent in enumerate(self._exponents(batch, row, query, place)):
            top = b.max(greatest[m].get(), b.group_max(b.select(seen[m], exponent, LOWEST)))
            weight = b.select(seen[m], b.exp(exponent - top), 0.0)
            # The graph divides by the sum of what is not rounded yet.
            weights[b.thread_id() + m * self.threads] = narrowed(b, weight, self.attention.rounded)
            scale = b.exp(greatest[m].get() - top)
            total[m].set(b.fma(total[m].get(), scale, b.group_sum(weight)))
            greatest[m].set(top)
            for part in sums[m]:
                part.set(part.get() * scale)
        b.barrier()
        start = b.thread_id() // self.columns if self.parts > 1 else 0
        with b.range(start, filled, self.parts, unroll=self.schedule.unroll, name="n") as n:
            at = tile * self.threads + n
            shares = [weights[n + m * self.threads] for m in range(len(row))]
            for j, column in enumerate(self._columns()):
                value = self.frame.element(self.attention.out.inputs[1], (*batch, at, column))
                for m in range(len(row)):
                    sums[m][j].set(b.fma(shares[m], value, sums[m][j].get()))
        b.barrier()

    def _loaded(self, batch: Index, tile: Handle) -> Loaded | None:
        """K and V of a tile, asked for before anything is known of the queries; None where the kernel does not."""
        return None

    def _exponents(
        self, batch: Index, row: list[Handle], query: SharedRef, place: Handle, keys: Sequence[Handle] = ()
    ) -> list[Handle]:
        """x of this thread's position for each row: q · k over the depth, then the graph's expression. `keys` are
        vectors of four of k, where they are here already."""
        attention = self.attention
        products = self._products(batch, row, query, place, keys)
        return [self.scored(batch, at, place, x, attention.exponent) for at, x in zip(row, products, strict=True)]

    def _products(
        self, batch: Index, row: list[Handle], query: SharedRef, place: Handle, keys: Sequence[Handle]
    ) -> list[Handle]:
        """q · k of this thread's position for each row."""
        frame, b, attention = self.frame, self.frame.b, self.attention
        products = [b.var(0.0, DType.F32, name="score") for _ in row]
        wide = self.depth % FOUR == 0
        step, unroll = FOUR if wide else 1, self.schedule.unroll
        if keys:
            for i, key in enumerate(keys):
                self._multiply(query, b.const(i * FOUR, DType.I32), key, products)
        else:
            whole = self.depth // step % unroll == 0
            with b.range(0, self.depth, step, unroll=unroll if whole else None, name="k") as k:
                index = (*batch, k, place)
                if wide:
                    key = frame.emission.vector(attention.scores.inputs[1], index, len(batch))
                    self._multiply(query, k, key, products)
                else:
                    factor = frame.element(attention.scores.inputs[1], index)
                    for m, product in enumerate(products):
                        product.set(b.fma(query[k + m * self.depth], factor, product.get()))
        return [x.get() for x in products]

    def _multiply(self, query: SharedRef, k: Handle, key: Handle, products: list[Var]) -> None:
        """Add four terms of q · k of each row."""
        for m, product in enumerate(products):
            four = query.load(k + m * self.depth, FOUR)
            for i in range(FOUR):
                product.set(self.frame.b.fma(four[i], key[i] if key.width > 1 else key, product.get()))

    def _columns(self) -> list[Handle]:
        """The columns of V that this thread sums; with several parts, each part of the threads has all of them once."""
        b = self.frame.b
        if self.parts > 1:
            return [b.thread_id() % self.columns]
        columns = [b.thread_id() + j * self.threads for j in range(-(-self.columns // self.threads))]
        return columns if self.columns % self.threads == 0 else [b.min(c, self.columns - 1) for c in columns]

    def _joined(self, greatest: list[Var], total: list[Var]) -> list[list[Var]]:
        """Each row's sums by column of `_columns`: those of all parts of the threads, whose positions differ."""
        sums, b = self._sums, self.frame.b
        if self.parts == 1:
            return sums
        joined = b.shared("joined", DType.F32, self.queries * self.columns * self.parts)
        used = self.columns * self.parts
        with b.if_(b.thread_id() < used):
            for m, (column,) in enumerate(sums):
                joined[b.thread_id() + m * used] = column.get()
        b.barrier()
        for m, (column,) in enumerate(sums):
            value = b.const(0.0, DType.F32)
            for part in range(self.parts):
                value = value + joined[b.thread_id() % self.columns + (m * used + part * self.columns)]
            column.set(value)
        return sums
