"""Canonical form of movement and conversion: nothing twice, nothing for nothing."""

from __future__ import annotations

from poot_executor.dtype import BF16, BOOL, F16, F32, I8, I32, U8, U32, DType
from poot_executor.graph.graph import Value
from poot_executor.graph.rewrite import Call, Rewriter

_LOSSLESS: frozenset[tuple[DType, DType]] = frozenset(
    [(a, F32) for a in (F16, BF16, I8, U8, BOOL)]
    + [(BOOL, a) for a in (F16, BF16, I32, U32, I8, U8)]
    + [(I8, I32), (U8, I32), (U8, U32)]
)
"""Casts that keep every value, so that a cast of one is a cast of what it was made of."""


def same_type(rewriter: Rewriter, call: Call) -> Value | None:
    """Movement to the shape that is there, a cast to the dtype that is there."""
    return call.inputs[0] if call.type == call.inputs[0].type else None


def only_operand(rewriter: Rewriter, call: Call) -> Value | None:
    """The concatenation of one."""
    return call.inputs[0] if len(call.inputs) == 1 else None


def reshape_of_reshape(rewriter: Rewriter, call: Call) -> Call | None:
    """The first shape does not matter."""
    inner = rewriter.equation(call.inputs[0], "reshape")
    return None if inner is None else Call("reshape", inner.inputs, call.params)


def identity_permutation(rewriter: Rewriter, call: Call) -> Value | None:
    """Axes in the order that is there."""
    order = call.params["permutation"]
    return call.inputs[0] if order == tuple(range(len(order))) else None


def transpose_of_transpose(rewriter: Rewriter, call: Call) -> Call | None:
    """Two permutations are one."""
    inner = rewriter.equation(call.inputs[0], "transpose")
    if inner is None:
        return None
    first = inner.params["permutation"]
    order = tuple(first[i] for i in call.params["permutation"])
    return Call("transpose", inner.inputs, {"permutation": order})


def transpose_of_ones(rewriter: Rewriter, call: Call) -> Call | None:
    """A transpose that moves dimensions of 1 alone is a reshape."""
    shape = call.inputs[0].shape
    moved = [i for i in call.params["permutation"] if shape[i] != 1]
    return Call("reshape", call.inputs, {"shape": call.type.shape}) if moved == sorted(moved) else None


def broadcast_of_broadcast(rewriter: Rewriter, call: Call) -> Call | None:
    """The last shape is the one."""
    inner = rewriter.equation(call.inputs[0], "broadcast")
    return None if inner is None else Call("broadcast", inner.inputs, call.params)


def slice_of_slice(rewriter: Rewriter, call: Call) -> Call | None:
    """Steps multiply and starts add up."""
    inner = rewriter.equation(call.inputs[0], "slice")
    if inner is None:
        return None
    start, stop, step = [], [], []
    outer = call.params
    for axis, count in enumerate(call.type.shape):
        stride = inner.params["step"][axis]
        first = inner.params["start"][axis] + outer["start"][axis] * stride
        start.append(first)
        step.append(outer["step"][axis] * stride)
        stop.append(first + (count - 1) * step[-1] + 1)
    params = {"start": tuple(start), "stop": tuple(stop), "step": tuple(step)}
    return Call("slice", inner.inputs, params)


def splat_moved(rewriter: Rewriter, call: Call) -> Call | None:
    """One element that was broadcast looks the same from every side: reshape, then broadcast it."""
    inner = rewriter.equation(call.inputs[0], "broadcast")
    if inner is None or inner.inputs[0].type.count != 1:
        return None
    shape = call.type.shape
    ones = (1,) * len(shape)
    one = inner.inputs[0]
    if one.shape != ones:
        one = rewriter.emit(Call("reshape", (one,), {"shape": ones}))
    return Call("broadcast", (one,), {"shape": shape})


def reduction_of_one(rewriter: Rewriter, call: Call) -> Call | None:
    """The sum of one element is that element, and so is the greatest; but among floats NaN counts as the lowest."""
    if call.inputs[0].shape[call.params["axis"]] != 1 or (call.op == "reduce_max" and call.type.dtype.is_float):
        return None
    return Call("reshape", call.inputs, {"shape": call.type.shape})


def cast_of_lossless_cast(rewriter: Rewriter, call: Call) -> Call | None:
    """A wider dtype on the way does not matter."""
    inner = rewriter.equation(call.inputs[0], "cast")
    if inner is None or (inner.inputs[0].dtype, inner.output.dtype) not in _LOSSLESS:
        return None
    return Call("cast", inner.inputs, call.params)


def bitcast_of_bitcast(rewriter: Rewriter, call: Call) -> Call | None:
    """The dtype on the way does not matter."""
    inner = rewriter.equation(call.inputs[0], "bitcast")
    return None if inner is None else Call("bitcast", inner.inputs, call.params)
