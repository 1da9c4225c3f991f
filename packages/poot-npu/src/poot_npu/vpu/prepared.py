"""Weights as constants of models: what several programs share is made once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_npu.vpu.weights import Bytes, Planes

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
    """What was made so far, by the planes that it was made of."""

    _contractions: dict[tuple[Any, ...], tuple[tuple[Planes, ...], Contraction]] = field(default_factory=dict)
    _wide: dict[tuple[int, int], tuple[Planes, Floats]] = field(default_factory=dict)

    def contraction(self, parts: Sequence[Planes], apart: bool) -> Contraction:
        """Weights of one format and depth, joined. `apart`: minima are added, and are no zero points."""
        key = (*map(id, parts), apart)
        if key not in self._contractions:
            self._contractions[key] = (tuple(parts), _joined(parts, apart))
        return self._contractions[key][1]

    def wide_scale(self, planes: Planes) -> Floats:
        """Scales in float32: a table of f16 would be converted as a whole at each step."""
        return self._widened(planes, planes.scale)

    def wide_minimum(self, planes: Planes) -> Floats:
        """Minima in float32, likewise."""
        assert planes.minimum is not None
        return self._widened(planes, planes.minimum)

    def _widened(self, planes: Planes, halves: NDArray[np.float16]) -> Floats:
        key = (id(planes), halves.ctypes.data)
        if key not in self._wide:
            self._wide[key] = (planes, halves.astype(np.float32))
        return self._wide[key][1]

    def forget(self, planes: Planes) -> None:
        """Drop what was made of a weight that is freed."""
        for wide in [key for key, (known, _) in self._wide.items() if known is planes]:
            del self._wide[wide]
        gone = [key for key, (parts, _) in self._contractions.items() if any(p is planes for p in parts)]
        for key in gone:
            del self._contractions[key]


def _joined(parts: Sequence[Planes], apart: bool) -> Contraction:
    first = parts[0]
    shape = (sum(p.rows for p in parts), first.blocks, 1)
    scale = np.concatenate([p.scale for p in parts]).astype(np.float32)
    quants = first.quants if len(parts) == 1 else np.concatenate([p.quants for p in parts])
    zero = minimum = None
    if first.minimum is not None:
        minimum = np.concatenate([p.minimum for p in parts if p.minimum is not None]).astype(np.float32)
        if not apart:
            quants, scale, zero = _with_zero_points(quants, scale, minimum, first.bits)
            minimum = None
    grouped = [None if x is None else x.reshape(shape) for x in (zero, minimum)]
    return Contraction(shape[0], first.columns, first.bits, first.signed, quants, scale.reshape(shape), *grouped)


def _with_zero_points(quants: Bytes, scale: Floats, minimum: Floats, bits: int) -> tuple[Bytes, Floats, Floats]:
    """(quants, scale, zero point): scale · (quant - zero point) = scale · quant + minimum, to float32's precision.

    The zero point is -minimum / scale in float32, rounded to no quant. A block of one value is stored with scale 0, and
    has no zero point: it gets quants of 1, that value as its scale, and zero point 0.
    """
    flat = scale == 0
    if flat.any():
        quants = quants.copy()
        quants[flat] = 0x11 if bits == 4 else 1
    divisor = np.where(flat, np.float32(1), scale)
    zero = np.where(flat, np.float32(0), -minimum / divisor)
    return quants, np.where(flat, minimum, scale), zero
