"""Building a graph anew from an old one, which is how every pass changes a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType, to_bytes
from poot_executor.graph.graph import Equation, Graph, Input, StatePair, TensorType, Value
from poot_executor.graph.keys import Storage
from poot_executor.graph.ops import op_named


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An equation to be: an operation on values of the new graph."""

    op: str
    inputs: tuple[Value, ...]
    params: Mapping[str, Any]

    @property
    def type(self) -> TensorType:
        """The result's type, from the op table."""
        return op_named(self.op).infer([v.type for v in self.inputs], self.params)


class Rewriter:
    """The new graph while it is made. A pass walks the old graph in order and, for each input and
    equation, keeps it or says which new value replaces it. `changed` tells whether any was not
    kept as it was."""

    def __init__(self, old: Graph) -> None:
        self.old = old
        self.changed = False
        self._inputs: list[Input] = []
        self._equations: list[Equation] = []
        self._definitions: dict[Value, Input | Equation] = {}
        self._new: dict[Value, Value] = {}
        self._computed: dict[tuple[TensorType, bytes], Value] = {}
        self._count = 0

    def __getitem__(self, old: Value) -> Value:
        """The new value that stands for an old one."""
        return self._new[old]

    def call(self, equation: Equation) -> Call:
        """An old equation with the new operands."""
        return Call(equation.op, tuple(self._new[v] for v in equation.inputs), equation.params)

    def definition(self, new: Value) -> Input | Equation:
        """What defines a value of the new graph."""
        return self._definitions[new]

    def equation(self, new: Value, op: str) -> Equation | None:
        """The equation that defines a new value, if it is of that operation."""
        found = self._definitions[new]
        return found if isinstance(found, Equation) and found.op == op else None

    def data(self, new: Value) -> NDArray[Any] | None:
        """What a computed input holds; None for every other value."""
        found = self._definitions[new]
        return found.data if isinstance(found, Input) else None

    # What a pass says of each old value

    def keep_input(self, item: Input) -> Value:
        """Copy an input."""
        value = self._value(item.value.type)
        copy = Input(value, item.storage, item.key, item.data)
        self._inputs.append(copy)
        self._definitions[value] = copy
        self._new[item.value] = value
        return value

    def keep(self, equation: Equation) -> Value:
        """Copy an equation, with its operands replaced."""
        call = self.call(equation)
        value = self._append(call, equation.output.type)
        self._new[equation.output] = value
        return value

    def replace(self, old: Value, new: Value) -> None:
        """Let a new value stand for an old one."""
        assert old.type == new.type, f"{old} is {old.type}, its replacement {new.type}"
        self._new[old] = new
        self.changed = True

    def drop(self) -> None:
        """Note that an old input or equation is left out."""
        self.changed = True

    # New values

    def emit(self, call: Call) -> Value:
        """A new equation."""
        return self._append(call, call.type)

    def computed(self, data: NDArray[Any], dtype: DType) -> Value:
        """A computed input of these bytes, shared by equal ones made here. `data` is held as numpy
        holds the dtype."""
        type = TensorType(data.shape, dtype)
        key = (type, to_bytes(data, dtype))
        if key not in self._computed:
            held = np.array(data, dtype.numpy, order="C")
            held.flags.writeable = False
            value = self._computed[key] = self._value(type)
            item = Input(value, Storage.COMPUTED, None, held)
            self._inputs.append(item)
            self._definitions[value] = item
        return self._computed[key]

    def splat(self, data: NDArray[Any], type: TensorType) -> Value:
        """One number (an array of one element) in every place: a computed input of one element,
        broadcast where the type has more. This is the canonical form of a splat."""
        one = np.asarray(data).reshape((1,) * len(type.shape))
        value = self.computed(one, type.dtype)
        if value.type == type:
            return value
        return self.emit(Call("broadcast", (value,), {"shape": type.shape}))

    def build(self) -> Graph:
        """The new graph, its values numbered in order: inputs and then equations."""
        final: dict[Value, Value] = {}

        def numbered(value: Value) -> Value:
            return final.setdefault(value, Value(len(final), value.type))

        inputs = tuple(Input(numbered(i.value), i.storage, i.key, i.data) for i in self._inputs)
        equations = tuple(
            Equation(e.op, tuple(final[v] for v in e.inputs), e.params, numbered(e.output)) for e in self._equations
        )
        old, new = self.old, self._new
        return Graph(
            inputs,
            equations,
            {name: final[new[v]] for name, v in old.outputs.items()},
            tuple(StatePair(p.key, final[new[p.before]], final[new[p.after]]) for p in old.state),
            tuple(final[new[v]] for v in old.checks),
            old.name,
        )

    def result(self) -> Graph:
        """The new graph, or the old one itself where nothing changed."""
        return self.build() if self.changed else self.old

    def _append(self, call: Call, type: TensorType) -> Value:
        value = self._value(type)
        equation = Equation(call.op, call.inputs, call.params, value)
        self._equations.append(equation)
        self._definitions[value] = equation
        return value

    def _value(self, type: TensorType) -> Value:
        self._count += 1
        return Value(self._count - 1, type)


def single_bits(data: NDArray[Any], dtype: DType) -> bool:
    """Whether every element of held data has the same bits."""
    raw = to_bytes(data, dtype)
    return raw == raw[: dtype.size] * data.size


def splat_of(rewriter: Rewriter | Graph, value: Value) -> NDArray[Any] | None:
    """The element, of shape (), of a value that is one constant everywhere by its form: a computed
    input of one element behind any broadcasts, reshapes and transposes. None for every other value.
    """
    found = rewriter.definition(value)
    while isinstance(found, Equation) and found.op in ("broadcast", "reshape", "transpose"):
        found = rewriter.definition(found.inputs[0])
    if isinstance(found, Equation) or found.data is None or found.data.size != 1:
        return None
    return found.data.reshape(())


def users(graph: Graph) -> dict[Value, tuple[Equation, ...]]:
    """The equations that read each value, in order, one entry an equation. Roots are not users."""
    table: dict[Value, list[Equation]] = {}
    for equation in graph.equations:
        for value in dict.fromkeys(equation.inputs):
            table.setdefault(value, []).append(equation)
    return {value: tuple(found) for value, found in table.items()}
