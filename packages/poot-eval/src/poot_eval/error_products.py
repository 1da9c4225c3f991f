"""Errors of sums and products: of k terms in any order and grouping."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from poot_eval.error_steps import Errors, Operand, Step, U, gamma, narrowed
from poot_executor.dtype import DType

ONLINE_TILE = 32
"""The fewest positions that flash attention takes at a time: so many rescalings a row at most."""


def product_error(a: Operand, b: Operand, size: Errors, more: float = 0.0) -> Errors:
    """The error of a[..., m, k] @ b[..., k, n] in float32, in any order and grouping.

    Each term meets at most k + 3 roundings: its product, k - 1 sums, and in a packed format its
    block's scale, the decoded weight's own, and the sum over blocks. `more` is a further relative
    error of each term.
    """
    k = a.value.shape[-1]
    terms = (a.size + a.error) @ (b.size + b.error)
    carried = np.abs(a.wide) @ b.error + a.error @ (np.abs(b.wide) + b.error)
    return (gamma(k + 3) + more) * terms + carried + U * size


def matmul(step: Step) -> Errors:
    """A matmul's error; of a softmax, also that of a sum that is rescaled as it goes."""
    a, b = step.operands
    more = 0.0
    if step.of_softmax:
        # Each rescaling is one exp and one product, alike for a row's sum and its values: twice in a quotient. A sink
        # is one more.
        tiles = -(-a.value.shape[-1] // ONLINE_TILE) + 1
        a = _rounded_early(a, step.rounded)
        more = tiles * 2 * (2 * step.caps.errors.get("exp", 0.5) + 1) * U
    return product_error(a, b, step.size, more)


def _rounded_early(weights: Operand, dtype: DType | None) -> Operand:
    """A softmax that is rounded: who sums as it goes rounds a weight before its row's sum is known,
    and divides after.

    exp(x - m) rounded is off by its share of a unit roundoff, whatever it is scaled by and divided
    by later, and in f16 by no more than half of the smallest number, since scales are at most and
    sums at least 1. The oracle's quotient is off by as much from the same number: twice that, apart.
    """
    if dtype not in (DType.F16, DType.BF16):
        return weights
    unit, least = (2.0**-8, 0.0) if dtype is DType.BF16 else (2.0**-11, 2.0**-25)
    return replace(weights, error=weights.error + 2 * (unit * np.abs(weights.wide) + least))


def indexed_matmul(step: Step) -> Errors:
    """Row by row; where the row's matrix is not decided, nothing is."""
    x, w, index = step.operands
    error = np.full(step.result.shape, np.inf)
    for row, expert in enumerate(index.value):
        if index.error[row] == 0:
            left = Operand(x.value[row : row + 1], x.error[row : row + 1], x.size[row : row + 1])
            right = Operand(w.value[expert], w.error[expert], w.size[expert])
            piece = slice(row, row + 1)
            error[piece] = product_error(left, right, step.size[piece])
    return error


def sum_terms(step: Step) -> Errors:
    """A reduction's error: its terms', and one rounding less than there are terms."""
    (x,), axis = step.operands, step.equation.params["axis"]
    carried = x.error.sum(axis=axis)
    if not step.equation.output.dtype.is_float:
        return carried
    n = x.value.shape[axis]
    terms = (np.abs(x.wide) + x.error).sum(axis=axis)
    rounding = gamma(n - 1) * terms + U * step.size if n > 1 else 0.0
    return narrowed(step, carried + rounding)
