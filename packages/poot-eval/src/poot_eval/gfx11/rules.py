"""What a vector instruction computes, as data: the types of its result and operands, and a function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """`sources` are types in the operands' order; one that begins with "+" is what the destination holds before.

    A type "lanes" is a bit a lane in scalar registers. `exact` says that denormals are kept and
    clamping means nothing: bits are moved. `wide` computes whole numbers in int64 before they wrap
    (or, with the clamp modifier, saturate).
    """

    result: str
    sources: tuple[str, ...]
    function: Callable[..., Any]
    exact: bool = False
    wide: bool = False


def rule(types: str, function: Callable[..., Any], *, exact: bool = False, wide: bool = False) -> Rule:
    """A rule from its types in one string, the result's first."""
    result, *sources = types.split()
    return Rule(result, tuple(sources), function, exact, wide)


def rules(
    entries: dict[str, tuple[str, Callable[..., Any]]], *, exact: bool = False, wide: bool = False
) -> dict[str, Rule]:
    """Rules of one sort by mnemonic."""
    return {name: rule(types, function, exact=exact, wide=wide) for name, (types, function) in entries.items()}


def flush(value: Array) -> Array:
    """Denormals become zeros of their sign."""
    tiny = np.finfo(value.dtype).tiny
    return np.where(np.abs(value) < tiny, np.copysign(value.dtype.type(0), value), value)


def clamp(value: Array, nan_to_zero: bool) -> Array:
    """Floats to [0, 1]."""
    kind = value.dtype.type
    clipped = np.minimum(np.maximum(value, kind(0)), kind(1)) + kind(0)
    return np.where(np.isnan(clipped), kind(0), clipped) if nan_to_zero else clipped


def saturate(value: NDArray[np.int64], dtype: np.dtype[Any]) -> Array:
    """Whole numbers to the range of a type."""
    limits = np.iinfo(dtype)
    return np.clip(value, limits.min, limits.max).astype(dtype)
