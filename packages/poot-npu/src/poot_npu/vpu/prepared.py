"""Weights as constants of models: what several programs share is made once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from poot_npu.vpu.weights import Bytes, Stored

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Contraction:
    """Weights that are contracted with one input, one below another.

    `quants` are u8[blocks, 16 or 32]; the others f32[rows, blocks a row, 1]: `zero` is taken off each quant, `minimum`
    is added for every 1 of x in a block, and None is nothing.
    """

    rows: int
    columns: int
    bits: int
    signed: bool
    quants: Bytes
    scale: Floats
    zero: Floats | None
    minimum: Floats | None


@dataclass(slots=True, eq=False)
class Prepared:
    """What was made so far, by the weights that it was made of."""

    _made: dict[tuple[int | bool, ...], tuple[tuple[Stored, ...], Contraction]] = field(default_factory=dict)

    def contraction(self, parts: Sequence[Stored], apart: bool) -> Contraction:
        """Weights of one format and depth, joined. `apart`: minima are added, and are no zero points."""
        key = (*map(id, parts), apart)
        if key not in self._made:
            self._made[key] = (tuple(parts), _joined(parts, apart))
        return self._made[key][1]

    def forget(self, weight: Stored | None = None) -> None:
        """Drop what was made of a weight that is freed, or everything."""
        gone = [key for key, (parts, _) in self._made.items() if weight is None or any(p is weight for p in parts)]
        for key in gone:
            del self._made[key]


def _joined(parts: Sequence[Stored], apart: bool) -> Contraction:
    first = parts[0]
    shape = (sum(p.rows for p in parts), first.blocks, 1)
    blocks = shape[0] * shape[1]
    quants = np.empty((blocks, first.format.columns * first.bits // 8), np.uint8)
    scale = np.empty(blocks, np.float32)
    minimum = np.empty(blocks, np.float32) if first.has_minimum else None
    start = 0
    for part in parts:
        stop = start + part.rows * part.blocks
        part.take_apart(quants[start:stop], scale[start:stop], None if minimum is None else minimum[start:stop])
        start = stop
    zero = None
    if minimum is not None and not apart:
        scale, zero = _zero_points(quants, scale, minimum, first.bits)
        minimum = None
    shaped = [None if x is None else x.reshape(shape) for x in (zero, minimum)]
    return Contraction(shape[0], first.columns, first.bits, first.signed, quants, scale.reshape(shape), *shaped)


def _zero_points(quants: Bytes, scale: Floats, minimum: Floats, bits: int) -> tuple[Floats, Floats]:
    """(scale, zero point) with scale · (quant - zero point) = scale · quant + minimum, to float32's precision.

    The zero point is -minimum / scale in float32, rounded to no quant. A block of one value is stored with scale 0, and
    has no zero point: `quants` become 1, that value is its scale, and its zero point is 0.
    """
    flat = scale == 0
    quants[flat] = 0x11 if bits == 4 else 1
    divisor = np.where(flat, np.float32(1), scale)
    return np.where(flat, minimum, scale), np.where(flat, np.float32(0), -minimum / divisor)
