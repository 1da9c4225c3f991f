"""What operations on opaque matrix fragments compute, in numpy.

A fragment lies over the lanes of its subgroup, element e (row-major) in lane e mod width, so that a value is [groups,
threads, elements a lane] and masks apply to it as to any other. Narrow floats are held as f32, bytes as i32, exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.kernel_memory import Mask, Memory, Spot
from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.fragments import FragmentType
from poot_executor.kernel.ir import Op

Array = NDArray[Any]


def held(type: FragmentType, width: int) -> int:
    """Elements that a lane of a subgroup of `width` has."""
    return -(-type.rows * type.columns // width)


def zero(type: FragmentType, width: int) -> Array:
    """The operation `fragment_zero`: the same in every thread."""
    return np.zeros((1, 1, held(type, width)), type.dtype.numpy)


def load(memory: Memory, spot: Spot, op: Op, first: Array, width: int) -> Array:
    """The operation `fragment_load`: each lane reads its elements."""
    type = _type_of(op)
    shape = spot.lanes.shape
    found = np.zeros((*shape, held(type, width)), _held_dtype(type))
    for slot in range(found.shape[2]):
        row, column, mask = _element(type, slot, spot, width)
        word, part = _place(type, op, row, column)
        index = _index(op, first, spot, width) + word.astype(np.int32)
        at = Spot(spot.place, spot.lanes, _both(spot.mask, mask), spot.line)
        # Lanes without an element read what the last lane of their subgroup reads.
        words = memory.load(at, np.where(_all(mask, shape), index, index[:, :1]), 1)
        found[..., slot] = np.where(_all(mask, shape), _unpacked(type, words, part), 0)
    return found


def store(memory: Memory, spot: Spot, op: Op, first: Array, value: Array, width: int) -> None:
    """The operation `fragment_store`: each lane writes its elements."""
    type = op.operands[1].type
    assert isinstance(type, FragmentType)
    whole = np.broadcast_to(value, (*spot.lanes.shape, value.shape[2]))
    for slot in range(value.shape[2]):
        row, column, mask = _element(type, slot, spot, width)
        word, _ = _place(type, op, row, column)
        index = _index(op, first, spot, width) + word.astype(np.int32)
        at = Spot(spot.place, spot.lanes, _both(spot.mask, mask), spot.line)
        memory.store(at, index, whole[..., slot])


def mma(a: Array, b: Array, c: Array, types: tuple[FragmentType, ...], shape: tuple[int, int], width: int) -> Array:
    """The operation `fragment_mma` in groups and threads of `shape`: floats are summed in float64 and rounded once,
    integers wrap."""
    left, right, start = (_matrices(x, t, shape, width) for x, t in zip((a, b, c), types, strict=True))
    if types[2].dtype is DType.I32:
        total = (left.astype(np.int64) @ right.astype(np.int64) + start).astype(np.int32)
    else:
        total = (left.astype(np.float64) @ right.astype(np.float64) + start).astype(np.float32)
    return _lanes(total, types[2], shape, width)


def fma(a: Array, b: Array, c: Array) -> Array:
    """The operation `fragment_fma`: floats rounded once but for absurdly distant sums, integers wrap."""
    if c.dtype == np.int32:
        return a * b + c
    return (a.astype(np.float64) * b + c).astype(np.float32)


def _type_of(op: Op) -> FragmentType:
    type = op.result.type
    assert isinstance(type, FragmentType)
    return type


def _held_dtype(type: FragmentType) -> Any:
    return np.int32 if type.dtype in (DType.I8, DType.I32) else np.float32


def _element(type: FragmentType, slot: int, spot: Spot, width: int) -> tuple[Array, Array, Mask]:
    """Row and column of each thread's element of a slot, [1, threads], and which threads have one (None: all)."""
    lane = np.arange(spot.lanes.threads)[None, :] % width
    element = lane + slot * width
    inside = element < type.rows * type.columns
    element = np.minimum(element, type.rows * type.columns - 1)
    return element // type.columns, element % type.columns, None if inside.all() else inside


def _place(type: FragmentType, op: Op, row: Array, column: Array) -> tuple[Array, Array]:
    """An element's word from the fragment's first, and its place in the word."""
    line, place = (row, column) if op.attrs["major"] == "row" else (column, row)
    return line * op.attrs["stride"] + place // type.per_word, place % type.per_word


def _index(op: Op, first: Array, spot: Spot, width: int) -> Array:
    """The fragment's first element, for every thread. Raises KernelError where lanes of a subgroup disagree."""
    whole = np.broadcast_to(first, spot.lanes.shape)
    if first.shape[1] > 1:
        starts = np.repeat(whole[:, ::width], width, axis=1)[:, : whole.shape[1]]
        if (whole != starts).any():
            raise KernelError(f"{op.kind}: lanes of a subgroup have different places ({op.line})")
    return whole


def _both(mask: Mask, other: Mask) -> Mask:
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def _all(mask: Mask, shape: tuple[int, int]) -> Array:
    return np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)


def _unpacked(type: FragmentType, words: Array, part: Array) -> Array:
    """Elements number `part` of words."""
    match type.dtype:
        case DType.F16:
            halves = (words >> (16 * part).astype(np.uint32)).astype(np.uint16)
            return halves.view(np.float16).astype(np.float32)
        case DType.BF16:
            return (words >> (16 * part).astype(np.uint32) << np.uint32(16)).view(np.float32)
        case DType.I8:
            return (words >> (8 * part).astype(np.uint32)).astype(np.uint8).view(np.int8).astype(np.int32)
    return words


def _matrices(value: Array, type: FragmentType, shape: tuple[int, int], width: int) -> Array:
    """[groups · subgroups, rows, columns] of a value."""
    whole = np.broadcast_to(value, (*shape, value.shape[2]))
    by_slot = whole.reshape(shape[0], -1, width, value.shape[2]).transpose(0, 1, 3, 2)
    flat = by_slot.reshape(shape[0] * by_slot.shape[1], -1)[:, : type.rows * type.columns]
    return flat.reshape(-1, type.rows, type.columns)


def _lanes(matrices: Array, type: FragmentType, shape: tuple[int, int], width: int) -> Array:
    """The value of matrices [groups · subgroups, rows, columns]: the inverse of `_matrices`."""
    each = held(type, width)
    flat = matrices.reshape(len(matrices), -1)
    flat = np.pad(flat, ((0, 0), (0, each * width - flat.shape[1])))
    return flat.reshape(shape[0], -1, each, width).transpose(0, 1, 3, 2).reshape(*shape, each)
