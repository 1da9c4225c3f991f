"""The intrinsics of the kernel language, by the names that sources import from `lang`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from poot_executor.errors import KernelError
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.functions import Intrinsic, LocalArray, dtype_of
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.operations import Value

# Compile time


@Intrinsic
def static(b: KernelBuilder, items: Iterable[Any]) -> list[Any]:
    """What a `for` is unrolled over."""
    if isinstance(items, Handle | BufferRef | SharedRef):
        raise KernelError("static(...) goes over what is known at compile time")
    return list(items)


@Intrinsic
def loop(b: KernelBuilder, low: Value, high: Value, step: Value = 1, *, unroll: int | None = None) -> Iterable[Any]:
    """What a `for` goes over: `range`, and how often to unroll it.

    The importer takes `range(..., unroll=n)` as well, which type checkers refuse.
    """
    raise KernelError("a loop(...) stands in a for statement only")


@Intrinsic
def group_size(b: KernelBuilder) -> int:
    """Threads of a group, a compile-time integer."""
    return b.group_size


@Intrinsic
def Shared(b: KernelBuilder, dtype: Any, count: int) -> SharedRef:  # noqa: N802
    """A new shared array of the group: `count` elements of f32, i32 or u32, not zeroed."""
    return b.next_shared(dtype_of(dtype), count)


@Intrinsic
def Local(b: KernelBuilder, dtype: Any, count: int, initial: Value = 0) -> LocalArray:  # noqa: N802
    """Registers of a thread: `count` values that start as `initial`, with compile-time indices."""
    found = dtype_of(dtype)
    return LocalArray(b, found, count, float(initial) if found.is_float and isinstance(initial, int) else initial)


# Places


@Intrinsic
def group_id(b: KernelBuilder, axis: int = 0) -> Handle:
    """The group's place in the grid along an axis."""
    return b.group_id(axis)


@Intrinsic
def thread_id(b: KernelBuilder) -> Handle:
    """The thread's place in its group."""
    return b.thread_id()


@Intrinsic
def lane_id(b: KernelBuilder) -> Handle:
    """The thread's place in its subgroup."""
    return b.lane_id()


@Intrinsic
def subgroup_id(b: KernelBuilder) -> Handle:
    """The subgroup's place in its group."""
    return b.subgroup_id()


@Intrinsic
def subgroup_size(b: KernelBuilder) -> Handle:
    """Threads of a subgroup."""
    return b.subgroup_size()


# Arithmetic


@Intrinsic
def exp(b: KernelBuilder, a: Value) -> Handle:
    """eᵃ of an f32."""
    return b.exp(a)


@Intrinsic
def log(b: KernelBuilder, a: Value) -> Handle:
    """The natural logarithm of an f32."""
    return b.log(a)


@Intrinsic
def sqrt(b: KernelBuilder, a: Value) -> Handle:
    """The square root of an f32."""
    return b.sqrt(a)


@Intrinsic
def rsqrt(b: KernelBuilder, a: Value) -> Handle:
    """1/√a of an f32."""
    return b.rsqrt(a)


@Intrinsic
def sin(b: KernelBuilder, a: Value) -> Handle:
    """The sine of an f32 in radians."""
    return b.sin(a)


@Intrinsic
def cos(b: KernelBuilder, a: Value) -> Handle:
    """The cosine of an f32 in radians."""
    return b.cos(a)


@Intrinsic
def tanh(b: KernelBuilder, a: Value) -> Handle:
    """The hyperbolic tangent of an f32."""
    return b.tanh(a)


@Intrinsic
def erf(b: KernelBuilder, a: Value) -> Handle:
    """The error function of an f32."""
    return b.erf(a)


@Intrinsic
def floor(b: KernelBuilder, a: Value) -> Handle:
    """The greatest integer not above an f32, as an f32."""
    return b.floor(a)


@Intrinsic
def rint(b: KernelBuilder, a: Value) -> Handle:
    """To the nearest integer, ties to even."""
    return b.round(a)


@Intrinsic
def power(b: KernelBuilder, a: Value, c: Value) -> Handle:
    """`a` raised to `c`, for a ≥ 0; also written a ** c."""
    return b.pow(a, c)


@Intrinsic
def fma(b: KernelBuilder, a: Value, c: Value, d: Value) -> Handle:
    """a·c + d, rounded once where the target has it."""
    return b.fma(a, c, d)


@Intrinsic
def mulhi(b: KernelBuilder, a: Value, c: Value) -> Handle:
    """The high word of the product of two u32."""
    return b.mulhi(a, c)


@Intrinsic
def dot4(b: KernelBuilder, a: Handle, c: Handle, d: Value) -> Handle:
    """Σ of the products of four signed bytes, plus an i32."""
    return b.dot4(a, c, d)


@Intrinsic
def select(b: KernelBuilder, condition: Value, a: Value, c: Value) -> Handle:
    """`a` where the condition holds, else `c`."""
    return b.select(condition, a, c)


@Intrinsic
def cast(b: KernelBuilder, a: Value, dtype: Any) -> Handle:
    """Number conversion to a type that may be a compile-time parameter."""
    return b.cast(a, dtype_of(dtype))


@Intrinsic
def bitcast(b: KernelBuilder, a: Value, dtype: Any) -> Handle:
    """The same 32 bits as another type."""
    return b.bitcast(a, dtype_of(dtype))


@Intrinsic
def half_to_float(b: KernelBuilder, a: Value) -> Handle:
    """The f16 in the low 16 bits of a u32."""
    return b.half_to_float(a)


@Intrinsic
def float_to_half(b: KernelBuilder, a: Value) -> Handle:
    """An f32 as f16 bits in the low 16 of a u32."""
    return b.float_to_half(a)


@Intrinsic
def vector(b: KernelBuilder, *scalars: Value) -> Handle:
    """2 or 4 scalars as a vector."""
    return b.vector(*scalars)


@Intrinsic
def pack_half2(b: KernelBuilder, low: Value, high: Value) -> Handle:
    """Two f32 as f16 in a u32 word."""
    return b.pack_half2(low, high)


@Intrinsic
def pack_bf16x2(b: KernelBuilder, low: Value, high: Value) -> Handle:
    """Two f32 as bf16 in a u32 word, nearest even."""
    return b.pack_bf16x2(low, high)


@Intrinsic
def pack_bytes4(b: KernelBuilder, a: Value, c: Value, d: Value, e: Value) -> Handle:
    """The low bytes of four integers in a u32 word."""
    return b.pack_bytes4(a, c, d, e)


@Intrinsic
def unpack_half2(b: KernelBuilder, word: Handle) -> tuple[Handle, Handle]:
    """The two f16 of a u32 word as f32, low first."""
    return b.unpack_half2(word)


@Intrinsic
def unpack_bf16x2(b: KernelBuilder, word: Handle) -> tuple[Handle, Handle]:
    """The two bf16 of a u32 word as f32, low first."""
    return b.unpack_bf16x2(word)


@Intrinsic
def unpack_byte(b: KernelBuilder, word: Handle, shift: Value, *, signed: bool) -> Handle:
    """The byte at bit `shift` of a u32 word as i32."""
    return b.unpack_byte(word, shift, signed=signed)


# Across threads


@Intrinsic
def barrier(b: KernelBuilder) -> None:
    """All threads of the group arrive; in uniform control flow only."""
    b.barrier()


@Intrinsic
def subgroup_sum(b: KernelBuilder, a: Value) -> Handle:
    """The sum over the subgroup's threads; each of them gets it."""
    return b.subgroup_sum(a)


@Intrinsic
def subgroup_max(b: KernelBuilder, a: Value) -> Handle:
    """The greatest over the subgroup's threads."""
    return b.subgroup_max(a)


@Intrinsic
def subgroup_min(b: KernelBuilder, a: Value) -> Handle:
    """The least over the subgroup's threads."""
    return b.subgroup_min(a)


@Intrinsic
def subgroup_shuffle(b: KernelBuilder, a: Value, lane: Value) -> Handle:
    """The value that lane `lane` has."""
    return b.subgroup_shuffle(a, lane)


@Intrinsic
def subgroup_shuffle_xor(b: KernelBuilder, a: Value, mask: int) -> Handle:
    """The value that lane (own lane xor mask) has."""
    return b.subgroup_shuffle_xor(a, mask)


@Intrinsic
def group_sum(b: KernelBuilder, a: Value) -> Handle:
    """The sum over the group's threads; every thread gets it."""
    return b.group_sum(a)


@Intrinsic
def group_max(b: KernelBuilder, a: Value) -> Handle:
    """The greatest over the group's threads, which each of them gets."""
    return b.group_max(a)


@Intrinsic
def group_min(b: KernelBuilder, a: Value) -> Handle:
    """The least over the group's threads, which each of them gets."""
    return b.group_min(a)


@Intrinsic
def check(b: KernelBuilder, condition: Value, code: int) -> None:
    """A fault with this code, 1 to 255, where the condition is false. Clamp the index that it guards first."""
    b.check(condition, code)
