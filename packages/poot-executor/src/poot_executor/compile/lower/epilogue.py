"""What follows a contraction's products inside its own dispatch: each product, or each word of them, finished by the
graph's own expression and stored.

An epilogue that looks at its own place alone is stored straight from registers. One that looks at several products of
a block (a rotation, a whole word of narrow elements), and any whose products several threads made together, reads them
from shared memory, wherever the expression asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_executor.compile.indexing import unravel
from poot_executor.compile.lower.draft import PER_WORD, Frame, pack_word
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.lower.scatter import scatter_word
from poot_executor.compile.region import Segment
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Value
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import Var
from poot_executor.kernel.handle import Handle
from poot_executor.layout import Part


@dataclass(frozen=True, slots=True)
class Products:
    """A group's products in shared memory: [partial, weight, token, place], `tokens` by `columns` of each weight.

    The sum over `partials` is the product. `pad` words lie between tokens, where whoever stores them meets fewer banks
    twice.
    """

    shared: SharedRef
    tokens: int
    columns: int
    weights: int
    partials: int = 1
    pad: int = 0

    def place(self, partial: Handle | int, weight: int, token: Handle | int, place: Handle) -> Handle:
        """Where a product lies."""
        pitch = self.columns + self.pad
        offset = weight * self.tokens * pitch
        first = partial * (self.weights * self.tokens * pitch) + token * pitch
        return place + first + offset

    def read(self, weight: int, token: Handle, place: Handle) -> Handle:
        """The product: the sum of its partials, in order."""
        total = self.shared[self.place(0, weight, token, place)]
        for partial in range(1, self.partials):
            total = total + self.shared[self.place(partial, weight, token, place)]
        return total


def store_registers(
    frame: Frame,
    segment: Segment,
    out: BufferRef,
    tokens: Sequence[Handle],
    rows: Sequence[Handle],
    totals: Sequence[Sequence[Sequence[Var]]],
    part: Part,
) -> None:
    """Store each of a thread's products [weight][token][row] from registers; rows beyond the part are dropped."""
    b = frame.b
    for j, row in enumerate(rows):
        with b.if_(row < part.rows):
            for m, token in enumerate(tokens):
                for anchor, total in zip(segment.anchors, totals, strict=True):
                    frame.supply(anchor.output, lambda _index, value=total[m][j]: value.get())
                _store_element(frame, segment, out, token, row + part.first)


def store_products(
    frame: Frame,
    segment: Segment,
    out: BufferRef,
    products: Products,
    rows_of: RowMap,
    group: Handle,
    first_token: Handle,
    count: int,
    part: Part,
    threads: int,
) -> None:
    """The group's threads store words of its products in turn; tokens from `count` on and rows beyond the part are
    dropped. Call it after a barrier, in uniform control flow."""
    b = frame.b
    give = _Given(frame, segment, products, rows_of, group, part)
    _reduce_blocks(give, first_token, count, threads)
    per_word = PER_WORD.get(segment.root.dtype, 1)
    words = products.columns // per_word
    total = products.tokens * words
    once = total <= threads
    with b.if_(b.thread_id() < total) if once else b.range(b.thread_id(), total, threads, name="word") as turn:
        word = turn if turn is not None else b.thread_id()
        m, place = (word // words, word % words) if products.tokens > 1 else (b.const(0, DType.I32), word)
        token = first_token + m
        row = rows_of.row(group, place * per_word)
        with b.if_((token < count) & (row < part.rows)):
            give.products_of(m)
            for reduction in segment.reductions:
                give.total_of(reduction, m, place * per_word // segment.block)
            _store_word(frame, segment, out, token, row + part.first, per_word)


SHARES = 8
"""Threads that sum a block, each every so many of its elements, whatever the block: so a row's bits do not depend on
what is beside it."""


def totals_bytes(segment: Segment, tokens: int, columns: int) -> int:
    """Shared memory for what the shares of a group's blocks are: of `tokens` by `columns` products."""
    return 4 * SHARES * len(segment.reductions) * tokens * (columns // max(1, segment.block))


@dataclass(frozen=True, slots=True)
class _Given:
    """What a group has for its epilogue's expressions: its products, and the shares of each block's reductions."""

    frame: Frame
    segment: Segment
    products: Products
    rows_of: RowMap
    group: Handle
    part: Part

    @property
    def blocks(self) -> int:
        """Blocks of one token."""
        return self.products.columns // self.segment.block

    @property
    def shares(self) -> SharedRef:
        """Shares of every block: [reduction, token, block, share]."""
        count = totals_bytes(self.segment, self.products.tokens, self.products.columns) // 4
        return self.frame.shared(f"shares{count}", count)

    def products_of(self, m: Handle) -> None:
        """From now on, expressions read the products of token m of the group."""
        for w, anchor in enumerate(self.segment.anchors):

            def product(index: tuple[Handle, ...], w: int = w) -> Handle:
                return self.products.read(w, m, self.rows_of.local(self.group, index[1] - self.part.first))

            self.frame.supply(anchor.output, product)

    def share_place(self, reduction: Equation, m: Handle, block: Handle) -> Handle:
        """Where the shares of a block begin."""
        first = self.segment.reductions.index(reduction) * self.products.tokens
        return ((m + first) * self.blocks + block) * SHARES

    def total_of(self, reduction: Equation, m: Handle, block: Handle) -> None:
        """From now on, expressions read a reduction of this block. They look at no other: see `locality`."""
        b, at = self.frame.b, self.share_place(reduction, m, block)

        def total(_index: tuple[Handle, ...]) -> Handle:
            value = self.shares[at]
            for share in range(1, SHARES):
                other = self.shares[at + share]
                value = value + other if reduction.op == "sum" else b.max(value, other)
            return value

        self.frame.supply(reduction.output, total)


def _reduce_blocks(give: _Given, first_token: Handle, count: int, threads: int) -> None:
    """Each reduction of each block, in order: a thread a share, then a barrier."""
    frame, segment, b = give.frame, give.segment, give.frame.b
    width = segment.anchors[0].output.shape[-1]
    for place, reduction in enumerate(segment.reductions):
        source, axis = reduction.inputs[0], reduction.params["axis"]
        extent, lead = source.shape[axis], reduction.output.shape
        items = give.products.tokens * give.blocks * SHARES
        with b.range(b.thread_id(), items, threads, name="share") as item:
            share, block = item % SHARES, item // SHARES % give.blocks
            m = item // (SHARES * give.blocks)
            token, row = first_token + m, give.rows_of.row(give.group, block * segment.block)
            with b.if_((token < count) & (row < give.part.rows)):
                give.products_of(m)
                for earlier in segment.reductions[:place]:
                    give.total_of(earlier, m, block)
                index = unravel(b, (token * width + (row + give.part.first)) // segment.block, lead)
                total = b.var(0.0 if reduction.op == "sum" else float("-inf"), DType.F32, name="total")
                with b.range(share, extent, SHARES, name="column") as column:
                    element = frame.element(source, (*index[:axis], column, *index[axis:]))
                    if reduction.op == "sum":
                        total.set(total.get() + element)
                    else:  # NaN is not greater than anything, so it counts as the lowest.
                        total.set(b.select(element > total.get(), element, total.get()))
                give.shares[give.share_place(reduction, m, block) + share] = total.get()
        b.barrier()


def _store_word(frame: Frame, segment: Segment, out: BufferRef, token: Handle, row: Handle, per_word: int) -> None:
    b, root = frame.b, segment.root
    width = segment.anchors[0].output.shape[-1]
    if segment.scatter is not None:
        scatter_word(frame, segment.scatter, out, token * (width // per_word) + row // per_word)
    elif per_word == 1:
        _store_element(frame, segment, out, token, row)
    else:
        parts = [_element(frame, root, token * width + row + i) for i in range(per_word)]
        out.store_word(token * (width // per_word) + row // per_word, pack_word(b, root.dtype, parts))


def _store_element(frame: Frame, segment: Segment, out: BufferRef, token: Handle, row: Handle) -> None:
    width = segment.anchors[0].output.shape[-1]
    place = token * width + row
    plain = segment.root.shape == segment.anchors[0].output.shape
    index = (token, row) if plain else unravel(frame.b, place, segment.root.shape)
    out[place] = frame.element(segment.root, index)


def _element(frame: Frame, value: Value, place: Handle) -> Handle:
    return frame.element(value, unravel(frame.b, place, value.shape))
