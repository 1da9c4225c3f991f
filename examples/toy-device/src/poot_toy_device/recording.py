"""Lowering: a program's graph, walked once, becomes a list of functions over the memory it is bound to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.program import Program
from poot_executor.device import Bindings, BufferSlice
from poot_executor.dtype import from_bytes, to_bytes
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.weights import WeightKey
from poot_toy_device.operations import TABLE

Array = NDArray[Any]
Memory = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An equation: `run` of the values `operands` gives the value `output`; `dead` are not needed after it."""

    run: Callable[..., Array]
    operands: tuple[Value, ...]
    output: Value
    dead: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ToyRecording:
    """`reads` fetch the inputs, `steps` compute, `writes` say where results and next states go."""

    reads: tuple[tuple[Value, Callable[[], Array]], ...]
    steps: tuple[Step, ...]
    writes: tuple[tuple[Value, Memory], ...]

    def run(self, tick: Callable[[], None]) -> None:
        """One replay; `tick` is called after every equation. Memory changes at the end alone, if nothing raises."""
        values = {value: read() for value, read in self.reads}
        for step in self.steps:
            values[step.output] = step.run(*(values[v] for v in step.operands))
            for value in step.dead:
                del values[value]
            tick()
        # Every result is encoded before the first is written: the value of a state may be a view of its memory.
        encoded = [(memory, to_bytes(values[value], value.dtype)) for value, memory in self.writes]
        for memory, data in encoded:
            memory[: len(data)] = np.frombuffer(data, np.uint8)


def record(program: Program, bindings: Bindings) -> ToyRecording:
    """A recording over exactly this memory, which the engine keeps in place for as long as the recording lives."""
    graph = program.graph
    slots = {slot.key: slot.offset for slot in program.slots}
    inputs, outputs = memory_of(bindings.inputs), memory_of(bindings.outputs)

    def reader(entry: Input) -> Callable[[], Array]:
        type, key = entry.value.type, entry.key
        if isinstance(key, WeightKey):
            memory = bindings.weights[key].handle
        elif isinstance(key, StateKey):
            memory = bindings.states[key].handle
        elif isinstance(key, SlotKey):
            memory = inputs[slots[key] :]
        else:  # a constant of the compiler's, which brings its data
            data = entry.data
            assert data is not None
            return lambda: data
        memory = memory[: type.nbytes]  # a state's buffer may be longer: a smaller entry sees its first rows
        return lambda: from_bytes(memory, type.dtype, type.shape)

    steps = [
        Step(TABLE[e.op](e.params, [v.type for v in e.inputs], e.output.type), e.inputs, e.output, dead)
        for e, dead in zip(graph.equations, last_uses(graph), strict=True)
    ]
    writes = [(graph.outputs[field.name], outputs[field.offset :]) for field in program.outputs]
    writes += [(value, outputs[offset:]) for value, offset in zip(graph.checks, program.checks, strict=True)]
    writes += [(pair.after, bindings.states[pair.key].handle) for pair in graph.state]
    return ToyRecording(tuple((i.value, reader(i)) for i in graph.inputs), tuple(steps), tuple(writes))


def last_uses(graph: Graph) -> list[tuple[Value, ...]]:
    """The values that nothing needs after each equation: a decoded weight is gone before the next is decoded."""
    needed = set(graph.roots())
    dead: list[tuple[Value, ...]] = []
    for equation in reversed(graph.equations):
        values = dict.fromkeys((equation.output, *equation.inputs))
        dead.append(tuple(v for v in values if v not in needed))
        needed.update(values)
    return dead[::-1]


def memory_of(piece: BufferSlice) -> Memory:
    """The bytes of a slice, which must lie within its buffer."""
    memory: Memory = piece.buffer.handle[piece.offset : piece.offset + piece.nbytes]
    assert len(memory) == piece.nbytes, f"{piece.nbytes} bytes at {piece.offset} leave {piece.buffer.nbytes}"
    return memory
