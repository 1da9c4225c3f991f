"""A graph as JSON and bytes, and back: the optimized graph of a program that is kept on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from poot_executor.compile.records import RecordError, Records
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Input, StatePair, TensorType, Value
from poot_executor.graph.keys import InputKey, StateKey, Storage
from poot_executor.graph.op_row import ParamKind
from poot_executor.graph.ops import op_named
from poot_executor.graph.verify import verify


def graph_record(graph: Graph, records: Records) -> tuple[dict[str, Any], bytes]:
    """The graph without the data of its computed inputs, and that data, one after another as numpy holds it."""
    types: dict[TensorType, int] = {}

    def value(v: Value) -> list[int]:
        return [v.id, types.setdefault(v.type, len(types))]

    inputs = [[*value(i.value), i.storage.value, records.encode(InputKey | None, i.key)] for i in graph.inputs]
    equations = [[e.op, [v.id for v in e.inputs], _encoded_params(e.params), *value(e.output)] for e in graph.equations]
    data = b"".join(i.data.tobytes() for i in graph.inputs if i.data is not None)
    record = {
        "name": graph.name,
        "inputs": inputs,
        "equations": equations,
        "outputs": [[name, v.id] for name, v in graph.outputs.items()],
        "state": [[records.encode(StateKey, p.key), p.before.id, p.after.id] for p in graph.state],
        "checks": [v.id for v in graph.checks],
        "types": [records.encode(TensorType, t) for t in types],
    }
    return record, data


def read_graph(record: Any, data: bytes, records: Records) -> Graph:
    """The graph, verified. Raises RecordError for what `graph_record` did not write, GraphError for an ill-formed
    graph."""
    try:
        return verify(_Reader(record, data, records).graph())
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"no graph: {error!r}") from error


class _Reader:
    def __init__(self, record: Any, data: bytes, records: Records) -> None:
        self.record, self.data, self.records = record, data, records
        self.types = [records.decode(TensorType, t) for t in record["types"]]
        self.values: dict[int, Value] = {}
        self.used = 0

    def graph(self) -> Graph:
        record, values = self.record, self.values
        inputs = tuple(self.input(*item) for item in record["inputs"])
        equations = tuple(self.equation(*item) for item in record["equations"])
        if self.used != len(self.data):
            raise RecordError("data of no input")
        state = tuple(
            StatePair(self.records.decode(StateKey, key), values[before], values[after])
            for key, before, after in record["state"]
        )
        outputs = {self.records.decode(str, name): values[v] for name, v in record["outputs"]}
        checks = tuple(values[v] for v in record["checks"])
        return Graph(inputs, equations, outputs, state, checks, self.records.decode(str, record["name"]))

    def value(self, number: int, type_: int) -> Value:
        if type(number) is not int or type(type_) is not int or type_ < 0:
            raise RecordError("a value is two numbers")
        made = self.values[number] = Value(number, self.types[type_])
        return made

    def input(self, number: int, type_: int, storage: str, key: Any) -> Input:
        value, kind = self.value(number, type_), Storage(storage)
        if kind is not Storage.COMPUTED:
            return Input(value, kind, self.records.decode(InputKey | None, key))
        nbytes = value.type.count * value.dtype.numpy.itemsize
        raw = self.data[self.used : self.used + nbytes]
        self.used += nbytes
        # Over bytes, so never writeable.
        return Input(value, kind, None, np.frombuffer(raw, value.dtype.numpy).reshape(value.shape))

    def equation(self, op: str, inputs: list[int], params: Any, number: int, type_: int) -> Equation:
        row = op_named(op)
        decoded = {name: _decoded_param(row.params[name], value) for name, value in params.items()}
        return Equation(op, tuple(self.values[v] for v in inputs), decoded, self.value(number, type_))


def _encoded_params(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.value if isinstance(value, DType) else list(value) if isinstance(value, tuple) else value
        for name, value in params.items()
    }


def _decoded_param(kind: ParamKind, value: Any) -> Any:
    if kind is ParamKind.INTS:
        return tuple(value)
    return DType(value) if kind is ParamKind.DTYPE else value
