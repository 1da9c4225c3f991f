"""Packed weights inside a model: gathered by row, or contracted without being decoded in memory."""

from __future__ import annotations

from typing import Any

import openvino
from openvino import opset15 as op

from poot_npu.vpu.nodes import Node, integer, longs, reshaped
from poot_npu.vpu.prepared import Contraction
from poot_npu.vpu.weights import Planes


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


def gathered(tables: list[Node], index: Node, planes: Planes, shape: tuple[int, ...]) -> Node:
    """Decoded rows of a weight by index, f32[shape]: each is the one rounding of scale · quant + minimum.

    `tables` are parameters over the planes: quants as bytes [rows, bytes a row], then f32[rows, blocks]
    scales and minima.
    """
    rows = [op.gather(table, index, longs(0)) for table in tables]
    blocks = planes.columns // planes.format.columns
    lead = list(shape[:-1])
    raw = rows[0]
    if planes.bits == 8:
        whole = op.convert(raw, openvino.Type.f32)
        whole = reshaped(whole, [*lead, blocks, 32])
    else:
        byte = reshaped(op.convert(raw, openvino.Type.i32), [*lead, blocks, 16, 1])
        low, high = op.bitwise_and(byte, integer(15)), op.bitwise_right_shift(byte, integer(4))
        whole = reshaped(op.concat([low, high], len(lead) + 2), [*lead, blocks, 32])
        if planes.signed:
            whole = op.subtract(op.bitwise_xor(whole, integer(8)), integer(8))
        whole = op.convert(whole, openvino.Type.f32)
    scale, *minimum = (reshaped(r, [*lead, blocks, 1]) for r in rows[1:])
    decoded = op.multiply(whole, scale)
    for least in minimum:
        decoded = op.add(decoded, least)
    return reshaped(decoded, shape)
