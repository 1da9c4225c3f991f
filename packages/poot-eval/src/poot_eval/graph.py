"""The oracle: a primitive graph walked tensor by tensor in numpy, each operation by the rule of the
op table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType, from_bytes, round_bf16
from poot_executor.errors import BindError
from poot_executor.graph.graph import Graph, Input, TensorType, Value
from poot_executor.graph.keys import InputKey, StateKey, Storage
from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.ops import op_named
from poot_executor.weights import StoredTensor

Array = NDArray[Any]
Bound = Array | StoredTensor


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """How to compute. `precision`: sums, contractions and transcendentals in float64, or in float32
    as a device does. `order`: terms added one by one, so that results depend on no shape, or
    numpy's fast order for whole models. `environment`: keep every value."""

    precision: Literal["f64", "f32"] = "f64"
    order: Literal["ascending", "blas"] = "ascending"
    environment: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What a step gives: named outputs, the state after it, and its checks (-1, or the first
    offending index), all as numpy holds them. `environment` has every value, if asked for, inputs
    too; else it is empty."""

    outputs: Mapping[str, Array]
    state: Mapping[StateKey, Array]
    checks: tuple[int, ...]
    environment: Mapping[Value, Array]


def eval(  # the name that the design gives the oracle
    graph: Graph, inputs: Mapping[InputKey, Bound], options: EvalOptions | None = None
) -> Evaluation:
    """Evaluate a graph. `inputs` binds every CONST, SLOT and STATE input by its key: an array as
    numpy holds its type, or a stored tensor, whose bytes are read as that type.

    Raises BindError for an input that is missing, unknown or of another type, and GraphError for
    what is a fault on a device (an index out of range).
    """
    options = options or EvalOptions()
    how = Arithmetic(options.precision, options.order)
    values = bind(graph, inputs)
    last_use = {} if options.environment else _last_uses(graph)
    for place, equation in enumerate(graph.equations):
        operands = [values[v] for v in equation.inputs]
        out = equation.output
        result = op_named(equation.op).evaluate(operands, equation.params, out.type, how)
        assert result.shape == out.shape and result.dtype == out.dtype.numpy, (
            f"{equation.op}: {result.dtype}{result.shape}"
        )
        values[out] = result
        for value in last_use.get(place, ()):
            del values[value]
    return Evaluation(
        MappingProxyType({name: np.array(values[v]) for name, v in graph.outputs.items()}),
        MappingProxyType({pair.key: np.array(values[pair.after]) for pair in graph.state}),
        tuple(int(values[v]) for v in graph.checks),
        MappingProxyType(values if options.environment else {}),
    )


def bind(graph: Graph, inputs: Mapping[InputKey, Bound]) -> dict[Value, Array]:
    """The value of every input of a graph. Raises BindError as `eval` does."""
    known = {i.key for i in graph.inputs if i.key is not None}
    for key in inputs:
        if key not in known:
            raise BindError(f"{graph.name} has no input {key}")
    return {i.value: _bound(graph, i, inputs) for i in graph.inputs}


def _bound(graph: Graph, entry: Input, inputs: Mapping[InputKey, Bound]) -> Array:
    type = entry.value.type
    if entry.storage is Storage.COMPUTED:
        assert entry.data is not None
        return entry.data
    what = f"{graph.name}: input {entry.key}"
    if entry.key not in inputs:
        raise BindError(f"{what} of type {type} is missing")
    given = inputs[entry.key]
    array = _stored(what, type, given) if isinstance(given, StoredTensor) else np.asarray(given)
    if array.shape != type.shape or array.dtype != type.dtype.numpy:
        got = f"{array.dtype}{list(array.shape)}"
        raise BindError(f"{what} is {type}, held as {type.dtype.numpy}, not {got}")
    if type.dtype is DType.BF16 and not np.array_equal(round_bf16(array).ravel(), array.ravel(), equal_nan=True):
        raise BindError(f"{what} is {type} and holds values that are not bf16: round them")
    return array


def _stored(what: str, type: TensorType, stored: StoredTensor) -> Array:
    data = np.ascontiguousarray(stored.data).reshape(-1).view(np.uint8)
    packed = stored.format.is_packed
    if data.size != type.nbytes or not (packed or stored.format.dtype is type.dtype):
        has = f"{stored.format.name}{list(stored.shape)}"
        raise BindError(f"{what} is {type}, and tensor {stored.name} is {has}")
    return from_bytes(data, type.dtype, type.shape)


def _last_uses(graph: Graph) -> dict[int, list[Value]]:
    """For each equation, the values that nothing needs after it."""
    kept = set(graph.roots())
    seen: set[Value] = set()
    uses: dict[int, list[Value]] = {}
    for place in range(len(graph.equations) - 1, -1, -1):
        equation = graph.equations[place]
        for value in dict.fromkeys((equation.output, *equation.inputs)):
            if value not in seen and value not in kept:
                seen.add(value)
                uses.setdefault(place, []).append(value)
    return uses
