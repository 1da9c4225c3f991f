"""Recording a graph: a `Builder` collects equations, a `Traced` handle stands for a value of it.

A handle has a type and no data, so model code cannot branch on activations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from poot_executor.dtype import BF16, I32, DType, round_bf16
from poot_executor.errors import GraphError
from poot_executor.graph.graph import Equation, Graph, Input, StatePair, TensorType, Value
from poot_executor.graph.infer import Mismatch, check_literal
from poot_executor.graph.keys import InputKey, SlotKey, StateKey, Storage
from poot_executor.graph.ops import op_named
from poot_executor.graph.rules import literal
from poot_executor.graph.traced import Scalar, Traced
from poot_executor.graph.verify import verify
from poot_executor.weights import WeightKey


class Builder:
    """Records one graph. Shapes and dtypes are checked at each call; `build` verifies the whole."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._inputs: list[Input] = []
        self._equations: list[Equation] = []
        self._keys: dict[InputKey, Traced] = {}
        self._scalars: dict[tuple[str, DType], Traced] = {}
        self._outputs: dict[str, Value] = {}
        self._next: dict[StateKey, Value] = {}
        self._checks: list[Value] = []
        self._count = 0

    # Inputs

    def weight(self, key: WeightKey, type: TensorType) -> Traced:
        """A weight or table that the checkpoint holds, bound by role. Asked for again, it is the
        same input.
        """
        return self._keyed(Storage.CONST, key, type)

    def slot(self, key: SlotKey, type: TensorType) -> Traced:
        """A per-step input. Asked for again, it is the same input."""
        return self._keyed(Storage.SLOT, key, type)

    def state(self, key: StateKey, type: TensorType) -> Traced:
        """A value carried across steps, as it is before this one. Asked for again, it is the same
        input.
        """
        return self._keyed(Storage.STATE, key, type)

    def computed(self, data: ArrayLike, dtype: DType) -> Traced:
        """A compiler constant, copied. Floats are rounded to a float dtype; for integers and bool
        the values must already be of that kind and in range. Raises GraphError."""
        held = _held(np.asarray(data), dtype)
        value = self._new(TensorType(held.shape, dtype))
        self._inputs.append(Input(value, Storage.COMPUTED, None, held))
        return Traced(self, value)

    def scalar(self, value: Scalar, dtype: DType) -> Traced:
        """A computed scalar of shape (), one for each value and dtype."""
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, int | float):
            raise GraphError(f"{type(value).__name__} is neither a traced value nor a number")
        key = (repr(value), dtype)
        if key not in self._scalars:
            try:
                check_literal(value, dtype)
            except Mismatch as reason:
                raise GraphError(f"scalar {value!r} as {dtype}: {reason}") from None
            with np.errstate(over="ignore"):
                self._scalars[key] = self.computed(literal(value, dtype), dtype)
        return self._scalars[key]

    def splat(self, value: Scalar, type: TensorType) -> Traced:
        """A value in every place: a computed scalar, reshaped and broadcast."""
        return self.broadcast_to(self.scalar(value, type.dtype), type.shape)

    # Equations

    def apply(self, op: str, *operands: Traced, **params: Any) -> Traced:
        """Record `op(*operands, **params)`. Raises GraphError that names the operation and its
        types.
        """
        row = op_named(op)
        values = tuple(self.value_of(operand) for operand in operands)
        output = self._new(row.infer([v.type for v in values], params))
        self._equations.append(Equation(op, values, params, output))
        return Traced(self, output)

    def broadcast_to(self, x: Traced, shape: tuple[int, ...]) -> Traced:
        """Extend `x` to `shape` as numpy does (new axes in front, 1 grows), by reshape and
        broadcast equations.
        """
        extended = (1,) * (len(shape) - len(x.shape)) + x.shape
        if extended != x.shape:
            x = self.apply("reshape", x, shape=extended)
        return x if x.shape == shape else self.apply("broadcast", x, shape=shape)

    # Results

    def output(self, name: str, x: Traced) -> None:
        """Name an output. Raises GraphError where the name is taken."""
        if name in self._outputs:
            raise GraphError(f"graph {self.name} has an output {name!r} already")
        self._outputs[name] = self.value_of(x)

    def next_state(self, key: StateKey, x: Traced) -> None:
        """Say what replaces a state after the step. A state that is not said stays as it is."""
        before = self._keys.get(key)
        if before is None:
            raise GraphError(f"graph {self.name} reads no state {key}")
        if key in self._next:
            raise GraphError(f"state {key} is replaced twice")
        if x.type != before.type:
            raise GraphError(f"state {key} is {before.type}: it cannot become {x.type}")
        self._next[key] = self.value_of(x)

    def check(self, x: Traced) -> None:
        """Add a validation check: i32[], -1 or the first offending index."""
        if x.type != TensorType((), I32):
            raise GraphError(f"a check is i32[], not {x.type}")
        self._checks.append(self.value_of(x))

    def build(self) -> Graph:
        """The graph as recorded so far, verified. Inputs that nothing reads stay."""
        state = tuple(
            StatePair(item.key, item.value, self._next.get(item.key, item.value))
            for item in self._inputs
            if isinstance(item.key, StateKey)
        )
        return verify(
            Graph(
                tuple(self._inputs), tuple(self._equations), self._outputs,
                state, tuple(self._checks), self.name,
            )
        )  # fmt: skip

    def value_of(self, x: Traced) -> Value:
        """The value a handle stands for. Raises GraphError for a handle of another builder."""
        if not isinstance(x, Traced):
            raise GraphError(f"{type(x).__name__} is not a traced value: use computed or scalar")
        if x.builder is not self:
            raise GraphError(f"{x} belongs to graph {x.builder.name}, not to {self.name}")
        return x.value

    def _new(self, type: TensorType) -> Value:
        if any(d < 1 for d in type.shape):
            raise GraphError(f"{type} has a dimension below 1")
        self._count += 1
        return Value(self._count - 1, type)

    def _keyed(self, storage: Storage, key: InputKey, type: TensorType) -> Traced:
        known = self._keys.get(key)
        if known is None:
            value = self._new(type)
            self._inputs.append(Input(value, storage, key))
            known = self._keys[key] = Traced(self, value)
        if known.type != type:
            raise GraphError(f"{storage.value} {key} is {known.type} and {type}")
        return known


def _held(data: np.ndarray, dtype: DType) -> np.ndarray:
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[dtype.numpy.kind]
    if data.dtype.kind not in kinds:
        raise GraphError(f"data of numpy dtype {data.dtype} is not {dtype}: convert it first")
    if dtype.is_int and data.size:
        info = np.iinfo(dtype.numpy)
        if not info.min <= data.min() <= data.max() <= info.max:
            raise GraphError(f"data between {data.min()} and {data.max()} does not fit {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        held = np.array(data, dtype.numpy, order="C")
    if dtype is BF16:
        held = round_bf16(held).reshape(held.shape)
    held.flags.writeable = False
    return held
