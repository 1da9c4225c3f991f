"""What an error rule is given: an equation with its operands and their errors, and the units that errors are counted
in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation

Array = NDArray[Any]
Errors = NDArray[np.float64]

U = 2.0**-24
"""Unit roundoff of float32."""

TINY = 2.0**-126
"""The smallest normal float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """An operand as the oracle has it, its error, and what its size is in a sum: at least |value|,
    more for a decoded weight that the device may sum as scale and minimum apart."""

    value: Array
    error: Errors
    size: Errors

    @property
    def wide(self) -> Errors:
        """The value in float64."""
        return self.value.astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One equation of the walk: its operands, the oracle's result, and the target.

    `feeds_sum`: an add or sub reads it, `feeds_product`: a mul does, with signs and movement between or none.
    `of_softmax`: a matmul whose left operand is a softmax, which a device may compute as it goes, rescaling what it
    has summed. `rounded`: the dtype that this softmax is rounded to before.
    """

    equation: Equation
    operands: tuple[Operand, ...]
    result: Array
    caps: Caps
    feeds_sum: bool = False
    feeds_product: bool = False
    of_softmax: bool = False
    rounded: DType | None = None

    @property
    def values(self) -> tuple[Errors, ...]:
        """Operands in float64."""
        return tuple(o.wide for o in self.operands)

    @property
    def errors(self) -> tuple[Errors, ...]:
        """Errors of the operands."""
        return tuple(o.error for o in self.operands)

    @property
    def size(self) -> Errors:
        """|result| in float64; 0 where it is not finite."""
        size = np.abs(self.result.astype(np.float64))
        return np.where(np.isfinite(size), size, 0.0)


Rule = Callable[[Step], Errors]


def gamma(n: int) -> float:
    """The relative error of n roundings."""
    assert n * U < 1, f"{n} roundings of float32 say nothing"
    return n * U / (1 - n * U)


def ulp(size: Errors) -> Errors:
    """The distance of float32 numbers around `size`."""
    with np.errstate(over="ignore"):
        return np.spacing(np.minimum(size, 3e38).astype(np.float32)).astype(np.float64)


def narrowed(step: Step, single: Errors) -> Errors:
    """The error after rounding to a narrower dtype, which moves what is inexact by one more
    step."""
    dtype = step.equation.output.dtype
    if dtype not in (DType.F16, DType.BF16):
        return single
    bits = 10 if dtype is DType.F16 else 7
    reach = np.maximum(step.size + single, 2.0**-14 if dtype is DType.F16 else TINY)
    spacing = 2.0 ** (np.floor(np.log2(np.where(np.isfinite(reach), reach, 1.0))) - bits)
    return np.where(single == 0, 0.0, single + spacing)
