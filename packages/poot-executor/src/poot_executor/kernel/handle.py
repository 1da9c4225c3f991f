"""Handles: kernel values with Python operators, as a kernel is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.fold import Number, to_f32, wrap
from poot_executor.kernel.ir import KType, Val

if TYPE_CHECKING:
    from poot_executor.kernel.operations import Operations


class Handle:
    """A scalar or short vector of the kernel under construction.

    Operators take another handle of the same type or a Python number, which becomes a constant of this handle's dtype
    (and is repeated over a vector's lanes, as a scalar handle is). `//` and `%` are integer division and remainder of
    numbers that are not negative: they truncate. `/` is float division. Comparisons give bool handles, `& | ^ ~` are
    logical on them. `constant` is the value where it is known, else None.
    """

    __slots__ = ("_val", "builder", "constant", "type")

    def __init__(self, builder: Operations, type: KType, val: Val | None, constant: Number | None = None) -> None:
        self.builder = builder
        self.type = type
        self.constant = constant
        self._val = val

    @property
    def dtype(self) -> DType:
        """The element type: f32, i32, u32 or bool."""
        return self.type.dtype

    @property
    def width(self) -> int:
        """1 for a scalar, 2 or 4 for a vector."""
        return self.type.width

    @property
    def val(self) -> Val:
        """The IR value. A constant is emitted where it is first needed, once a block."""
        if self._val is None:
            assert self.constant is not None
            return self.builder.constant_val(self.dtype, self.constant)
        return self._val

    def named(self, hint: str) -> Handle:
        """This value, with the source name `hint` for readable output. A name once given stays."""
        if self._val is not None and not self._val.hint:
            self._val.hint = hint
        return self

    def same_value(self, other: Handle) -> bool:
        """Whether both are surely one value: the same IR value, or equal constants."""
        if self._val is not None or other._val is not None:
            return self._val is other._val
        return self.type == other.type and repr(self.constant) == repr(other.constant)

    def _with(self, kind: str, other: Handle | Number, *, swapped: bool = False, **attrs: Any) -> Handle:
        right = self.builder.matching(other, self)
        left, right = self.builder.widened(self, right)
        operands = (right, left) if swapped else (left, right)
        return self.builder.apply(kind, *operands, **attrs)

    def _whole(self, kind: str, other: Handle | Number, *, swapped: bool = False) -> Handle:
        """Division or remainder under the contract that neither operand is negative, which a pass may use."""
        attrs = {"nonnegative": True} if self.dtype is DType.I32 else {}
        return self._with(kind, other, swapped=swapped, **attrs)

    def __add__(self, other: Handle | Number) -> Handle:
        return self._with("add", other)

    def __radd__(self, other: Number) -> Handle:
        return self._with("add", other, swapped=True)

    def __sub__(self, other: Handle | Number) -> Handle:
        return self._with("sub", other)

    def __rsub__(self, other: Number) -> Handle:
        return self._with("sub", other, swapped=True)

    def __mul__(self, other: Handle | Number) -> Handle:
        return self._with("mul", other)

    def __rmul__(self, other: Number) -> Handle:
        return self._with("mul", other, swapped=True)

    def __truediv__(self, other: Handle | Number) -> Handle:
        return self._float("/")._with("div", other)

    def __rtruediv__(self, other: Number) -> Handle:
        return self._float("/")._with("div", other, swapped=True)

    def __floordiv__(self, other: Handle | Number) -> Handle:
        return self._int("//")._whole("div", other)

    def __rfloordiv__(self, other: Number) -> Handle:
        return self._int("//")._whole("div", other, swapped=True)

    def __mod__(self, other: Handle | Number) -> Handle:
        return self._int("%")._whole("rem", other)

    def __rmod__(self, other: Number) -> Handle:
        return self._int("%")._whole("rem", other, swapped=True)

    def __and__(self, other: Handle | Number) -> Handle:
        return self._with("and", other)

    def __rand__(self, other: Number) -> Handle:
        return self._with("and", other, swapped=True)

    def __or__(self, other: Handle | Number) -> Handle:
        return self._with("or", other)

    def __ror__(self, other: Number) -> Handle:
        return self._with("or", other, swapped=True)

    def __xor__(self, other: Handle | Number) -> Handle:
        return self._with("xor", other)

    def __rxor__(self, other: Number) -> Handle:
        return self._with("xor", other, swapped=True)

    def __lshift__(self, other: Handle | Number) -> Handle:
        return self._with("shl", other)

    def __rlshift__(self, other: Number) -> Handle:
        return self._with("shl", other, swapped=True)

    def __rshift__(self, other: Handle | Number) -> Handle:
        return self._with("shr", other)

    def __rrshift__(self, other: Number) -> Handle:
        return self._with("shr", other, swapped=True)

    def __eq__(self, other: object) -> Handle:  # type: ignore[override]
        return self._with("eq", other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Handle:  # type: ignore[override]
        return self._with("ne", other)  # type: ignore[arg-type]

    __hash__ = object.__hash__

    def __lt__(self, other: Handle | Number) -> Handle:
        return self._with("lt", other)

    def __le__(self, other: Handle | Number) -> Handle:
        return self._with("le", other)

    def __gt__(self, other: Handle | Number) -> Handle:
        return self._with("gt", other)

    def __ge__(self, other: Handle | Number) -> Handle:
        return self._with("ge", other)

    def __neg__(self) -> Handle:
        if self.dtype is DType.U32:
            return self._with("sub", 0, swapped=True)
        return self.builder.apply("neg", self)

    def __abs__(self) -> Handle:
        return self if self.dtype is DType.U32 else self.builder.apply("abs", self)

    def __invert__(self) -> Handle:
        return self.builder.apply("not", self)

    def __getitem__(self, lane: int) -> Handle:
        if isinstance(lane, bool) or not isinstance(lane, int) or not 0 <= lane < self.width or self.width == 1:
            raise KernelError(
                f"lane {lane!r} of a value of type {self.type}: vectors have compile-time lanes 0 to width − 1"
            )
        return self.builder.emit("extract", self, lane=lane)

    def __len__(self) -> int:
        return self.width

    @property
    def x(self) -> Handle:
        """Lane 0 of a vector."""
        return self[0]

    @property
    def y(self) -> Handle:
        """Lane 1 of a vector."""
        return self[1]

    @property
    def z(self) -> Handle:
        """Lane 2 of a vector."""
        return self[2]

    @property
    def w(self) -> Handle:
        """Lane 3 of a vector."""
        return self[3]

    def __bool__(self) -> bool:
        raise KernelError(
            "a kernel value is not known while the kernel is made: use if_, while_ or select, "
            "and & | ~ for and, or, not"
        )

    def __index__(self) -> int:
        raise KernelError(
            "a kernel value is not known while the kernel is made, and here a compile-time integer is needed"
        )

    def __repr__(self) -> str:
        return f"<{self.type} value>" if self.constant is None else f"<{self.type} {self.constant}>"

    def _int(self, sign: str) -> Handle:
        if not self.dtype.is_int:
            raise KernelError(f"{sign} takes integers, not {self.dtype}: use / or floor")
        return self

    def _float(self, sign: str) -> Handle:
        if not self.dtype.is_float:
            raise KernelError(f"{sign} takes floats, not {self.dtype}: use //")
        return self


def number(value: object) -> Number | None:
    """A Python or numpy number as a Python number; None where it is none."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, bool | int | float) else None


def natural_dtype(value: Number) -> DType:
    """The dtype that a Python number has by itself: bool, i32 or f32."""
    if isinstance(value, bool):
        return DType.BOOL
    return DType.I32 if isinstance(value, int) else DType.F32


def constant_of(value: Number, dtype: DType) -> Number:
    """A Python number as a constant's value in `dtype`. Raises KernelError where it is not exactly one of the dtype's
    (floats round).
    """
    if dtype is DType.F32:
        if isinstance(value, bool):
            raise KernelError(f"{value} is not a number of f32")
        return to_f32(value)
    if dtype is DType.BOOL:
        if not isinstance(value, bool):
            raise KernelError(f"{value} is not a bool")
        return value
    if isinstance(value, bool | float):
        raise KernelError(f"{value!r} is not an integer of {dtype}: cast the other operand or write an integer")
    if not -(1 << 31) <= value < 1 << 32 or (dtype is DType.U32 and value < 0) or wrap(value, dtype) != value:
        raise KernelError(f"{value} does not fit {dtype}")
    return value
