"""Multi-indices as kernel values: to a row-major number, back, and through a reshape."""

from __future__ import annotations

from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle

Index = tuple[Handle, ...]
"""An i32 a dimension."""


def linear(b: KernelBuilder, index: Index, shape: tuple[int, ...]) -> Handle:
    """The row-major element index of a multi-index, i32."""
    total = b.const(0, DType.I32)
    stride = 1
    for place, extent in zip(reversed(index), reversed(shape), strict=True):
        if extent != 1:
            total = place * stride + total
        stride *= extent
    return total


def unravel(b: KernelBuilder, position: Handle, shape: tuple[int, ...]) -> Index:
    """The multi-index of a row-major element index; the inverse of `linear`."""
    index: list[Handle] = []
    for axis in range(len(shape) - 1, -1, -1):
        extent = shape[axis]
        if extent == 1:
            index.append(b.const(0, DType.I32))
        elif all(e == 1 for e in shape[:axis]):
            index.append(position)
        else:
            index.append(position % extent)
            position = position // extent
    return tuple(reversed(index))


def reshaped(b: KernelBuilder, index: Index, old: tuple[int, ...], new: tuple[int, ...]) -> Index:
    """An index carried through a reshape, axis group by axis group, so that untouched axes cost nothing."""
    result: list[Handle] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i2, j2 = i + 1, j + 1
        left = old[i] if i < len(old) else 1
        right = new[j] if j < len(new) else 1
        while left != right:
            if left < right:
                left *= old[i2]
                i2 += 1
            else:
                right *= new[j2]
                j2 += 1
        i2, j2 = min(i2, len(old)), min(j2, len(new))
        result.extend(unravel(b, linear(b, index[i:i2], old[i:i2]), new[j:j2]))
        i, j = i2, j2
    return tuple(result)


def same_tail(shape: tuple[int, ...], source: tuple[int, ...], axis: int) -> bool:
    """Do two shapes of one reshape agree from an axis of the first on?"""
    behind = len(shape) - axis
    return behind <= len(source) and shape[axis:] == source[len(source) - behind :]
