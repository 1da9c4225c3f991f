"""The operations of a kernel as methods on handles: what `KernelBuilder` offers besides buffers and control flow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel import packing
from poot_executor.kernel.fold import Constant, Number, Same, fold
from poot_executor.kernel.fragments import FragmentType
from poot_executor.kernel.handle import Handle, constant_of, natural_dtype, number
from poot_executor.kernel.ir import KType, Val

Value = Handle | int | float | bool


class Operations(ABC):
    """One method an operation. Operands are handles or Python numbers, which become constants of the other operands'
    dtype.
    """

    packs_bf16: bool
    """Whether the target has `pack_bf16`."""

    @abstractmethod
    def emit(self, kind: str, *operands: Handle, dtype: DType | None = None, **attrs: Any) -> Handle:
        """Append an operation and give its result. `dtype` is the result's for cast and bitcast. No folding."""

    @abstractmethod
    def several(self, kind: str, *operands: Handle, **attrs: Any) -> list[Handle]:
        """Append an operation that has several results."""

    @abstractmethod
    def effect(self, kind: str, *operands: Handle, **attrs: Any) -> None:
        """Append an operation that has no result."""

    @abstractmethod
    def constant_val(self, dtype: DType, value: Number) -> Val:
        """The IR value of a constant, emitted once a block."""

    # Operands

    def const(self, value: Number, dtype: DType) -> Handle:
        """A constant. Raises KernelError where the number does not fit the dtype."""
        plain = number(value)
        if plain is None:
            raise KernelError(f"{value!r} is not a number")
        return Handle(self, KType(dtype), None, constant_of(plain, dtype))

    def as_handle(self, value: Value, dtype: DType | None = None) -> Handle:
        """A handle as it is; a number as a constant of `dtype`, else of its own: bool, i32 or f32."""
        if isinstance(value, Handle):
            if value.builder is not self:
                raise KernelError("a value of another kernel")
            return value
        plain = number(value)
        if plain is None:
            raise KernelError(f"{value!r} of type {type(value).__name__} is not a value of a kernel")
        return self.const(plain, dtype if dtype is not None else natural_dtype(plain))

    def as_index(self, value: Value) -> Handle:
        """An i32 scalar. Raises KernelError for anything else."""
        handle = self.as_handle(value, DType.I32)
        if handle.type != KType(DType.I32):
            raise KernelError(f"indices and bounds are i32, not {handle.type}: cast it")
        return handle

    def matching(self, value: Value, other: Handle) -> Handle:
        """`value` as a handle of the dtype of `other`. Raises KernelError naming both dtypes where it is a handle of
        another.
        """
        handle = self.as_handle(value, other.dtype)
        if handle.dtype is not other.dtype:
            raise KernelError(f"operands of {other.dtype} and {handle.dtype} do not mix: cast one of them")
        return handle

    def widened(self, left: Handle, right: Handle) -> tuple[Handle, Handle]:
        """Both with one width: a scalar beside a vector is repeated."""
        if left.width == right.width:
            return left, right
        if left.width == 1:
            return self.vector(*[left] * right.width), right
        if right.width == 1:
            return left, self.vector(*[right] * left.width)
        raise KernelError(f"vectors of widths {left.width} and {right.width} do not mix")

    def apply(self, kind: str, *operands: Handle, dtype: DType | None = None, **attrs: Any) -> Handle:
        """A pure operation on operands of the right types, folded where it is known."""
        if all(h.width == 1 for h in operands):
            known = fold(kind, operands[-1].dtype, [h.constant for h in operands], dtype or operands[-1].dtype)
            if isinstance(known, Same):
                return operands[known.operand]
            if isinstance(known, Constant):
                compares = kind in ("eq", "ne", "lt", "le", "gt", "ge")
                result = DType.F32 if kind == "half_to_float" else dtype or operands[-1].dtype
                return self.const(known.value, DType.BOOL if compares else result)
        return self.emit(kind, *operands, dtype=dtype, **attrs)

    def _together(self, *values: Value) -> list[Handle]:
        """Handles of one type: numbers take the dtype of the handles, scalars the width of the vectors."""
        first = next((v for v in values if isinstance(v, Handle)), None)
        if first is None:
            floats = any(isinstance(number(v), float) for v in values)
            return [self.as_handle(v, DType.F32 if floats else None) for v in values]
        handles = [self.matching(v, first) for v in values]
        widest = max(handles, key=lambda h: h.width)
        return [self.widened(h, widest)[0] for h in handles]

    # Places

    def group_id(self, axis: int = 0) -> Handle:
        """The group's place in the grid along `axis` 0 to 2, an i32."""
        return self.emit("group_id", axis=axis)

    def thread_id(self) -> Handle:
        """The thread's place in its group, an i32."""
        return self.emit("thread_id")

    def lane_id(self) -> Handle:
        """The thread's place in its subgroup, an i32."""
        return self.emit("lane_id")

    def subgroup_id(self) -> Handle:
        """The subgroup's place in its group, an i32."""
        return self.emit("subgroup_id")

    def subgroup_size(self) -> Handle:
        """Threads of a subgroup, an i32."""
        return self.emit("subgroup_size")

    # Arithmetic

    def exp(self, a: Value) -> Handle:
        """eᵃ of an f32."""
        return self._float("exp", a)

    def log(self, a: Value) -> Handle:
        """The natural logarithm of an f32."""
        return self._float("log", a)

    def sqrt(self, a: Value) -> Handle:
        """The square root of an f32."""
        return self._float("sqrt", a)

    def rsqrt(self, a: Value) -> Handle:
        """1/√a of an f32."""
        return self._float("rsqrt", a)

    def sin(self, a: Value) -> Handle:
        """The sine of an f32 in radians."""
        return self._float("sin", a)

    def cos(self, a: Value) -> Handle:
        """The cosine of an f32 in radians."""
        return self._float("cos", a)

    def tanh(self, a: Value) -> Handle:
        """The hyperbolic tangent of an f32."""
        return self._float("tanh", a)

    def erf(self, a: Value) -> Handle:
        """The error function of an f32."""
        return self._float("erf", a)

    def floor(self, a: Value) -> Handle:
        """The greatest integer not above an f32, as an f32."""
        return self._float("floor", a)

    def round(self, a: Value) -> Handle:
        """To the nearest integer, ties to even."""
        return self._float("round", a)

    def _float(self, kind: str, a: Value) -> Handle:
        handle = self.as_handle(a, DType.F32)
        if handle.dtype is not DType.F32:
            raise KernelError(f"{kind} takes f32, not {handle.dtype}: cast it")
        return self.apply(kind, handle)

    def abs(self, a: Value) -> Handle:
        """|a|."""
        return abs(self.as_handle(a))

    def min(self, a: Value, c: Value) -> Handle:
        """The lesser of two numbers; which one with a NaN is not specified."""
        return self.apply("min", *self._together(a, c))

    def max(self, a: Value, c: Value) -> Handle:
        """The greater of two numbers; which one with a NaN is not specified."""
        return self.apply("max", *self._together(a, c))

    def pow(self, a: Value, c: Value) -> Handle:
        """`a` raised to `c`, for a ≥ 0."""
        return self.apply("pow", *self._together(a, c))

    def fma(self, a: Value, c: Value, d: Value) -> Handle:
        """a·c + d, rounded once where the target has it."""
        return self.apply("fma", *(self.as_handle(h, DType.F32) for h in self._together(a, c, d)))

    def mulhi(self, a: Value, c: Value) -> Handle:
        """The high word of the 64-bit product of two u32."""
        return self.apply("mulhi", *self._together(a, c))

    def dot4(self, a: Handle, c: Handle, d: Value) -> Handle:
        """Σ of the products of the four signed bytes of two u32, plus the i32 `d`."""
        return self.emit("dot4", a, c, self.as_handle(d, DType.I32))

    def select(self, condition: Value, a: Value, c: Value) -> Handle:
        """`a` where the condition holds, else `c`. Both are evaluated."""
        left, right = self._together(a, c)
        return self.apply("select", self.as_handle(condition), left, right)

    def cast(self, a: Value, dtype: DType) -> Handle:
        """Number conversion to f32, i32, u32 or bool: f32 truncates towards zero, x to bool is x != 0."""
        handle = self.as_handle(a)
        return handle if handle.dtype is dtype else self.apply("cast", handle, dtype=dtype)

    def bitcast(self, a: Value, dtype: DType) -> Handle:
        """The same 32 bits as f32, i32 or u32."""
        handle = self.as_handle(a)
        return handle if handle.dtype is dtype else self.apply("bitcast", handle, dtype=dtype)

    def half_to_float(self, a: Value) -> Handle:
        """The f16 in the low 16 bits of a u32, exactly."""
        return self.apply("half_to_float", self.as_handle(a, DType.U32))

    def float_to_half(self, a: Value) -> Handle:
        """An f32 as f16 bits in the low 16 of a u32, nearest even."""
        return self.apply("float_to_half", self.as_handle(a, DType.F32))

    def vector(self, *scalars: Value) -> Handle:
        """2 or 4 scalars of one dtype as a vector."""
        return self.emit("vector", *self._together(*scalars))

    # Narrow numbers in words

    def pack_half2(self, low: Value, high: Value) -> Handle:
        """Two f32 as f16 in one u32 word, nearest even."""
        return packing.pack_half2(self.as_handle(low, DType.F32), self.as_handle(high, DType.F32))

    def pack_bf16x2(self, low: Value, high: Value) -> Handle:
        """Two f32 as bf16 in one u32 word, nearest even; NaN stays NaN."""
        return packing.pack_bf16x2(self.as_handle(low, DType.F32), self.as_handle(high, DType.F32))

    def pack_bf16(self, low: Value, high: Value) -> Handle:
        """Two f32 as bf16 in one u32 word by one operation, where the target has `packed_half`."""
        return self.emit("pack_bf16", self.as_handle(low, DType.F32), self.as_handle(high, DType.F32))

    def packed_fma(self, a: Value, c: Value, d: Value, dtype: DType) -> Handle:
        """a·c + d of both halves (bf16 or f16) of u32 words, where the target has `packed_half`."""
        return self.emit("packed_fma", *(self.as_handle(h, DType.U32) for h in (a, c, d)), half=str(dtype))

    def pack_bytes4(self, a: Value, c: Value, d: Value, e: Value) -> Handle:
        """The low bytes of four integers in one u32 word, `a` lowest."""
        return packing.pack_bytes4(*(self.as_handle(part) for part in (a, c, d, e)))

    def unpack_half2(self, word: Handle) -> tuple[Handle, Handle]:
        """The two f16 of a u32 word as f32, low first."""
        return packing.unpack_half2(word)

    def unpack_bf16x2(self, word: Handle) -> tuple[Handle, Handle]:
        """The two bf16 of a u32 word as f32, low first."""
        return packing.unpack_bf16x2(word)

    def unpack_byte(self, word: Handle, shift: Value, *, signed: bool) -> Handle:
        """The byte at bit `shift` of a u32 word as i32."""
        return packing.unpack_byte(word, self.as_handle(shift, DType.U32), signed=signed)

    # Across threads

    def barrier(self) -> None:
        """Every thread of the group arrives, and sees what the others wrote to shared and buffer memory."""
        self.effect("barrier")

    def subgroup_sum(self, a: Value) -> Handle:
        """The sum over the subgroup's threads; each of them gets it."""
        return self.emit("subgroup_sum", self.as_handle(a))

    def subgroup_max(self, a: Value) -> Handle:
        """The greatest over the subgroup's threads."""
        return self.emit("subgroup_max", self.as_handle(a))

    def subgroup_min(self, a: Value) -> Handle:
        """The least over the subgroup's threads."""
        return self.emit("subgroup_min", self.as_handle(a))

    def subgroup_shuffle(self, a: Value, lane: Value) -> Handle:
        """The value that lane `lane` has."""
        return self.emit("subgroup_shuffle", self.as_handle(a), self.as_index(lane))

    def subgroup_shuffle_xor(self, a: Value, mask: int) -> Handle:
        """The value that lane (own lane xor mask) has."""
        return self.emit("subgroup_shuffle_xor", self.as_handle(a), mask=mask)

    def mma(self, a: Handle, c: Handle, d: Handle, dtype: DType) -> Handle:
        """A subgroup's a·c + d of matrix fragments, where the target has `mma`: see the operation table."""
        return self.emit("mma", a, c, d, half=str(dtype))

    def copy_commit(self) -> None:
        """End a set of the thread's copies into shared memory: see the module `warpgroups`."""
        self.effect("copy_commit")

    def copy_wait(self, pending: int) -> None:
        """Wait until at most `pending` of the thread's latest sets of copies are not there."""
        self.effect("copy_wait", pending=pending)

    # Matrix fragments, where the target has `fragments`: see the module of that name

    def fragment_zero(self, type: FragmentType) -> Handle:
        """A fragment of sums that are all zero."""
        return self.emit("fragment_zero", **type.attrs)

    def fragment_mma(self, a: Handle, c: Handle, d: Handle) -> Handle:
        """A subgroup's a·c + d of fragments."""
        return self.emit("fragment_mma", a, c, d)

    def fragment_fma(self, a: Handle, c: Handle, d: Handle) -> Handle:
        """a·c + d of fragments of sums, element by element."""
        return self.emit("fragment_fma", a, c, d)

    def group_sum(self, a: Value) -> Handle:
        """The sum over the group's threads, which each of them gets."""
        return self.emit("group_sum", self.as_handle(a))

    def group_max(self, a: Value) -> Handle:
        """The greatest over the group's threads, which each of them gets."""
        return self.emit("group_max", self.as_handle(a))

    def group_min(self, a: Value) -> Handle:
        """The least over the group's threads, which each of them gets."""
        return self.emit("group_min", self.as_handle(a))

    def check(self, condition: Value, code: int) -> None:
        """A fault with `code` (1 to 255) in every thread where the condition is false. Clamp the index that it guards
        yourself.
        """
        handle = self.as_handle(condition)
        if handle.constant is not True:
            self.effect("check", handle, code=code)
