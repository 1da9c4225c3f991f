"""An attention's rows, positions and scores, as its kernels index them."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.compile.indexing import Index, unravel
from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.region import Attention
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.handle import Handle

LOWEST = float.fromhex("-0x1.fffffep+127")
"""The finite minimum: the running maximum before any position, so that no difference of maxima is NaN."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a lane has of a tile before it is needed: vectors of four of its position's K, and by round and turn those
    of V, where there was room."""

    keys: tuple[Handle, ...]
    values: tuple[tuple[Handle, ...], ...]


class AttentionRows:
    """What the kernels of an attention share. `lead` are the extents before rows and columns."""

    def __init__(self, frame: Frame, attention: Attention, lead: tuple[int, ...]) -> None:
        self.frame, self.attention, self.lead = frame, attention, lead
        self.rows, self.columns = attention.out.output.shape[-2:]
        self.span = attention.out.inputs[1].shape[-2]
        self.depth = attention.scores.inputs[0].shape[-1]

    def declare_reads(self, root: Value, *, split: bool) -> None:
        """Parameters for what the kernel reads; what comes after the sums is the combining kernel's with `split`."""
        frame, attention = self.frame, self.attention
        scores = attention.scores
        frame.read(*scores.inputs)
        if attention.scores_root is not scores.output:
            frame.read(attention.scores_root, supplied=[scores.output])
        frame.read(attention.exponent, supplied=[attention.scores_root])
        frame.read(attention.out.inputs[1])
        if attention.sink is not None and not split:
            frame.read(attention.sink)
        if root is not attention.out.output and not split:
            frame.read(root, supplied=[attention.out.output])

    def flat_row(self, batch: Index, row: Handle) -> Handle:
        """A row's number over all batches."""
        flat, stride = row, self.rows
        for at, extent in zip(reversed(batch), reversed(self.lead), strict=True):
            flat = at * stride + flat
            stride *= extent
        return flat

    def weights_index(self, batch: Index, row: Handle, place: Handle) -> Index:
        """A position of a row in the index space of the probabilities, whose leading dimensions may be split
        otherwise."""
        return (*unravel(self.frame.b, self.flat_row(batch, row), self.attention.exponent.shape[:-1]), place)

    def sees(self, batch: Index, row: Handle, place: Handle) -> Handle:
        """Whether a row sees a position."""
        mask = self.attention.mask
        if mask is None:
            return self.frame.b.const(True, DType.BOOL)
        return self.frame.element(mask, self.weights_index(batch, row, place))

    def scored(self, batch: Index, row: Handle, place: Handle, product: Handle, value: Value) -> Handle:
        """The element of `value`, an expression of scores in the index space of the probabilities, from the product of
        a row and a position."""
        frame, b, attention = self.frame, self.frame.b, self.attention
        frame.supply(attention.scores.output, lambda _index: product)
        if attention.scores_root is not attention.scores.output:
            position = self.flat_row(batch, row) * self.span + place
            scored = frame.element(attention.scores_root, unravel(b, position, attention.scores_root.shape))
            frame.supply(attention.scores_root, lambda _index: scored)
        return frame.element(value, self.weights_index(batch, row, place))
