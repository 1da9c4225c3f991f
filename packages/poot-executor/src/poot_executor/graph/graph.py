"""The graph: a flat, typed list of primitive equations in SSA form, immutable once built.

Equations are in topological order and each has one output. Inputs carry their storage and the key that binds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from poot_executor.dtype import DType
from poot_executor.graph.keys import InputKey, SlotKey, StateKey, Storage
from poot_executor.weights import WeightKey


@dataclass(frozen=True, slots=True)
class TensorType:
    """A static shape and an element type. A packed weight is u8[rows, row_bytes] with its `packed_dequant` beside
    it."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in a device buffer, without padding."""
        return self.count * self.dtype.size

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Value:
    """A value of one graph: its number there and its type."""

    id: int
    type: TensorType

    def __hash__(self) -> int:
        # Compilers look values up millions of times, and the number tells those of one graph apart.
        return self.id

    @property
    def shape(self) -> tuple[int, ...]:
        """The type's shape."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The type's element type."""
        return self.type.dtype

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """An input. `key` binds CONST, SLOT and STATE; `data` (as numpy holds it, see dtype) is there for COMPUTED
    alone."""

    value: Value
    storage: Storage
    key: InputKey | None = None
    data: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """`output = op(*inputs, **params)`. Params are hashable compile-time values; the op table says which."""

    op: str
    inputs: tuple[Value, ...]
    params: Mapping[str, Any]
    output: Value

    def __post_init__(self) -> None:
        if not isinstance(self.params, MappingProxyType):
            object.__setattr__(self, "params", MappingProxyType(dict(self.params)))


@dataclass(frozen=True, slots=True)
class StatePair:
    """A state input and the value that replaces it after the step, of the same type. The same value: unchanged."""

    key: StateKey
    before: Value
    after: Value


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A traced step. `outputs` by name; `checks` are scalars i32 (-1, or the first offending index)."""

    inputs: tuple[Input, ...]
    equations: tuple[Equation, ...]
    outputs: Mapping[str, Value]
    state: tuple[StatePair, ...] = ()
    checks: tuple[Value, ...] = ()
    name: str = "graph"
    _by_value: Mapping[Value, Input | Equation] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", MappingProxyType(dict(self.outputs)))
        table: dict[Value, Input | Equation] = {i.value: i for i in self.inputs}
        table.update((e.output, e) for e in self.equations)
        object.__setattr__(self, "_by_value", MappingProxyType(table))

    def definition(self, value: Value) -> Input | Equation:
        """What defines a value. Raises KeyError for a value of another graph."""
        return self._by_value[value]

    def equation(self, value: Value) -> Equation | None:
        """The equation that computes a value; None for an input."""
        found = self._by_value[value]
        return found if isinstance(found, Equation) else None

    def input(self, value: Value) -> Input | None:
        """The input that a value is; None for a computed one."""
        found = self._by_value[value]
        return found if isinstance(found, Input) else None

    def roots(self) -> Iterator[Value]:
        """Every value that must be computed: outputs, next states, checks, in that order."""
        yield from self.outputs.values()
        yield from (pair.after for pair in self.state)
        yield from self.checks

    def weights(self) -> dict[WeightKey, Value]:
        """The CONST inputs by role."""
        return {i.key: i.value for i in self.inputs if isinstance(i.key, WeightKey)}

    def slots(self) -> dict[SlotKey, Value]:
        """The per-step inputs by key."""
        return {i.key: i.value for i in self.inputs if isinstance(i.key, SlotKey)}

    def __str__(self) -> str:
        from poot_executor.graph.show import show

        return show(self)
