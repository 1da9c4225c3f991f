"""The places of the greatest of a row, of a long one by its blocks: the plug-in's TopK compares 20 ns an element."""

from __future__ import annotations

import numpy as np
from openvino import opset15 as op

from poot_executor.graph.graph import Equation
from poot_npu.vpu.lowering import Build, Lowering
from poot_npu.vpu.nodes import Node, integer, longs, ordered, real, reshaped
from poot_npu.vpu.structure import ranked

LEAST_GAIN = 4
"""How many times fewer elements are to be compared by blocks, for which a row is read two more times."""


def arg_top_k(lowering: Lowering, equation: Equation) -> Node:
    """Places of the k greatest, descending, ties to the lowest place, NaN as -inf: a stable sort."""
    (x,), value, k = lowering.operands(equation), equation.inputs[0], equation.params["k"]
    n, axis, is_float = value.shape[-1], len(value.shape) - 1, value.dtype.is_float
    x = op.add(ranked(x), real(0.0)) if is_float else ordered(x, value.dtype)
    width = block_width(n, k) if is_float else None
    if width is None:
        return _stable(x, k, axis)
    places = _by_blocks(reshaped(x, [value.type.count // n, n // width, width]), n // width, width, k)
    return reshaped(places, equation.output.shape)


def block_width(n: int, k: int) -> int | None:
    """The length of blocks in which the k greatest of n are found with the fewest comparisons: n is a multiple of it.
    None where no blocks save much.
    """
    widths = [width for width in range(2, n // k) if n % width == 0]
    best = min(widths, key=lambda width: n // width + k * width, default=None)
    return best if best is not None and LEAST_GAIN * (n // best + k * best) <= n else None


def _by_blocks(x: Node, count: int, width: int, k: int) -> Node:
    """i32[rows, k] of x[rows, count, width].

    The k greatest lie in the k blocks of the greatest maxima, ties to the first block: k elements that come before
    an element of another block are the maxima of those. They are compared in the order of their places.
    """
    last = longs(2)
    # Of -inf alone the plug-in's maximum is the lowest finite number, which half of no other number is.
    barren = op.equal(op.reduce_max(op.multiply(x, real(0.5)), last, False), real(float(np.finfo(np.float32).min)))
    most = op.select(barren, real(-np.inf), op.reduce_max(x, last, False))
    blocks = op.topk(_stable(most, k), longs(k), 1, "min", "value", "i32", stable=True).output(0)
    candidates = reshaped(op.gather(x, blocks, longs(1), 1), [-1, k * width])
    within = op.constant(np.arange(width, dtype=np.int32))
    starts = op.multiply(blocks, integer(width))
    places = reshaped(op.add(op.unsqueeze(starts, longs(2)), within), [-1, k * width])
    return op.gather(places, _stable(candidates, k), longs(1), 1)


def _stable(x: Node, k: int, axis: int = 1) -> Node:
    return op.topk(x, longs(k), axis, "max", "value", "i32", stable=True).output(1)


ROWS: dict[str, Build] = {"arg_top_k": arg_top_k}
