"""Flash attention by matrix fragments: scores and weighted values are products of halves that subgroups multiply.

A group's subgroups have 16 rows each, or a multiple, and walk the positions together, a tile of K and V in shared
memory at a time. Queries stay in registers, and so do a tile's scores, which after maxima, exponents and rounding are
the left factor of the product with V as they lie (Dao 2023). Each tile is on its way while the product before the one
that needs it runs. Rows, masks and what becomes of scores are the graph's own, as in `attention_kernel.py`.
"""

from __future__ import annotations

from poot_executor.compile.indexing import Index, unravel
from poot_executor.compile.lower.attention_combine import Partials, share_of, unseen_weight
from poot_executor.compile.lower.attention_rows import LOWEST, AttentionRows
from poot_executor.compile.lower.attention_stages import Queries, Stage, Staged, columns_together
from poot_executor.compile.lower.attention_visible import Visible, VisibleRows
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.lower.half_words import EIGHT, exact_half, half_words, pack_pair
from poot_executor.compile.lower.weight_power import weight_power
from poot_executor.compile.mask_bounds import MaskBounds
from poot_executor.compile.region import Attention
from poot_executor.compile.schedule_attention import COLUMNS, DEPTH, PAIR, ROWS, FragmentAttention
from poot_executor.dtype import DType
from poot_executor.graph.graph import Graph, Value
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle

QUAD = 4
"""Lanes that have a row of sums between them, columns 2t and 2t + 1 of every eight."""
UPPER_LOWER = (0, 1)
"""A lane's two rows of a fragment: g and g + 8."""


def halves_of(graph: Graph, attention: Attention) -> DType | None:
    """The halves in which an attention's queries, keys, weights and values all are, summed in f32; None where they are
    in none, or in several."""
    queries, keys = attention.scores.inputs
    values = attention.out.inputs[1]
    kinds = {attention.rounded, *(exact_half(graph, v) for v in (queries, keys, values))}
    summed = attention.scores.output.dtype is DType.F32 and attention.out.output.dtype is DType.F32
    return kinds.pop() if len(kinds) == 1 and summed else None


class FragmentAttentionKernel(AttentionRows):
    """One kernel's pieces, in the order in which they run."""

    def __init__(
        self, frame: Frame, attention: Attention, lead: tuple[int, ...], schedule: FragmentAttention, bounds: MaskBounds
    ) -> None:
        super().__init__(frame, attention, lead)
        self.schedule, self.half, self._bounds = schedule, schedule.half, bounds
        b = self.b = frame.b
        self.lane, self.group_lane = b.lane_id() % QUAD, b.lane_id() // QUAD

    def emit(self, root: Value) -> None:
        """Write the kernel that stores `root`, or with several splits what each gathered."""
        frame, b, schedule = self.frame, self.b, self.schedule
        split = schedule.splits > 1
        self.declare_reads(root, split=split)
        partials = Partials.declare(frame, self.attention, schedule.splits) if split else None
        out = None if split else frame.write(root)
        self.batch: Index = unravel(b, b.group_id(0), self.lead) if self.lead else ()
        # The last rows, which see most under a causal mask, first: what ends last is little.
        first = (-(-self.rows // schedule.rows) - 1 - b.group_id(1)) * schedule.rows
        self.visible = VisibleRows(self, self._bounds, self.batch, first, schedule.rows, schedule.threads)
        # Rows of a lane differ by what is known, so that one register tells them all.
        mine = first + (b.subgroup_id() * (schedule.tiles * ROWS) + self.group_lane)
        rows = [[mine + (r * ROWS + 8 * h) for h in UPPER_LOWER] for r in range(schedule.tiles)]
        self.row = [[self.visible.inside(row) for row in both] for both in rows]
        self._walk()
        whole = b.const(True, DType.BOOL) if self.rows % schedule.rows == 0 else None
        for r, both in enumerate(rows):
            for h, row in enumerate(both):
                inside = row < self.rows if whole is None else whole
                if partials is not None:
                    self._leave(partials, r, h, inside)
                else:
                    assert out is not None
                    self._finish(root, out, r, h, inside)

    # The walk over positions

    def _walk(self) -> None:
        b, schedule = self.b, self.schedule
        queries = self._queries()
        self._declare()
        seen = self.visible.run()
        each = schedule.positions
        low, high = seen.low // each, (seen.end + (each - 1)) // each
        step = schedule.splits
        if step > 1:
            low = low + (b.group_id(2) + step - low % step) % step
        keys, values = self._stages()
        keys.begin(low * each)
        with b.range(low, high, step, name="tile") as tile:
            first = tile * each
            keys.land(first)
            b.barrier()
            values.begin(first)
            products = self._products(queries, keys)
            weights = [self._weights(r, products[r], first, seen) for r in range(schedule.tiles)]
            values.land(first)
            b.barrier()
            keys.begin(first + each * step)
            self._add(weights, values)

    def _declare(self) -> None:
        b, schedule = self.b, self.schedule
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(4)))
        self.sums = [[b.var(zero, name="sums") for _ in range(self.columns // COLUMNS)] for _ in range(schedule.tiles)]
        self.greatest, self.total = (
            [[b.var(number, DType.F32, name=name) for _ in UPPER_LOWER] for _ in range(schedule.tiles)]
            for number, name in ((LOWEST, "greatest"), (0.0, "total"))
        )
        self.ends = [[self.visible.ends(row) for row in rows] for rows in self.row] if self.visible.whole else []

    def _queries(self) -> Queries:
        value, axis = self.attention.scores.inputs[0], len(self.batch) + 1

        def words(row: Handle, pair: int) -> list[Handle]:
            column = self.lane * EIGHT + pair * PAIR
            return half_words(self.frame, value, (*self.batch, row, column), axis, self.half)

        factors: list[list[Handle]] = []
        for rows in self.row:
            pairs = [[words(row, pair) for row in rows] for pair in range(self.depth // PAIR)]
            made = [(u[k], v[k], u[k + 1], v[k + 1]) for u, v in pairs for k in (0, 2)]
            factors.append([self.b.vector(*four) for four in made])
        return Queries(self.b, factors, self.schedule.threads, apart=self.schedule.apart)

    def _stages(self) -> tuple[Stage, Stage]:
        schedule, attention, batch, axes = self.schedule, self.attention, self.batch, len(self.batch)
        key, value = attention.scores.inputs[1], attention.out.inputs[1]
        keys = Staged(key, axes, lambda line, column: (*batch, column, self._place(line)))
        values = Staged(value, axes + 1, lambda line, column: (*batch, self._place(line), column))

        def stage(name: str, staged: Staged, columns: int, pitch: int) -> Stage:
            lines, threads, copies = schedule.positions, schedule.threads, schedule.copies
            return Stage(self.frame, name, staged, self.half, lines, columns // EIGHT, pitch, threads, copies=copies)

        return (
            stage("keys", keys, self.depth, schedule.key_pitch),
            stage("values", values, self.columns, schedule.value_pitch),
        )

    def _place(self, line: Handle) -> Handle:
        """A position; beyond the span the last one, which nobody sees."""
        return self.b.min(line, self.span - 1)

    # Scores

    def _products(self, queries: Queries, keys: Stage) -> list[list[Handle]]:
        """q · k by fragment of rows and eight positions."""
        b, schedule = self.b, self.schedule
        mine = keys.key_place(self.group_lane, self.lane)
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(4)))
        found = [[zero] * (schedule.positions // COLUMNS) for _ in range(schedule.tiles)]
        for pair in range(self.depth // PAIR):
            factors = [[queries.factor(r, 2 * pair + k) for k in (0, 1)] for r in range(schedule.tiles)]
            for n in range(schedule.positions // COLUMNS):
                words = keys.key_words(mine, n * COLUMNS, pair)
                for k in (0, 1):
                    factor = b.vector(words[2 * k], words[2 * k + 1])
                    for r, left in enumerate(factors):
                        found[r][n] = b.mma(left[k], factor, found[r][n], self.half)
        return found

    def _weights(self, r: int, products: list[Handle], first: Handle, seen: Visible) -> list[list[Handle]]:
        """A fragment's weights as left factors, by two times eight positions, after the running maximum, sum and
        values were rescaled."""
        b = self.b
        exponents = [self._seen(r, h, products, first, seen) for h in UPPER_LOWER]
        words: list[list[Handle]] = []
        for h in UPPER_LOWER:
            top = exponents[h][0]
            for other in exponents[h][1:]:
                top = b.max(top, other)
            top = b.max(self.greatest[r][h].get(), self._of_row(top, maximum=True))
            scale = weight_power(self.greatest[r][h].get() - top)
            weights = [weight_power(x - top) for x in exponents[h]]
            total = self.total[r][h].get() * scale
            for weight in weights:
                total = total + weight  # The graph divides by the sum of what is not rounded yet.
            self.total[r][h].set(total)
            self.greatest[r][h].set(top)
            exponents[h] = [scale]
            words.append([pack_pair(x, y, self.half) for x, y in zip(weights[::2], weights[1::2], strict=True)])
        (upper,), (lower,) = exponents
        for part in self.sums[r]:
            part.set(part.get() * b.vector(upper, upper, lower, lower))
        one, other = words
        return [[one[n], other[n], one[n + 1], other[n + 1]] for n in range(0, len(one), 2)]

    def _seen(self, r: int, h: int, products: list[Handle], first: Handle, seen: Visible) -> list[Handle]:
        """x of the lane's positions of a row, infinitely little where the row does not see them."""
        b, attention, each = self.b, self.attention, self.schedule.positions
        row = self.row[r][h]
        masked = None if attention.mask is None else self.frame.scene.graph.equation(attention.exponent)
        value = attention.exponent if masked is None else masked.inputs[1]
        places = [first + self.lane * 2 + (n * COLUMNS + c) for n in range(len(products)) for c in (0, 1)]
        inside = [place if self.span % each == 0 else b.min(place, self.span - 1) for place in places]
        found = [
            self.scored(self.batch, row, place, products[i // 2][2 * h + i % 2], value)
            for i, place in enumerate(inside)
        ]
        if self.visible.whole:
            variables = [b.var(x, name="x") for x in found]
            low, end = self.ends[r][h]
            partly = (first + each > seen.all_end) | (first < seen.all_low)
            with b.if_(partly):
                for variable, place in zip(variables, places, strict=True):
                    visible = place < end if low is None else (place < end) & (place >= low)
                    variable.set(b.select(visible, variable.get(), float("-inf")))
            return [variable.get() for variable in variables]
        self.frame.emission.forget()
        return [
            b.select(self.sees(self.batch, row, place) & (plain < self.span), x, float("-inf"))
            for place, plain, x in zip(inside, places, found, strict=True)
        ]

    def _of_row(self, value: Handle, *, maximum: bool = False) -> Handle:
        """The sum, or the maximum, over the four lanes that have a row."""
        b = self.b
        for distance in (1, 2):
            other = b.subgroup_shuffle_xor(value, distance)
            value = b.max(value, other) if maximum else value + other
        return value

    # Values

    def _pieces(self) -> list[tuple[int, int]]:
        """V's columns as runs of which eight lanes have each so many words: where it begins, and the words."""
        pieces, start = [], 0
        for words in (4, 2, 1):
            while self.columns - start >= 2 * COLUMNS * words:
                pieces.append((start, words))
                start += 2 * COLUMNS * words
        return pieces

    def _add(self, weights: list[list[list[Handle]]], values: Stage) -> None:
        """weights · values to the sums. A lane's sums of a piece are of neighbouring columns: see `_own`."""
        b, pieces = self.b, self._pieces()
        mine = [values.value_place(self.lane, self.group_lane * count) for _, count in pieces]
        for j in range(self.schedule.positions // DEPTH):
            for place, (start, count) in zip(mine, pieces, strict=True):
                lines = [values.value_words(place, j * DEPTH + more, start // 2, count) for more in (0, 1, 8, 9)]
                for i in range(count):
                    pairs = [columns_together(lines[k][i], lines[k + 1][i]) for k in (0, 2)]
                    for odd in (0, 1):
                        factor = b.vector(pairs[0][odd], pairs[1][odd])
                        for r, factors in enumerate(weights):
                            total = self.sums[r][start // COLUMNS + 2 * i + odd]
                            total.set(b.mma(b.vector(*factors[j]), factor, total.get(), self.half))

    def _own(self, r: int, h: int) -> list[tuple[Handle, list[Handle]]]:
        """A row's sums that the lane has: four neighbouring columns each, and the first of them."""
        found = []
        for start, count in self._pieces():
            at = start // COLUMNS
            # Column 2t + p of a fragment's eight is column 2 · count · (2t + p) + 2i + odd of the piece.
            run = [self.sums[r][at + k].get()[2 * h + p] for p in (0, 1) for k in range(2 * count)]
            first = self.lane * (4 * count) + start
            found += [(first + k, run[k : k + 4]) for k in range(0, len(run), 4)]
        return found

    # The end

    def _leave(self, partials: Partials, r: int, h: int, inside: Handle) -> None:
        """What this split gathered of a row."""
        b = self.b
        total = self._of_row(self.total[r][h].get())
        at = self.flat_row(self.batch, self.row[r][h]) * partials.splits + b.group_id(2)
        with b.if_(inside):
            for column, four in self._own(r, h):
                partials.sums[at * partials.columns + column] = b.vector(*four)
            with b.if_(self.lane == 0):
                partials.greatest[at] = self.greatest[r][h].get()
                partials.total[at] = total

    def _finish(self, root: Value, out: BufferRef, r: int, h: int, inside: Handle) -> None:
        """A row of the root."""
        b, frame, attention = self.b, self.frame, self.attention
        total = self._of_row(self.total[r][h].get())
        flat = self.flat_row(self.batch, self.row[r][h])
        frame.emission.forget()
        share = share_of(frame, attention, flat, self.greatest[r][h].get(), total)
        own = self._own(r, h)
        results: list[Var] = []
        for _, four in own:
            values = four if share.scale is None else [x * share.scale for x in four]
            results.append(b.var(b.vector(*(x / share.total for x in values)), name="result"))
        if attention.filler is not None:
            with b.if_(total == 0.0):
                self._plain(results, [column for column, _ in own], unseen_weight(frame, attention, share))
        with b.if_(inside):
            for (column, _), result in zip(own, results, strict=True):
                place = flat * self.columns + column
                out.store(place, b.vector(*(self._root(root, place + i, result.get()[i]) for i in range(4))))

    def _root(self, root: Value, place: Handle, value: Handle) -> Handle:
        self.frame.supply(self.attention.out.output, lambda _index: value)
        return self.frame.element(root, unravel(self.b, place, root.shape))

    def _plain(self, results: list[Var], columns: list[Handle], weight: Handle) -> None:
        """Where a row sees nothing every value has the same weight."""
        b, frame, values = self.b, self.frame, self.attention.out.inputs[1]
        zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(4)))
        sums = [b.var(zero, name="plain") for _ in columns]
        with b.range(0, self.span, name="n") as n:
            for total, column in zip(sums, columns, strict=True):
                index = (*self.batch, n, column)
                vector = frame.emission.vector(values, index, len(index) - 1)
                total.set(total.get() + (vector if vector.width > 1 else b.vector(*[vector] * 4)))
        for result, total in zip(results, sums, strict=True):
            result.set(total.get() * b.vector(weight, weight, weight, weight))
