"""Flash attention where subgroups are wide: each walks positions of its own, and they meet at the end alone.

A lane has a position for the scores, or a few lanes share one; for the values a few lanes have a row of V, four columns
each, and several rows are read at once. Maxima are taken by shuffles and weights are passed round by them, so that no
tile waits for the group. At the end the subgroups' sums are scaled to their common maximum.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.elementwise import narrowed
from poot_executor.compile.indexing import Index
from poot_executor.compile.lower.attention_kernel import AttentionKernel
from poot_executor.compile.lower.attention_rows import LOWEST, Loaded
from poot_executor.compile.lower.half_words import exact_half
from poot_executor.compile.schedule import FOUR
from poot_executor.dtype import DType
from poot_executor.kernel.buffers import SharedRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle


class SubgroupKernel(AttentionKernel):
    """One kernel's pieces, where each subgroup gathers for itself."""

    def _declare(self, row: list[Handle]) -> None:
        b = self.frame.b
        self.parts = 1
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(FOUR)))
        self._fours = [[b.var(zero, name="sum") for _ in range(self.turns)] for _ in row]

    @property
    def width(self) -> int:
        """Lanes of a subgroup."""
        width = self.frame.caps.subgroup_width
        assert width is not None
        return width

    @property
    def own(self) -> int:
        """Positions of a tile that a subgroup has."""
        return self.width // self.schedule.lanes

    @property
    def lanes(self) -> int:
        """Lanes that have a row of V between them, `turns` times four columns each."""
        return min(self.columns // FOUR, self.width)

    @property
    def turns(self) -> int:
        """Vectors of a row of V that a lane has."""
        return self.columns // FOUR // self.lanes

    def _loaded(self, batch: Index, tile: Handle) -> Loaded | None:
        frame, b = self.frame, self.frame.b
        share = self.schedule.lanes
        key_words, value_words = (
            count // (1 if exact_half(frame.scene.graph, value) is None else 2) // share
            for value, count in (
                (self.attention.scores.inputs[1], self.depth),
                (self.attention.out.inputs[1], self.columns),
            )
        )
        if self.depth % FOUR or key_words > frame.caps.early_words:
            return None
        place = b.min(tile * self.positions + b.thread_id() // share, self.span - 1)
        source = self.attention.scores.inputs[1]
        keys = tuple(frame.emission.vector(source, (*batch, k, place), len(batch)) for k in self._depths())
        if key_words + value_words > frame.caps.early_words:
            return Loaded(keys, ())
        first = tile * self.positions + b.subgroup_id() * self.own
        rounds = range(0, self.own, self.width // self.lanes)
        return Loaded(keys, tuple(self._values(batch, first, b.const(n, DType.I32)) for n in rounds))

    def _depths(self) -> list[Handle]:
        """Where in the depth this lane's vectors of its position begin: those of lanes that share one alternate."""
        b, share = self.frame.b, self.schedule.lanes
        first = b.lane_id() % share * FOUR if share > 1 else b.const(0, DType.I32)
        return [first + k for k in range(0, self.depth, FOUR * share)]

    def _products(
        self, batch: Index, row: list[Handle], query: SharedRef, place: Handle, keys: Sequence[Handle]
    ) -> list[Handle]:
        share, b = self.schedule.lanes, self.frame.b
        if share == 1:
            return super()._products(batch, row, query, place, keys)
        products = [b.var(0.0, DType.F32, name="score") for _ in row]
        for i, k in enumerate(self._depths()):
            index = (*batch, k, place)
            key = keys[i] if keys else self.frame.emission.vector(self.attention.scores.inputs[1], index, len(batch))
            self._multiply(query, k, key, products)
        found, distance = [x.get() for x in products], 1
        while distance < share:
            found = [x + b.subgroup_shuffle_xor(x, distance) for x in found]
            distance *= 2
        return found

    def _values(self, batch: Index, first: Handle, n: Handle) -> tuple[Handle, ...]:
        """This lane's columns of the row of V that it has in a round, the subgroup's positions beginning at `first`."""
        b = self.frame.b
        position = b.min(first + (n + b.lane_id() // self.lanes), self.span - 1)
        found = []
        for j in range(self.turns):
            column = (b.lane_id() % self.lanes + j * self.lanes) * FOUR
            index = (*batch, position, column)
            value = self.frame.emission.vector(self.attention.out.inputs[1], index, len(index) - 1)
            found.append(value if value.width > 1 else b.vector(value, value, value, value))
        return tuple(found)

    def _tile(
        self, batch: Index, row: list[Handle], query: SharedRef, tile: Handle,
        left: Handle, place: Handle, seen: list[Handle], greatest: list[Var], total: list[Var],
        loaded: Loaded | None = None,
    ) -> None:  # fmt: skip
        b = self.frame.b
        weights = []
        keys = () if loaded is None else loaded.keys
        for m, exponent in enumerate(self._exponents(batch, row, query, place, keys)):
            top = b.max(greatest[m].get(), b.subgroup_max(b.select(seen[m], exponent, LOWEST)))
            weight = b.select(seen[m], b.exp(exponent - top), 0.0)
            scale = b.exp(greatest[m].get() - top)
            # A lane's own positions: lanes are summed at the end.
            total[m].set(b.fma(total[m].get(), scale, weight))
            greatest[m].set(top)
            for part in self._fours[m]:
                part.set(part.get() * scale)
            weights.append(narrowed(b, weight, self.attention.rounded))
        # Every subgroup goes round as often, up to the last position that any of the first one's lanes sees.
        rows = self.width // self.lanes
        first = tile * self.positions + b.subgroup_id() * self.own
        filled = b.min(left, self.own)
        if loaded is not None and loaded.values:
            zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(FOUR)))
            for i, values in enumerate(loaded.values):
                at = i * rows + b.lane_id() // self.lanes
                # Nobody may ever have written what nobody sees: it is no number that a weight of 0 takes away.
                self._gather(weights, at, [b.select(at < filled, value, zero) for value in values])
            return
        with b.range(0, filled, rows, unroll=self.schedule.unroll, name="n") as n:
            self._gather(weights, n + b.lane_id() // self.lanes, self._values(batch, first, n))

    def _gather(self, weights: list[Handle], at: Handle, values: Sequence[Handle]) -> None:
        """Add the row of V at a lane's position of its subgroup to each row's sums, weighted."""
        b = self.frame.b
        shares = [b.subgroup_shuffle(weight, at * self.schedule.lanes) for weight in weights]
        for j, value in enumerate(values):
            for m, share in enumerate(shares):
                part = self._fours[m][j]
                part.set(b.fma(b.vector(share, share, share, share), value, part.get()))

    def _joined(self, greatest: list[Var], total: list[Var]) -> list[list[Var]]:
        """Through shared memory: every subgroup's sums, maximum and total, scaled to the common maximum."""
        b, subgroups = self.frame.b, self.threads // self.width
        queries, columns = len(total), self.columns
        gathered = b.shared("gathered", DType.F32, subgroups * queries * columns)
        tops = b.shared("tops", DType.F32, subgroups * queries)
        totals = b.shared("totals", DType.F32, subgroups * queries)
        subgroup, lane = b.subgroup_id(), b.lane_id()
        for m in range(queries):
            # Lanes that share a position have each all of it.
            own = total[m].get()
            share = self.schedule.lanes
            whole = b.subgroup_sum(own if share == 1 else b.select(lane % share == 0, own, 0.0))
            with b.if_(lane == 0):
                tops[subgroup * queries + m] = greatest[m].get()
                totals[subgroup * queries + m] = whole
            for j, part in enumerate(self._fours[m]):
                lanes = [part.get()[i] for i in range(FOUR)]
                distance = self.lanes
                while distance < self.width:  # lanes of other positions
                    lanes = [x + b.subgroup_shuffle_xor(x, distance) for x in lanes]
                    distance *= 2
                at = (subgroup * queries + m) * columns + (lane + j * self.lanes) * FOUR
                with b.if_(lane < self.lanes):
                    for i, x in enumerate(lanes):
                        gathered[at + i] = x
        b.barrier()
        return [self._scaled(m, queries, gathered, tops, totals, greatest[m], total[m]) for m in range(queries)]

    def _scaled(
        self, m: int, queries: int, gathered: SharedRef, tops: SharedRef, totals: SharedRef, greatest: Var, total: Var
    ) -> list[Var]:
        b, subgroups = self.frame.b, self.threads // self.width
        if subgroups <= self.width:
            # A lane has a subgroup's scale.
            at = b.min(b.lane_id(), subgroups - 1) * queries + m
            top = b.subgroup_max(tops[at])
            scale = b.exp(tops[at] - top)
            whole = b.subgroup_sum(b.select(b.lane_id() < subgroups, totals[at] * scale, 0.0))
            scales = [b.subgroup_shuffle(scale, s) for s in range(subgroups)]
        else:
            found = [tops[s * queries + m] for s in range(subgroups)]
            top, whole = found[0], b.const(0.0, DType.F32)
            for other in found[1:]:
                top = b.max(top, other)
            scales = [b.exp(other - top) for other in found]
            for s, scale in enumerate(scales):
                whole = b.fma(totals[s * queries + m], scale, whole)
        greatest.set(top)
        total.set(whole)
        sums = []
        for column in self._columns():
            at, value = b.min(column, self.columns - 1), b.const(0.0, DType.F32)
            for s, scale in enumerate(scales):
                value = b.fma(gathered[at + (s * queries + m) * self.columns], scale, value)
            sums.append(b.var(value, name="sum"))
        return sums
