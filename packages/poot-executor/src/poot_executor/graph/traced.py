"""The handle of a value that is being recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poot_executor.dtype import F32, DType
from poot_executor.errors import GraphError
from poot_executor.graph.graph import TensorType, Value

if TYPE_CHECKING:
    from poot_executor.graph.builder import Builder

Scalar = float | bool
"""A Python number; an int is one where a float is asked for."""


class Traced:
    """A value being recorded. Operators broadcast their operands as numpy does, by explicit
    equations; a Python number takes the handle's dtype. `==` and `!=` record a comparison too:
    compare handles by `is`."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return self.value.type

    @property
    def shape(self) -> tuple[int, ...]:
        """The static shape."""
        return self.value.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.value.dtype

    def __repr__(self) -> str:
        return f"<{self.value}: {self.type}>"

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise GraphError(f"{self!r} has no data: a trace cannot branch on it, select instead")

    def _binary(self, op: str, other: Traced | Scalar, swap: bool = False) -> Traced:
        builder = self.builder
        if not isinstance(other, Traced):
            other = builder.scalar(other, self.dtype)
        try:
            shape = np.broadcast_shapes(self.shape, other.shape)
        except ValueError:
            raise GraphError(f"{op}({self.type}, {other.type}): shapes do not broadcast against one another") from None
        pair = [builder.broadcast_to(x, shape) for x in ((other, self) if swap else (self, other))]
        return builder.apply(op, *pair)

    def _divide(self, other: Traced | Scalar, swap: bool = False) -> Traced:
        if not self.dtype.is_float:
            raise GraphError(f"{self.type} has no /: primitives.div truncates towards zero")
        return self._binary("div", other, swap)

    def __add__(self, other: Traced | Scalar) -> Traced:
        return self._binary("add", other)

    def __radd__(self, other: Scalar) -> Traced:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: Traced | Scalar) -> Traced:
        return self._binary("sub", other)

    def __rsub__(self, other: Scalar) -> Traced:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: Traced | Scalar) -> Traced:
        return self._binary("mul", other)

    def __rmul__(self, other: Scalar) -> Traced:
        return self._binary("mul", other, swap=True)

    def __truediv__(self, other: Traced | Scalar) -> Traced:
        return self._divide(other)

    def __rtruediv__(self, other: Scalar) -> Traced:
        return self._divide(other, swap=True)

    def __and__(self, other: Traced | Scalar) -> Traced:
        return self._binary("and", other)

    def __rand__(self, other: Scalar) -> Traced:
        return self._binary("and", other, swap=True)

    def __or__(self, other: Traced | Scalar) -> Traced:
        return self._binary("or", other)

    def __ror__(self, other: Scalar) -> Traced:
        return self._binary("or", other, swap=True)

    def __xor__(self, other: Traced | Scalar) -> Traced:
        return self._binary("xor", other)

    def __lshift__(self, other: Traced | Scalar) -> Traced:
        return self._binary("shl", other)

    def __rshift__(self, other: Traced | Scalar) -> Traced:
        return self._binary("shr", other)

    def __lt__(self, other: Traced | Scalar) -> Traced:
        return self._binary("lt", other)

    def __le__(self, other: Traced | Scalar) -> Traced:
        return self._binary("le", other)

    def __gt__(self, other: Traced | Scalar) -> Traced:
        return self._binary("gt", other)

    def __ge__(self, other: Traced | Scalar) -> Traced:
        return self._binary("ge", other)

    def __eq__(self, other: Traced | Scalar) -> Traced:  # type: ignore[override]
        return self._binary("eq", other)

    def __ne__(self, other: Traced | Scalar) -> Traced:  # type: ignore[override]
        return self._binary("ne", other)

    def __neg__(self) -> Traced:
        return self.builder.apply("neg", self)

    def __invert__(self) -> Traced:
        return self.builder.apply("not", self)

    def __matmul__(self, other: Traced) -> Traced:
        return self.builder.apply("matmul", self, other, dtype=F32)
