"""Comparing a device's tensors with the oracle's: every element, with a report that can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType

Array = NDArray[Any]


def assert_matches(device: Array, oracle: Array, bound: Array | float, what: str = "result") -> None:
    """Raise AssertionError unless |device - oracle| <= bound in every element.

    A bound of 0 asks for the same value (any NaN for a NaN); infinity accepts any finite number.
    NaN or an infinity where the oracle is finite fails at any bound, and so does a finite number
    where the oracle has none. Arrays of integers and bools are compared by the same rule.
    """
    assert device.shape == oracle.shape, f"{what} is {device.shape}, the oracle's {oracle.shape}"
    got, expected = device.astype(np.float64), oracle.astype(np.float64)
    limit = np.broadcast_to(np.asarray(bound, np.float64), oracle.shape)
    with np.errstate(invalid="ignore"):
        distance = np.abs(got - expected)
    finite = np.isfinite(expected)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    fine = np.where(finite & np.isfinite(got), distance <= limit, same)
    if not fine.all():
        raise AssertionError(_report(got, expected, limit, ~fine, what))


def assert_same(device: Array, oracle: Array, dtype: DType, what: str = "result") -> None:
    """Raise AssertionError unless every bit is the same; NaN is NaN whatever its payload."""
    if dtype.is_float:
        numbers = ~(np.isnan(device) & np.isnan(oracle))
        word = np.uint16 if dtype is DType.F16 else np.uint32
        wrong = numbers & (np.ascontiguousarray(device).view(word) != np.ascontiguousarray(oracle).view(word))
    else:
        wrong = device != oracle
    if wrong.any():
        got, expected = device.astype(np.float64), oracle.astype(np.float64)
        raise AssertionError(_report(got, expected, np.zeros(oracle.shape), wrong, what))


def _report(got: Array, expected: Array, limit: Array, wrong: Array, what: str) -> str:
    with np.errstate(all="ignore"):
        excess = np.abs(got - expected) / np.maximum(limit, 1e-300)
    excess = np.where(wrong, np.where(np.isnan(excess), np.inf, excess), -1.0)
    worst = np.unravel_index(int(np.argmax(excess)), got.shape)
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    lines = [f"{what}: {int(wrong.sum())} of {wrong.size} elements are wrong"]
    for name, at in (("first", first), ("worst", tuple(int(i) for i in worst))):
        difference = abs(got[at] - expected[at])
        lines.append(
            f"  {name} at {list(at)}: device {got[at]:.9g}, oracle {expected[at]:.9g}, "
            f"apart {difference:.3g}, allowed {limit[at]:.3g}"
        )
    return "\n".join(lines)
