"""A row of the op table, and the two things asked of it: a result's type and a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

from poot_executor.dtype import DType
from poot_executor.errors import GraphError
from poot_executor.graph.graph import TensorType
from poot_executor.graph.infer import Inference, Mismatch
from poot_executor.graph.numerics import ORACLE, Arithmetic, Array
from poot_executor.graph.rules import Rule


class OpKind(Enum):
    """What an operation does to data, which is what fusion asks."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    MOVEMENT = "movement"
    INDEXED = "indexed"
    SOURCE = "source"
    SAMPLING = "sampling"


class ParamKind(Enum):
    """The Python type of a param. Tuples hold plain ints; a number is an int, a float or a bool."""

    INT = "int"
    INTS = "tuple[int, ...]"
    NUMBER = "number"
    DTYPE = "dtype"
    NAME = "str"

    def accepts(self, value: Any) -> bool:
        """Whether a value has exactly this type."""
        if self is ParamKind.INT:
            return type(value) is int
        if self is ParamKind.INTS:
            return type(value) is tuple and all(type(v) is int for v in value)
        if self is ParamKind.NUMBER:
            return type(value) in (int, float, bool)
        return isinstance(value, DType if self is ParamKind.DTYPE else str)


@dataclass(frozen=True, slots=True)
class OpRow:
    """A row: `signature` in shape letters, `dtypes` the dtype rule in words, `doc` one sentence.

    `arity` is the number of operands, None for one or more. `inference` and `rule` are the bare
    rules; call `infer` and `evaluate`. `commutative` says that swapping two operands keeps every
    bit of the result.
    """

    name: str
    kind: OpKind
    arity: int | None
    signature: str
    dtypes: str
    doc: str
    inference: Inference
    rule: Rule
    params: Mapping[str, ParamKind] = field(default_factory=lambda: MappingProxyType({}))
    commutative: bool = False

    def infer(self, types: Sequence[TensorType], params: Mapping[str, Any]) -> TensorType:
        """The result's type. Raises GraphError that names the operation, types and reason."""
        try:
            self._check(types, params)
            return self.inference(types, params)
        except Mismatch as reason:
            given = "".join(f", {k}={v}" for k, v in params.items())
            raise GraphError(f"{self.name}({', '.join(map(str, types))}{given}): {reason}") from None

    def _check(self, types: Sequence[TensorType], params: Mapping[str, Any]) -> None:
        count = len(types)
        if count != self.arity if self.arity is not None else count < 1:
            raise Mismatch(f"takes {'1 or more' if self.arity is None else self.arity} operands, not {count}")
        if set(params) != set(self.params):
            raise Mismatch(f"takes params {sorted(self.params)}, not {sorted(params)}")
        for name, kind in self.params.items():
            if not kind.accepts(params[name]):
                raise Mismatch(f"param {name} is a {kind.value}, not {params[name]!r}")

    def evaluate(
        self,
        arrays: Sequence[Array],
        params: Mapping[str, Any],
        out: TensorType,
        arithmetic: Arithmetic = ORACLE,
    ) -> Array:
        """The result as numpy holds it, maybe a view of an operand.

        Raises GraphError for what is a fault on a device.
        """
        with np.errstate(all="ignore"):
            return self.rule(arrays, params, out, arithmetic)
