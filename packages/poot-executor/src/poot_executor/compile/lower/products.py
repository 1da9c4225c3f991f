"""The inner loop of every contraction with weights: blocks of a few weight rows against the activations of a few
tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poot_executor.compile.lower.activations import Column
from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder, Var
from poot_executor.kernel.handle import Handle

Totals = list[list[Var]]
"""Sums by token and weight row of a thread."""
LANE_UNROLL = 4
"""Blocks of a row that a lane has on their way at once."""


def accumulate(
    b: KernelBuilder,
    readers: Sequence[BlockReader],
    reads: Sequence[Callable[[Handle], Column]],
    rows: Sequence[Handle],
    depth: int,
    lanes: int,
) -> list[Totals]:
    """For each weight, Σₖ x[token, k] · w[row, k] for each token and row, in ascending blocks: every `lanes`-th piece
    from the thread's own.

    The weights (whose blocks have one shape) are read at the same rows; `reads[token](first)` gives that token's run of
    activations. Rows beyond a weight lie in its padding to whole tiles, or past it, where robust access reads some
    word: do not store them.
    """
    totals = [[[b.var(0.0, DType.F32, name="total") for _ in rows] for _ in reads] for _ in readers]
    units = depth // readers[0].columns * readers[0].pieces
    if lanes == 1:
        with b.range(0, units, name="block") as block:
            _add_block(b, readers, reads, rows, block, totals)
        return totals
    lane = b.thread_id() % lanes
    rounds, rest = divmod(units, lanes)
    # Whole rounds have constant bounds, so that they unroll and several blocks are on their way at once.
    with b.range(0, rounds, unroll=min(rounds, LANE_UNROLL) or None, name="round") as round_:
        _add_block(b, readers, reads, rows, round_ * lanes + lane, totals)
    if rest:
        with b.if_(lane < rest):
            _add_block(b, readers, reads, rows, lane + rounds * lanes, totals)
    return totals


def _add_block(
    b: KernelBuilder,
    readers: Sequence[BlockReader],
    reads: Sequence[Callable[[Handle], Column]],
    rows: Sequence[Handle],
    unit: Handle,
    totals: list[Totals],
) -> None:
    like = readers[0]
    block, piece = (unit, 0) if like.pieces == 1 else (unit // like.pieces, unit % like.pieces)
    words = [[reader.words(row, block, piece) for row in rows] for reader in readers]
    starts = [block * like.columns + (piece * like.run + start) for start in like.starts]
    activations = [[read(start) for start in starts] for read in reads]
    sums = [_Block(reader, words[w]) for w, reader in enumerate(readers)]
    plain: list[Handle | None] = [None] * len(reads)
    for run, column in like.order():
        at = [runs[run](column) for runs in activations]
        for part in sums:
            part.add(b, run, column, at)
        if any(reader.has_minimum for reader in readers):
            plain = [x if p is None else p + x for p, x in zip(plain, at, strict=True)]
    for part, total in zip(sums, totals, strict=True):
        part.finish(b, block, rows, plain, total)


def sum_lanes(b: KernelBuilder, totals: list[Totals], lanes: int, width: int) -> int:
    """Sum each total over the lanes of a row that lie in one subgroup. Gives how many partial sums a row is left
    with."""
    for total in (var for weight in totals for token in weight for var in token):
        value = total.get()
        mask = min(lanes, width) // 2
        while mask:
            value = value + b.subgroup_shuffle_xor(value, mask)
            mask //= 2
        total.set(value)
    return max(1, lanes // width)


class _Block:
    """Σ q·x over one block, by weight row and token."""

    def __init__(self, reader: BlockReader, words: list[list[Handle]]) -> None:
        self.reader = reader
        self.words = words
        self.sums: dict[tuple[int, int], Handle] = {}

    def add(self, b: KernelBuilder, run: int, column: int, at: Sequence[Handle]) -> None:
        for j, words in enumerate(self.words):
            quant = self.reader.value(words, run, column)
            for m, x in enumerate(at):
                known = self.sums.get((m, j))
                self.sums[m, j] = x * quant if known is None else b.fma(x, quant, known)

    def finish(
        self, b: KernelBuilder, block: Handle, rows: Sequence[Handle], plain: Sequence[Handle | None], totals: Totals
    ) -> None:
        """total += scale · Σ q·x + minimum · Σ x"""
        for j, row in enumerate(rows):
            scale, minimum = self.reader.scales(row, block) if self.reader.scaled else (None, None)
            for m, (total, summed) in enumerate(zip(totals, plain, strict=True)):
                value = self.sums[m, j]
                value = total[j].get() + value if scale is None else b.fma(scale, value, total[j].get())
                if minimum is not None:
                    assert summed is not None  # a reader has a minimum, so the activations were summed
                    value = b.fma(minimum, summed, value)
                total[j].set(value)
