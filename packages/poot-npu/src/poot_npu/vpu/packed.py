"""Packed weights inside a model: decoded exactly, gathered by row, or contracted without being decoded in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset15 as op

from poot_npu.vpu.nodes import Node, integer, longs, reshaped
from poot_npu.vpu.weights import Planes, flat_blocks, neutral


def quant_type(planes: Planes) -> openvino.Type:
    """OpenVINO's name of a weight's quants."""
    if planes.bits == 4:
        return openvino.Type.i4 if planes.signed else openvino.Type.u4
    return openvino.Type.i8 if planes.signed else openvino.Type.u8


def shared(array: Any, shape: tuple[int, ...], type: openvino.Type) -> openvino.Tensor:
    """A tensor over an array's memory, which its owner keeps."""
    return openvino.Tensor(array, openvino.Shape(list(shape)), type)


def contracted(x: Node, planes: Planes, fast: bool, keep: list[Any]) -> Node:
    """x[m, k] · weight[n, k]ᵀ. The plug-in's kernel decodes the weight as it multiplies.

    A weight with minima is scale · (quant - zero point) with a zero point in float32: exact to float32, as
    scale · quant + minimum is. In the fast mode activations are quantized, which the plug-in does for contractions
    without zero point alone: there the minima are a contraction of their own, with the sums of x over each block.
    `keep` gets the arrays that constants share.
    """
    blocks = planes.columns // planes.format.columns
    grouped = (planes.rows, blocks, planes.format.columns)
    apart = planes.minimum is not None and fast
    quants = planes.quants
    flat = flat_blocks(planes)
    if flat.size and not apart:
        quants = quants.copy()
        quants[flat] = 0x11 if planes.bits == 4 else 1
    keep.append(quants)
    decoded = op.convert(op.constant(shared(quants, grouped, quant_type(planes))), openvino.Type.f32)
    scale = planes.scale.astype(np.float32)
    if planes.minimum is not None and not apart:
        scale, zero = neutral(planes)
        decoded = op.subtract(decoded, op.constant(zero.reshape(planes.rows, blocks, 1)))
    decoded = op.multiply(decoded, op.constant(scale.reshape(planes.rows, blocks, 1)))
    result = op.matmul(x, reshaped(decoded, (planes.rows, planes.columns)), False, True)
    if apart:
        assert planes.minimum is not None
        sums = op.reduce_sum(reshaped(x, (-1, blocks, planes.format.columns)), longs(2), False)
        minima = planes.minimum.astype(np.float32).reshape(planes.rows, blocks)
        result = op.add(result, op.matmul(sums, op.constant(minima), False, True))
    return result


def gathered(tables: list[Node], index: Node, planes: Planes, shape: tuple[int, ...]) -> Node:
    """Decoded rows of a weight by index, f32[shape]: each is the one rounding of scale · quant + minimum.

    `tables` are parameters over the planes: quants as bytes [rows, bytes a row], then [rows, blocks] scales and minima.
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
    scale, *minimum = (reshaped(op.convert(r, openvino.Type.f32), [*lead, blocks, 1]) for r in rows[1:])
    decoded = op.multiply(whole, scale)
    for least in minimum:
        decoded = op.add(decoded, least)
    return reshaped(decoded, shape)
