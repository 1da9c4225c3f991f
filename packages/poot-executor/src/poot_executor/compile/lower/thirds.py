"""An f32 as three bf16 whose sum it is, exactly: each is the upper half of what those before it leave.

And the sum of a run of activations, of which neighbouring lanes have eight each: what a block's minimum meets.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle

TOP = 0xFFFF0000
"""The upper half of an f32: a bf16."""


def cut(b: KernelBuilder, low: Handle, high: Handle) -> Handle:
    """A word of the upper halves of two f32."""
    return (b.bitcast(low, DType.U32) >> 16) | (b.bitcast(high, DType.U32) & TOP)


def without_top(b: KernelBuilder, value: Handle) -> Handle:
    """An f32 less its upper half, exactly. Infinity is all in its upper half."""
    bits = b.bitcast(value, DType.U32)
    return b.select((bits & 0xFFFF) == 0, 0.0, value - b.bitcast(bits & TOP, DType.F32))


def run_total(b: KernelBuilder, values: Sequence[Handle]) -> Handle:
    """The sum of a run of 32, of which four neighbouring lanes have eight each; all of them get it."""
    total, *rest = values
    for value in rest:
        total = total + value
    for mask in (1, 2):
        total = total + b.subgroup_shuffle_xor(total, mask)
    return total
