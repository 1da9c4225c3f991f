"""Flash attention: scores, softmax and weighted values in one pass over the positions, nothing of their size ever stored.

A group takes up to `queries` rows that read the same K and V (all query heads of a KV head, and in prefill several tokens) and walks the
positions a tile at a time: a thread a position for the scores, a thread a column for the values, the running maximum and sum rescaling
what was gathered so far (Milakov and Gimelshein 2018; Dao et al. 2022). The grid is one for every position of a step, and a tile that no
row of the group sees is passed over, by the graph's own mask.
"""

from __future__ import annotations

from math import prod

from poot_executor.compile.elementwise import narrowed
from poot_executor.compile.expression import Index, Scene, unravel
from poot_executor.compile.lower.draft import Draft, Frame
from poot_executor.compile.region import Attention, Region
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.buffers import SharedRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle

LOWEST = float.fromhex("-0x1.fffffep+127")
"""The finite minimum: the running maximum before any position, so that no difference of maxima is NaN."""
QUERIES_MOST = 8
UNROLL = 4


def lower_attention(scene: Scene, region: Region, caps: Caps) -> Draft:
    """root[…, m, d] = Σₙ softmaxₙ(x[…, m, n]) · v[…, n, d], then the epilogue."""
    attention, root = region.attention, region.root
    assert attention is not None
    *lead, rows, columns = attention.out.output.shape
    span = attention.out.inputs[1].shape[-2]
    threads = caps.group_threads
    queries = min(rows, QUERIES_MOST)
    shared_bytes = 4 * (queries * attention.scores.inputs[0].shape[-1] + queries * threads)
    if shared_bytes + 4 * threads > caps.max_shared_bytes:
        raise Unsupported(f"attention of {attention.out.output.type}", f"it needs {shared_bytes:,} bytes of shared memory")
    stored = scene.stored - {root, attention.out.output}
    frame = Frame(Scene(scene.graph, stored, scene.layouts), caps, region.kind, threads)
    kernel = _Kernel(frame, attention, tuple(lead), rows, columns, span, threads, queries)
    groups = (-(-rows // queries), prod(lead), 1)
    kernel.emit(root)
    return frame.draft(groups, frame.nbytes(), threads=threads, queries=queries, span=span)


class _Kernel:
    """One kernel's pieces, in the order in which they run."""

    def __init__(
        self, frame: Frame, attention: Attention, lead: tuple[int, ...], rows: int, columns: int, span: int, threads: int, queries: int
    ) -> None:  # fmt: skip
        self.frame, self.attention = frame, attention
        self.lead, self.rows, self.columns, self.span = lead, rows, columns, span
        self.threads, self.queries = threads, queries
        self.depth = attention.scores.inputs[0].shape[-1]
        self.score_value: list[Handle] = []

    def emit(self, root) -> None:  # noqa: ANN001
        frame, b, attention = self.frame, self.frame.b, self.attention
        scores = attention.scores
        frame.read(*scores.inputs)
        if attention.scores_root is not scores.output:
            frame.read(attention.scores_root, supplied=[scores.output])
        frame.read(attention.exponent, supplied=[attention.scores_root])
        frame.read(attention.out.inputs[1])
        if root is not attention.out.output:
            frame.read(root, supplied=[attention.out.output])
        out = frame.write(root)
        batch = unravel(b, b.group_id(1), self.lead) if self.lead else ()
        first = b.group_id(0) * self.queries
        row = [first + m if self.rows % self.queries == 0 else b.min(first + m, self.rows - 1) for m in range(self.queries)]
        query = self._share_queries(batch, row)
        weights = b.shared("weights", DType.F32, self.queries * self.threads)
        per_thread = -(-self.columns // self.threads)
        sums = [[b.var(0.0, DType.F32, name="sum") for _ in range(per_thread)] for _ in row]
        greatest = [b.var(LOWEST, DType.F32, name="greatest") for _ in row]
        total = [b.var(0.0, DType.F32, name="total") for _ in row]
        with b.range(0, -(-self.span // self.threads), name="tile") as tile:
            place = tile * self.threads + b.thread_id()
            inside = place < self.span
            place = b.min(place, self.span - 1)
            seen = [self._sees(batch, m, place) & inside for m in row]
            with b.if_(self._any(seen)):
                self._tile(batch, row, query, weights, tile, place, seen, sums, greatest, total)
        self._store(root, out, batch, row, first, sums, total)

    def _share_queries(self, batch: Index, row: list[Handle]) -> SharedRef:
        b = self.frame.b
        query = b.shared("query", DType.F32, self.queries * self.depth)
        for m, at in enumerate(row):
            with b.range(b.thread_id(), self.depth, self.threads, name="k") as k:
                query[k + m * self.depth] = self.frame.element(self.attention.scores.inputs[0], (*batch, at, k))
        b.barrier()
        return query

    def _weights_index(self, batch: Index, row: Handle, place: Handle) -> Index:
        """A position of a row in the index space of the probabilities, whose leading dimensions may be split otherwise."""
        shape = self.attention.exponent.shape
        flat = row
        for at, extent in zip(reversed(batch), reversed([prod((*self.lead[i + 1 :], self.rows)) for i in range(len(self.lead))]), strict=True):
            flat = at * extent + flat
        return (*unravel(self.frame.b, flat, shape[:-1]), place)

    def _sees(self, batch: Index, row: Handle, place: Handle) -> Handle:
        mask = self.attention.mask
        if mask is None:
            return self.frame.b.const(True, DType.BOOL)
        return self.frame.element(mask, self._weights_index(batch, row, place))

    def _any(self, seen: list[Handle]) -> Handle:
        b = self.frame.b
        some = seen[0]
        for other in seen[1:]:
            some = some | other
        return b.group_max(b.select(some, b.const(1, DType.I32), 0)) > 0

    def _tile(
        self, batch: Index, row: list[Handle], query: SharedRef, weights: SharedRef, tile: Handle, place: Handle,
        seen: list[Handle], sums: list[list[Var]], greatest: list[Var], total: list[Var],
    ) -> None:  # fmt: skip
        b = self.frame.b
        for m, exponent in enumerate(self._exponents(batch, row, query, place)):
            top = b.max(greatest[m].get(), b.group_max(b.select(seen[m], exponent, LOWEST)))
            weight = b.select(seen[m], b.exp(exponent - top), 0.0)
            weight = narrowed(b, weight, self.attention.rounded.dtype)
            weights[b.thread_id() + m * self.threads] = weight
            scale = b.exp(greatest[m].get() - top)
            total[m].set(b.fma(total[m].get(), scale, b.group_sum(weight)))
            greatest[m].set(top)
            for part in sums[m]:
                part.set(part.get() * scale)
        b.barrier()
        with b.range(0, self.threads, unroll=UNROLL, name="n") as n:
            at = b.min(tile * self.threads + n, self.span - 1)
            shares = [weights[n + m * self.threads] for m in range(len(row))]
            for j, column in enumerate(self._columns()):
                value = self.frame.element(self.attention.out.inputs[1], (*batch, at, column))
                for m in range(len(row)):
                    sums[m][j].set(b.fma(shares[m], value, sums[m][j].get()))
        b.barrier()

    def _exponents(self, batch: Index, row: list[Handle], query: SharedRef, place: Handle) -> list[Handle]:
        """x of this thread's position for each row: q · k over the depth, then the graph's expression."""
        frame, b, attention = self.frame, self.frame.b, self.attention
        products = [b.var(0.0, DType.F32, name="score") for _ in row]
        wide = self.depth % 4 == 0
        step = 4 if wide else 1
        with b.range(0, self.depth, step, unroll=UNROLL if self.depth // step % UNROLL == 0 else None, name="k") as k:
            index = (*batch, k, place)
            key = frame.emission.vector(attention.scores.inputs[1], index, len(batch)) if wide else None
            for i in range(step):
                factor = frame.element(attention.scores.inputs[1], index) if key is None else (key[i] if key.width > 1 else key)
                for m in range(len(row)):
                    products[m].set(b.fma(query[k + (i + m * self.depth)], factor, products[m].get()))
        results = []
        for m, at in enumerate(row):
            product = products[m].get()
            frame.supply(attention.scores.output, lambda _index, value=product: value)
            if attention.scores_root is not attention.scores.output:
                aligned = unravel(b, self._flat(batch, at, place), attention.scores_root.shape)
                scored = frame.element(attention.scores_root, aligned)
                frame.supply(attention.scores_root, lambda _index, value=scored: value)
            results.append(frame.element(attention.exponent, self._weights_index(batch, at, place)))
        return results

    def _flat(self, batch: Index, row: Handle, place: Handle) -> Handle:
        flat = row
        stride = self.rows
        for at, extent in zip(reversed(batch), reversed(self.lead), strict=True):
            flat = at * stride + flat
            stride *= extent
        return flat * self.span + place

    def _columns(self) -> list[Handle]:
        b = self.frame.b
        columns = [b.thread_id() + j * self.threads for j in range(-(-self.columns // self.threads))]
        return columns if self.columns % self.threads == 0 else [b.min(c, self.columns - 1) for c in columns]

    def _store(self, root, out, batch: Index, row: list[Handle], first: Handle, sums: list[list[Var]], total: list[Var]) -> None:  # noqa: ANN001
        frame, b, attention = self.frame, self.frame.b, self.attention
        for m, at in enumerate(row):
            lonely = total[m].get() == 0.0
            for j, column in enumerate(self._columns()):
                value = b.var(sums[m][j].get() / total[m].get(), DType.F32, name="value")
                # A row that sees no position gives all of them the same weight.
                with b.if_(lonely):
                    plain = b.var(0.0, DType.F32, name="plain")
                    with b.range(0, self.span, name="n") as n:
                        plain.set(plain.get() + frame.element(attention.out.inputs[1], (*batch, n, column)))
                    value.set(plain.get() * (1.0 / self.span))
                flat = at
                stride = self.rows
                for place, extent in zip(reversed(batch), reversed(self.lead), strict=True):
                    flat = place * stride + flat
                    stride *= extent
                result = value.get()
                frame.supply(attention.out.output, lambda _index, value=result: value)
                position = flat * self.columns + column
                inside = (first + m < self.rows) & (b.thread_id() + j * self.threads < self.columns)
                with b.if_(inside):
                    out[position] = frame.element(root, unravel(b, position, root.shape)) if root is not attention.out.output else result
