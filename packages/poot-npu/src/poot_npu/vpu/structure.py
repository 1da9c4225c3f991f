"""Rows of reductions, contractions, movement and what goes by index."""

from __future__ import annotations

import numpy as np
import openvino
from openvino import opset15 as op

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation
from poot_npu.vpu.lowering import Build, Lowering
from poot_npu.vpu.nodes import (
    Node,
    bit_select,
    constant,
    halves,
    integer,
    longs,
    narrowed,
    ordered,
    real,
    reshaped,
)

EXACT_TERMS = (1 << 24) // 255
"""Bytes that float32 sums exactly."""


def total(lowering: Lowering, equation: Equation) -> Node:
    """A sum. The plug-in sums integers in float32, so that they are summed byte by byte, and wrap."""
    (x,), axis = lowering.operands(equation), equation.params["axis"]
    if equation.output.dtype.is_float:
        return narrowed(op.reduce_sum(x, longs(axis), False), equation.output.dtype)
    whole = None
    for shift in (0, 8, 16, 24):
        byte = op.bitwise_and(op.bitwise_right_shift(x, integer(shift)), integer(255))
        part = op.convert(op.reduce_sum(op.convert(byte, openvino.Type.f32), longs(axis), False), openvino.Type.i32)
        part = op.bitwise_left_shift(part, integer(shift))
        whole = part if whole is None else op.add(whole, part)
    return whole


def greatest(lowering: Lowering, equation: Equation) -> Node:
    """The greatest; NaN counts as -inf. Integers that are not known to be small by halves, the higher ones first."""
    (x,), axis = lowering.operands(equation), longs(equation.params["axis"])
    value = equation.inputs[0]
    if value.dtype.is_float:
        # Of -inf alone the plug-in makes the lowest finite number.
        x = ranked(x)
        some = op.reduce_max(op.select(op.greater(x, real(-np.inf)), real(1.0), real(0.0)), axis, False)
        return op.select(op.greater(some, real(0.0)), op.reduce_max(x, axis, False), real(-np.inf))
    if lowering.small(value):
        return op.reduce_max(x, axis, False)
    high, low = halves(ordered(x, value.dtype))
    top = op.reduce_max(high, axis, True)
    rest = op.reduce_max(op.select(op.equal(high, top), low, integer(0)), axis, True)
    both = op.bitwise_or(op.bitwise_left_shift(top, integer(16)), rest)
    return reshaped(ordered(both, value.dtype), equation.output.shape)


def ranked(x: Node) -> Node:
    """Floats with NaN as -inf."""
    return op.select(op.equal(x, x), x, real(-np.inf))


def argmax(lowering: Lowering, equation: Equation) -> Node:
    """The lowest place of the greatest: the least of the places where the greatest stands."""
    (x,), axis = lowering.operands(equation), equation.params["axis"]
    value = equation.inputs[0]
    n = value.shape[axis]
    places = reshaped(
        constant(np.arange(n, dtype=np.int32), DType.I32), [n if i == axis else 1 for i in range(len(value.shape))]
    )
    if value.dtype.is_float:
        x = ranked(x)
        hit = op.equal(x, op.reduce_max(x, longs(axis), True))
    else:
        high, low = halves(ordered(x, value.dtype))
        first = op.equal(high, op.reduce_max(high, longs(axis), True))
        low = op.select(first, low, integer(-1))
        hit = op.logical_and(first, op.equal(low, op.reduce_max(low, longs(axis), True)))
    place = op.reduce_min(op.select(hit, places, integer(n)), longs(axis), False)
    # Of -inf alone the plug-in's greatest is the lowest finite number, which stands nowhere.
    return op.select(op.equal(place, integer(n)), integer(0), place)


def matmul(lowering: Lowering, equation: Equation) -> Node:
    """A batched matrix product."""
    return op.matmul(*lowering.operands(equation), False, False)


def indexed_matmul(lowering: Lowering, equation: Equation) -> Node:
    """Each row times the matrix that its index names."""
    x, w, index = lowering.operands(equation)
    rows, depth = equation.inputs[0].shape
    lowering.check(equation, equation.inputs[2], 0, equation.inputs[1].shape[0] - 1)
    chosen = op.gather(w, _inside(index, equation.inputs[1].shape[0]), longs(0))
    return reshaped(op.matmul(reshaped(x, (rows, 1, depth)), chosen, False, False), equation.output.shape)


def reshape(lowering: Lowering, equation: Equation) -> Node:
    """The same elements in another shape."""
    (x,) = lowering.operands(equation)
    return reshaped(x, equation.output.shape)


def transpose(lowering: Lowering, equation: Equation) -> Node:
    """Axes in another order."""
    return op.transpose(*lowering.operands(equation), longs(list(equation.params["permutation"])))


def broadcast(lowering: Lowering, equation: Equation) -> Node:
    """Dimensions of 1 repeated."""
    return op.broadcast(*lowering.operands(equation), longs(list(equation.output.shape)))


def slice_(lowering: Lowering, equation: Equation) -> Node:
    """A run of every axis."""
    params = equation.params
    axes = [
        i
        for i, n in enumerate(equation.inputs[0].shape)
        if (params["start"][i], params["stop"][i], params["step"][i]) != (0, n, 1)
    ]
    (x,) = lowering.operands(equation)
    if not axes:
        return x
    start, stop, step = (longs([params[name][i] for i in axes]) for name in ("start", "stop", "step"))
    return op.slice(x, start, stop, step, longs(axes))


def concat(lowering: Lowering, equation: Equation) -> Node:
    """Operands one after another."""
    return op.concat(lowering.operands(equation), equation.params["axis"])


def pad(lowering: Lowering, equation: Equation) -> Node:
    """A constant around every axis, as blocks of it before and behind."""
    (x,), dtype = lowering.operands(equation), equation.output.dtype
    shape = list(equation.inputs[0].shape)
    value = constant(np.array(equation.params["value"]).astype(dtype.numpy), dtype)
    for axis, (low, high) in enumerate(zip(equation.params["low"], equation.params["high"], strict=True)):
        sides = []
        for count in (low, high):
            edge = [*shape[:axis], count, *shape[axis + 1 :]]
            sides.append([op.broadcast(value, longs(edge))] if count else [])
        if low or high:
            x = op.concat([*sides[0], x, *sides[1]], axis)
            shape[axis] += low + high
    return x


def iota(lowering: Lowering, equation: Equation) -> Node:
    """0, 1, 2 ... along an axis: a constant of that axis alone, broadcast."""
    shape, axis = equation.output.shape, equation.params["axis"]
    line = np.arange(shape[axis]).astype(equation.output.dtype.numpy)
    line = line.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return op.broadcast(constant(line, equation.output.dtype), longs(list(shape)))


def gather(lowering: Lowering, equation: Equation) -> Node:
    """Rows by index; one that is out of range is a fault, and reads some row."""
    data, index = lowering.operands(equation)
    rows = equation.inputs[0].shape[0]
    lowering.check(equation, equation.inputs[1], 0, rows - 1)
    if not lowering.within(equation.inputs[1], 0, rows - 1):
        index = _inside(index, rows)
    return op.gather(data, index, longs(0))


def scatter_update(lowering: Lowering, equation: Equation) -> Node:
    """Rows replaced. One that is dropped replaces the row that the first of those kept does, by the same; where none is
    kept, the row 0 by itself: the rows that stay are copied once, and never to make room."""
    data, index, updates = lowering.operands(equation)
    rows, count = equation.output.shape[0], equation.inputs[1].shape[0]
    lowering.check(equation, equation.inputs[1], -(1 << 31), rows - 1)
    places = op.constant(np.arange(count, dtype=np.int32))
    kept = op.logical_and(op.greater_equal(index, integer(0)), op.less_equal(index, integer(rows - 1)))
    first = op.reduce_min(op.select(kept, places, integer(count)), longs(0), True)
    source = op.select(kept, places, first)
    none = op.constant(np.array([0], np.int32))
    place = op.gather(op.concat([index, none], 0), source, longs(0))
    update = op.gather(op.concat([updates, op.gather(data, none, longs(0))], 0), source, longs(0))
    return op.scatter_update(data, place, update, longs(0))


def dynamic_update_slice(lowering: Lowering, equation: Equation) -> Node:
    """A block replaced: every place of the axis reads its place of the block, where it has one."""
    data, update, start = lowering.operands(equation)
    axis, (shape, block) = equation.params["axis"], (v.shape for v in equation.inputs[:2])
    n, m = shape[axis], block[axis]
    lowering.check(equation, equation.inputs[2], 0, n - m)
    place = op.subtract(constant(np.arange(n, dtype=np.int32), DType.I32), reshaped(start, [1]))
    ours = op.logical_and(op.greater_equal(place, integer(0)), op.less(place, integer(m)))
    spread = op.gather(update, _inside(place, m), longs(axis))
    for other, (size, part) in enumerate(zip(shape, block, strict=True)):
        if other != axis and part < size:
            # Of an axis that the block does not fill, the rest is the old; those after it are filled in their turn.
            stop = [size if i == other else shape[i] if i < other or i == axis else block[i] for i in range(len(shape))]
            start = [part if i == other else 0 for i in range(len(shape))]
            axes = list(range(len(shape)))
            rest = op.slice(data, longs(start), longs(stop), longs([1] * len(axes)), longs(axes))
            spread = op.concat([spread, rest], other)
    line = reshaped(ours, [n if i == axis else 1 for i in range(len(shape))])
    if equation.output.dtype.is_float:
        return op.select(line, spread, data)
    if equation.output.dtype is DType.BOOL:
        return op.logical_or(op.logical_and(line, spread), op.logical_and(op.logical_not(line), data))
    return bit_select(line, spread, data)


def _inside(index: Node, rows: int) -> Node:
    return op.minimum(op.maximum(index, integer(0)), integer(rows - 1))


ROWS: dict[str, Build] = {
    "sum": total, "reduce_max": greatest, "argmax": argmax,
    "matmul": matmul, "indexed_matmul": indexed_matmul,
    "reshape": reshape, "transpose": transpose, "broadcast": broadcast, "slice": slice_, "concat": concat, "pad": pad,
    "iota": iota, "gather": gather, "scatter_update": scatter_update, "dynamic_update_slice": dynamic_update_slice,
}  # fmt: skip
