"""The verifier: what holds for every graph. It runs when a graph is built and, in tests, after
every pass.
"""

from __future__ import annotations

import numpy as np

from poot_executor.dtype import I32
from poot_executor.errors import GraphError
from poot_executor.graph.graph import Graph, Input, TensorType, Value
from poot_executor.graph.keys import SlotKey, StateKey, Storage
from poot_executor.graph.ops import op_named
from poot_executor.graph.show import show_equation
from poot_executor.weights import WeightKey

_KEYS = {Storage.CONST: WeightKey, Storage.SLOT: SlotKey, Storage.STATE: StateKey}


def verify(graph: Graph) -> Graph:
    """Return the graph, or raise GraphError for the first thing wrong with it.

    Inputs have a key of their storage's kind, unique in the graph, or data of their type. Every
    value is defined once and before its use, types are what the op table infers, state pairs match
    the state inputs one to one with equal types, checks are i32[], and outputs, next states and
    checks are values of this graph.
    """
    defined: dict[int, Value] = {}
    keys: set[object] = set()
    for item in graph.inputs:
        _define(defined, item.value)
        _check_input(item)
        if item.key is not None:
            if item.key in keys:
                raise GraphError(f"two inputs have the key {item.key}")
            keys.add(item.key)
    for equation in graph.equations:
        for value in equation.inputs:
            if defined.get(value.id) != value:  # The text of an equation is made for a message alone.
                _use(defined, value, show_equation(equation))
        inferred = op_named(equation.op).infer([v.type for v in equation.inputs], equation.params)
        if inferred != equation.output.type:
            raise GraphError(f"{show_equation(equation)}: the result's type is {inferred}")
        _define(defined, equation.output)
    _check_state(graph, defined)
    for name, value in graph.outputs.items():
        _use(defined, value, f"output {name}")
    for value in graph.checks:
        _use(defined, value, f"check {value}")
        if value.type != TensorType((), I32):
            raise GraphError(f"check {value} is {value.type}, not i32[]")
    return graph


def _define(defined: dict[int, Value], value: Value) -> None:
    if value.id in defined:
        raise GraphError(f"{value} is defined twice")
    if any(d < 1 for d in value.shape):
        raise GraphError(f"{value} is {value.type}: a dimension is below 1")
    defined[value.id] = value


def _use(defined: dict[int, Value], value: Value, where: str) -> None:
    if defined.get(value.id) != value:
        raise GraphError(f"{where}: {value} of type {value.type} is not defined before")


def _check_input(item: Input) -> None:
    value = item.value
    if item.storage is Storage.COMPUTED:
        if item.data is None or item.key is not None:
            raise GraphError(f"{value} is computed: it has data and no key")
        if item.data.shape != value.shape or item.data.dtype != value.dtype.numpy:
            held = f"{item.data.dtype}{list(item.data.shape)}"
            raise GraphError(f"{value} is {value.type} but its data is {held}")
        if not isinstance(item.data, np.ndarray) or item.data.flags.writeable:
            raise GraphError(f"the data of {value} is writeable: a graph is immutable")
        return
    expected = _KEYS.get(item.storage)
    if expected is None:
        raise GraphError(f"{value}: no input has storage {item.storage.value}")
    if not isinstance(item.key, expected) or item.data is not None:
        raise GraphError(f"{value} is {item.storage.value}: it has a {expected.__name__} and no data")


def _check_state(graph: Graph, defined: dict[int, Value]) -> None:
    inputs = {i.key: i.value for i in graph.inputs if i.storage is Storage.STATE}
    for pair in graph.state:
        if inputs.pop(pair.key, None) != pair.before:
            raise GraphError(f"state {pair.key} has two pairs, or {pair.before} is not its input")
        _use(defined, pair.after, f"state {pair.key}")
        if pair.after.type != pair.before.type:
            before, after = pair.before.type, pair.after.type
            raise GraphError(f"state {pair.key} is {before} before the step and {after} after it")
    if inputs:
        raise GraphError(f"state {', '.join(map(str, inputs))} has no pair")
