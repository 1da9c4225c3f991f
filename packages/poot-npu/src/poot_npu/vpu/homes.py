"""Where each value lies between models: a slot, a state, a place of the output block, or memory of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from poot_executor.compile.program import Program
from poot_executor.device import Bindings
from poot_executor.dtype import to_bytes
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.weights import WeightKey
from poot_npu.vpu.memory import Memory, bytes_of, memory_of
from poot_npu.vpu.nodes import WORD_TYPES
from poot_npu.vpu.packed import shared
from poot_npu.vpu.weights import Stored

Bytes = NDArray[np.uint8]
_ELEMENTS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class Homes:
    """Of one recording."""

    def __init__(self, graph: Graph, program: Program, bindings: Bindings) -> None:
        self._graph = graph
        self._bindings = bindings
        self._inputs, self._outputs = bytes_of(bindings.inputs), bytes_of(bindings.outputs)
        self._slots = {slot.key: slot.offset for slot in program.slots}
        self._fields: list[tuple[Value, Bytes]] = [
            (graph.outputs[field.name], self._outputs[field.offset :]) for field in program.outputs
        ] + [(value, self._outputs[at:]) for value, at in zip(graph.checks, program.checks, strict=True)]
        self._places: dict[Value, Bytes] = {}
        for value, memory in self._fields:
            if graph.input(value) is None:
                self._places.setdefault(value, memory[: value.type.nbytes])

    def bytes(self, value: Value) -> Bytes:
        """The memory of a value that is read."""
        if value not in self._places:
            self._places[value] = self._find(value)
        return self._places[value]

    def tensor(self, value: Value) -> Any:
        """A tensor over it."""
        memory = self.bytes(value).view(_ELEMENTS[value.dtype.size])
        return shared(memory, value.shape, WORD_TYPES[value.dtype])

    def table(self, key: WeightKey) -> Any:
        """A tensor over a weight's stored bytes, u8[rows, bytes a row]."""
        weight = self._weight(key)
        return shared(weight.data.reshape(-1), (weight.rows, weight.blocks * weight.format.nbytes), openvino.Type.u8)

    def _weight(self, key: WeightKey) -> Stored:
        weight = memory_of(self._bindings.weights[key]).weight
        assert isinstance(weight, Stored)
        return weight

    def state(self, key: StateKey, nbytes: int) -> Bytes:
        """A state's first bytes: a smaller entry sees the first rows of a longer buffer."""
        return memory_of(self._bindings.states[key]).data[:nbytes]

    def together(self, values: list[Value]) -> tuple[NDArray[np.float32], ...]:
        """The memory of f32 values. Those that a model computes lie one after another, in one array."""
        distinct = list(dict.fromkeys(values))
        ours = [value for value in distinct if value not in self._places and self._graph.input(value) is None]
        whole = np.zeros(sum(value.type.count for value in ours), np.float32)
        start = 0
        for value in ours:
            self._places[value] = whole[start : start + value.type.count].view(np.uint8)
            start += value.type.count
        return whole, *(self.bytes(value).view(np.float32) for value in distinct if value not in ours)

    def state_memory(self, key: StateKey) -> Memory:
        """A state's memory, with its window."""
        return memory_of(self._bindings.states[key])

    def slot(self, key: SlotKey) -> Bytes:
        """A slot's bytes and what follows them."""
        return self._inputs[self._slots[key] :]

    def copied(self) -> list[tuple[Bytes, Bytes]]:
        """(memory, place of the output block) of results that lie elsewhere: what a step was given, and what is a
        result twice."""
        pairs = [(self.bytes(value), memory[: value.type.nbytes]) for value, memory in self._fields]
        return [(source, target) for source, target in pairs if source.ctypes.data != target.ctypes.data]

    def _find(self, value: Value) -> Bytes:
        found = self._graph.definition(value)
        if isinstance(found, Input):
            if isinstance(found.key, SlotKey):
                at = self._slots[found.key]
                return self._inputs[at : at + value.type.nbytes]
            if isinstance(found.key, StateKey):
                return self.state(found.key, value.type.nbytes)
            if isinstance(found.key, WeightKey):
                return self._weight(found.key).data.reshape(-1)
            if found.data is not None:
                return np.frombuffer(to_bytes(found.data, value.dtype), np.uint8)
        return np.zeros(max(value.type.nbytes, 4), np.uint8)[: value.type.nbytes]
