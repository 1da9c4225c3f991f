"""Packed weights inside a model: gathered by row, or contracted without being decoded in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset15 as op

from poot_npu.vpu.nodes import Node, integer, longs, reshaped
from poot_npu.vpu.prepared import Contraction
from poot_npu.vpu.weights import Stored


def quant_type(bits: int, signed: bool) -> openvino.Type:
    """OpenVINO's name of a weight's quants."""
    if bits == 4:
        return openvino.Type.i4 if signed else openvino.Type.u4
    return openvino.Type.i8 if signed else openvino.Type.u8


def shared(array: Any, shape: tuple[int, ...], type: openvino.Type) -> openvino.Tensor:
    """A tensor over an array's memory, which its owner keeps."""
    return openvino.Tensor(array, openvino.Shape(list(shape)), type)


def contracted(x: Node, weight: Contraction) -> Node:
    """x[m, k] · weight[n, k]ᵀ. The plug-in's kernel decodes the weight as it multiplies.

    A weight with minima is scale · (quant - zero point) with a zero point in float32. Where activations are quantized,
    which the plug-in does for contractions without zero point alone, the minima are a contraction of their own, with
    the sums of x over each block.
    """
    width = weight.columns // weight.scale.shape[1]
    grouped = (*weight.scale.shape[:2], width)
    quants = shared(weight.quants, grouped, quant_type(weight.bits, weight.signed))
    decoded = op.convert(op.constant(quants), openvino.Type.f32)
    if weight.zero is not None:
        decoded = op.subtract(decoded, _held(weight.zero))
    decoded = op.multiply(decoded, _held(weight.scale))
    result = op.matmul(x, reshaped(decoded, (weight.rows, weight.columns)), False, True)
    if weight.minimum is not None:
        sums = op.reduce_sum(reshaped(x, (-1, grouped[1], width)), longs(2), False)
        minima = weight.minimum.reshape(grouped[:2])
        result = op.add(result, op.matmul(sums, _held(minima), False, True))
    return result


def _held(array: Any) -> Node:
    """A constant over an array's memory."""
    return op.constant(openvino.Tensor(array, shared_memory=True))


def gathered(table: Node, index: Node, weight: Stored, shape: tuple[int, ...]) -> Node:
    """Decoded rows of a weight by index, f32[shape]: each is the one rounding of scale · quant + minimum.

    `table` is a parameter over the stored bytes, u8[rows, bytes a row]: no other form of them is made.
    """
    lead = list(shape[:-1])
    raw = op.convert(op.gather(table, index, longs(0)), openvino.Type.i32)
    raw = reshaped(raw, [*lead, weight.blocks, weight.format.nbytes])
    axis = len(lead) + 1
    fields = {
        f.name: op.slice(raw, longs([f.offset]), longs([f.offset + f.nbytes]), longs([1]), longs([axis]))
        for f in weight.format.fields
    }
    decoded = op.multiply(op.convert(_quants(fields, weight, axis), openvino.Type.f32), _halves(fields["scale"], axis))
    return reshaped(op.add(decoded, _halves(fields["minimum"], axis)) if weight.has_minimum else decoded, shape)


def _quants(fields: dict[str, Node], weight: Stored, axis: int) -> Node:
    """i32[..., 32] of bytes [..., 16 or 32]: in a 4-bit block byte i holds column i, and column i + 16 above it."""
    raw = fields["quants"]
    if weight.format.name == "q8_0":
        return op.subtract(op.bitwise_xor(raw, integer(128)), integer(128))
    whole = op.concat([op.bitwise_and(raw, integer(15)), op.bitwise_right_shift(raw, integer(4))], axis)
    if "high" in fields:
        # Bit i of four bytes is column i's fifth.
        places = op.constant(np.repeat(np.arange(4), 8).astype(np.int32))
        bits = op.constant(np.tile(np.arange(8), 4).astype(np.int32))
        fifth = op.bitwise_and(op.bitwise_right_shift(op.gather(fields["high"], places, longs(axis)), bits), integer(1))
        whole = op.bitwise_or(whole, op.bitwise_left_shift(fifth, integer(4)))
    if not weight.signed:
        return whole
    return op.subtract(whole, integer(16 if "high" in fields else 8))


def _halves(raw: Node, axis: int) -> Node:
    """f32[..., 1] of f16 as two bytes: one of all 65,536."""
    low, high = (op.slice(raw, longs([n]), longs([n + 1]), longs([1]), longs([axis])) for n in (0, 1))
    code = op.bitwise_or(low, op.bitwise_left_shift(high, integer(8)))
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return op.gather(op.constant(every), code, longs(0))
