"""What the splits of an attention gathered, and the kernel that combines them.

Each split leaves its weighted sums and, for a row, its running maximum and total; with M the greatest maximum, a row's
output is Σ sumsᵢ · exp(maxᵢ − M) over Σ totalᵢ · exp(maxᵢ − M).
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.compile.elementwise import narrowed
from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import Index, unravel
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.region import Attention, Region
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle


@dataclass(frozen=True, slots=True)
class Partials:
    """Scratch: sums [rows, splits, columns], maxima and totals [rows, splits]; rows of all batches."""

    sums: BufferRef
    greatest: BufferRef
    total: BufferRef
    splits: int
    columns: int

    @classmethod
    def declare(cls, frame: Frame, attention: Attention, splits: int) -> Partials:
        """Parameters for the scratch of an attention: the same in the kernel that gathers and the one that combines."""
        columns = attention.out.output.shape[-1]
        rows = attention.out.output.type.count // columns
        sums = frame.scratch(0, (rows, splits, columns))
        return cls(sums, frame.scratch(1, (rows, splits)), frame.scratch(2, (rows, splits)), splits, columns)

    def store(
        self,
        b: KernelBuilder,
        row: Handle,
        split: Handle,
        column: Handle,
        value: Handle,
        greatest: Handle,
        total: Handle,
    ) -> None:
        """What one thread gathered; the thread of column 0 adds the row's maximum and total."""
        at = row * self.splits + split
        self.sums[at * self.columns + column] = value
        with b.if_(column == 0):
            self.greatest[at] = greatest
            self.total[at] = total


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was gathered of a row: weighted values of one column, and the maximum and total that belong to them."""

    value: Handle
    greatest: Handle
    total: Handle


def finished(
    frame: Frame, attention: Attention, batch: Index, flat: Handle, column: Handle, gathered: Gathered
) -> Handle:
    """The output element of row number `flat`: what was gathered over its weight, in which a sink has a share.

    A row that sees no position gives all of them the weight of the filler, where that is finite; otherwise it has none
    to give, and the element is NaN.
    """
    b = frame.b
    share = share_of(frame, attention, flat, gathered.greatest, gathered.total)
    value = gathered.value if share.scale is None else gathered.value * share.scale
    if attention.filler is None:
        return value / share.total
    result = b.var(value / share.total, DType.F32, name="value")
    with b.if_(gathered.total == 0.0):
        plain = b.var(0.0, DType.F32, name="plain")
        with b.range(0, attention.out.inputs[1].shape[-2], name="n") as n:
            plain.set(plain.get() + frame.element(attention.out.inputs[1], (*batch, n, column)))
        result.set(plain.get() * unseen_weight(frame, attention, share))
    return result.get()


@dataclass(frozen=True, slots=True)
class Share:
    """What a row's gathered values are multiplied by (None: 1) and then divided by, and its sink."""

    scale: Handle | None
    total: Handle
    sink: Handle | None


def share_of(frame: Frame, attention: Attention, flat: Handle, greatest: Handle, total: Handle) -> Share:
    """The share that what was gathered of row number `flat` has in it: all, but for what its sink has."""
    b = frame.b
    if attention.sink is None:
        return Share(None, total, None)
    sink = frame.element(attention.sink, unravel(b, flat, attention.sink.shape))
    top = b.max(greatest, sink)
    scale = b.exp(greatest - top)
    return Share(scale, b.fma(total, scale, b.exp(sink - top)), sink)


def unseen_weight(frame: Frame, attention: Attention, share: Share) -> Handle:
    """The weight of every position where every score is the filler."""
    b = frame.b
    span = attention.out.inputs[1].shape[-2]
    assert attention.filler is not None
    weight = b.const(1.0 / span, DType.F32)
    if share.sink is not None:
        top = b.max(share.sink, attention.filler)
        power = b.exp(attention.filler - top)
        weight = power / b.fma(power, float(span), b.exp(share.sink - top))
    return narrowed(b, weight, attention.rounded)


def combine_splits(scene: Scene, region: Region, caps: Caps, splits: int) -> Draft:
    """root from the partials: a thread an element."""
    attention, root = region.attention, region.root
    assert attention is not None
    frame = Frame(scene, caps, "attention_combine", caps.group_threads)
    frame.read(attention.out.inputs[1])
    if attention.sink is not None:
        frame.read(attention.sink)
    if root is not attention.out.output:
        frame.read(root, supplied=[attention.out.output])
    partials = Partials.declare(frame, attention, splits)
    out = frame.write(root)
    b = frame.b
    count = attention.out.output.type.count
    groups = grid(-(-count // caps.group_threads), caps)
    place = frame.flat_group(groups) * caps.group_threads + b.thread_id()
    with b.if_(place < count):
        row, column = place // partials.columns, place % partials.columns
        top = partials.greatest[row * splits]
        for i in range(1, splits):
            top = b.max(top, partials.greatest[row * splits + i])
        gathered, total = b.const(0.0, DType.F32), b.const(0.0, DType.F32)
        for i in range(splits):
            at = row * splits + i
            scale = b.exp(partials.greatest[at] - top)
            gathered = b.fma(partials.sums[at * partials.columns + column], scale, gathered)
            total = b.fma(partials.total[at], scale, total)
        index = unravel(b, place, attention.out.output.shape)
        value = finished(frame, attention, index[:-2], row, column, Gathered(gathered, top, total))
        frame.supply(attention.out.output, lambda _index: value)
        out[place] = frame.element(root, unravel(b, place, root.shape))
    return frame.draft(groups, 4 * count * (splits + 1), threads=caps.group_threads, splits=splits)
