"""A lowered step: stages over the memory that it is bound to. The host's part is evaluated by the op table's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.program import Program
from poot_executor.device import Bindings, Buffer, BufferSlice, Recording
from poot_executor.dtype import DType, from_bytes, to_bytes
from poot_executor.errors import DeviceTimeout, GraphError, KernelFault
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.graph.numerics import Arithmetic, to_dtype
from poot_executor.graph.op_row import OpKind
from poot_executor.graph.ops import OPS
from poot_executor.weights import WeightKey
from poot_npu.xdna.plan import Plan, Stage, Work, chain, contraction_shape, plan
from poot_npu.xdna.runtime import Loaded, Runtime

Array = NDArray[Any]
SUMS = Arithmetic("f32", "blas")
"""Reductions and contractions on the host: as numpy does them in float32."""
OTHERS = Arithmetic("f64", "blas")
"""Elementwise functions on the host: numpy's exp and its like are not exact enough in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A contraction on the NPU: `given` is its step operand, `result` what it gives."""

    loaded: Loaded
    given: Value
    result: Value
    activations: Any
    results: Any

    def put(self, runtime: Runtime, values: Mapping[Value, Array]) -> None:
        """Hand the operand over, rounded to the kernel's dtype."""
        runtime.put(self.activations, encoded(values[self.given], self.loaded.contraction.activations))

    def take(self, runtime: Runtime) -> Array:
        """The result in the graph's dtype."""
        type, dtype = self.result.type, self.loaded.contraction.results
        data = runtime.take(self.results, type.count * dtype.size)
        return to_dtype(from_bytes(data, dtype, type.shape), type.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Contractions that run as one run list."""

    calls: tuple[Call, ...]
    runlist: Any
    runs: tuple[Any, ...]
    dead: tuple[Value, ...]


@dataclass(slots=True, eq=False)
class XdnaRecording(Recording):
    """`reads` fetch the inputs, `stages` compute, `writes` say where results and next states go. `nbytes` is what its
    operands take on the NPU, and `weights` what it uses of the device's."""

    runtime: Runtime
    reads: tuple[tuple[Value, Callable[[], Array]], ...]
    stages: tuple[tuple[Work, ...] | Batch, ...]
    writes: tuple[tuple[Value, NDArray[np.uint8]], ...]
    nbytes: int
    released: bool = False

    @property
    def batches(self) -> int:
        """Run lists of a replay."""
        return sum(isinstance(stage, Batch) for stage in self.stages)

    def run(self, seconds: float) -> None:
        """One replay. Memory changes at its end alone, if nothing raises. Raises KernelFault, DeviceTimeout or
        DeviceLost."""
        end = monotonic() + seconds
        values = {value: read() for value, read in self.reads}
        for stage in self.stages:
            if isinstance(stage, Batch):
                self._run_batch(stage, values, max(end - monotonic(), 1e-3))
            else:
                for work in stage:
                    values[work.equation.output] = evaluated(work.equation, values)
                    for value in work.dead:
                        values.pop(value, None)
            if monotonic() > end:
                raise DeviceTimeout("a replay on xdna", seconds)
        # Every result is encoded before the first is written: the value of a state may be a view of its memory.
        written = [(memory, to_bytes(values[value], value.dtype)) for value, memory in self.writes]
        for memory, data in written:
            memory[: len(data)] = np.frombuffer(data, np.uint8)

    def _run_batch(self, batch: Batch, values: dict[Value, Array], seconds: float) -> None:
        for call in batch.calls:
            call.put(self.runtime, values)
        self.runtime.execute(batch.runlist, batch.runs, seconds)
        for call in batch.calls:
            values[call.result] = call.take(self.runtime)
        for value in batch.dead:
            values.pop(value, None)


class Lowering:
    """Makes recordings. Weights on the NPU are shared by all of them: they are kept by what they are computed from."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._weights: dict[Any, tuple[Any, int, frozenset[Buffer]]] = {}

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on the NPU, beside the stored ones."""
        return sum(nbytes for _, nbytes, _ in self._weights.values())

    def forget(self, buffer: Buffer) -> None:
        """Give back what was computed from a stored weight."""
        self._weights = {key: held for key, held in self._weights.items() if buffer not in held[2]}

    def record(self, program: Program, bindings: Bindings) -> XdnaRecording:
        """A recording over exactly this memory. All or nothing. Raises OutOfMemory or DeviceLost."""
        graph = program.graph
        readers = {entry.value: _reader(entry, program, bindings) for entry in graph.inputs}
        planned = plan(graph, lambda shape: self._runtime.covers(shape) is not None)
        before = dict(self._weights)
        try:
            stages = [self._stage(stage, planned, graph, readers, bindings) for stage in planned.stages]
        except BaseException:
            self._weights = before
            raise
        outputs = memory_of(bindings.outputs)
        writes = [(graph.outputs[field.name], outputs[field.offset :]) for field in program.outputs]
        writes += [(value, outputs[offset:]) for value, offset in zip(graph.checks, program.checks, strict=True)]
        writes += [(pair.after, bindings.states[pair.key].handle) for pair in graph.state]
        nbytes = sum(_operand_bytes(call) for stage in stages if isinstance(stage, Batch) for call in stage.calls)
        return XdnaRecording(self._runtime, tuple(readers.items()), tuple(stages), tuple(writes), nbytes)

    def _stage(
        self,
        stage: Stage,
        planned: Plan,
        graph: Graph,
        readers: Mapping[Value, Callable[[], Array]],
        bindings: Bindings,
    ) -> tuple[Work, ...] | Batch:
        if not stage.on_npu:
            return stage.works
        calls, prepared = [], []
        for work in stage.works:
            shape = contraction_shape(work.equation, planned.fixed)
            assert shape is not None
            loaded = self._runtime.covers(shape)
            assert loaded is not None
            given, weight = work.equation.inputs
            tokens, inner, outputs = shape
            contraction = loaded.contraction
            activations = self._runtime.buffer(loaded, "activations", tokens * inner * contraction.activations.size)
            results = self._runtime.buffer(loaded, "results", tokens * outputs * contraction.results.size)
            weights = self._weight(loaded, weight, graph, readers, bindings)
            calls.append(Call(loaded, given, work.equation.output, activations, results))
            prepared.append((loaded, {"activations": activations, "weights": weights, "results": results}))
        runlist, runs = self._runtime.record(prepared)
        return Batch(tuple(calls), runlist, tuple(runs), tuple(value for work in stage.works for value in work.dead))

    def _weight(
        self,
        loaded: Loaded,
        value: Value,
        graph: Graph,
        readers: Mapping[Value, Callable[[], Array]],
        bindings: Bindings,
    ) -> Any:
        """A contraction's weights on the NPU, in its dtype and order."""
        makers = {equation.output: equation for equation in graph.equations}
        equations = chain(value, makers, set(readers))
        sources = [v for v in dict.fromkeys(v for e in equations for v in e.inputs) if v in readers] or [value]
        key, stored = _identity(loaded, value, equations, sources, graph, bindings)
        if key not in self._weights:
            values = {source: readers[source]() for source in sources}
            for equation in equations:
                values[equation.output] = evaluated(equation, values)
            matrix = values[value].T if loaded.contraction.transposed else values[value]
            data = encoded(matrix, loaded.contraction.weights)
            buffer = self._runtime.buffer(loaded, "weights", len(data))
            self._runtime.put(buffer, data)
            self._weights[key] = (buffer, len(data), stored)
        return self._weights[key][0]


def _identity(
    loaded: Loaded,
    value: Value,
    equations: Sequence[Equation],
    sources: Sequence[Value],
    graph: Graph,
    bindings: Bindings,
) -> tuple[Any, frozenset[Buffer]]:
    """What a weight on the NPU is computed from, equal for equal ones of any program; and the stored weights in it."""
    inputs = {entry.value: entry for entry in graph.inputs}
    number = {source: place for place, source in enumerate(sources)}
    leaves: list[Any] = []
    stored: set[Buffer] = set()
    for source in sources:
        entry = inputs[source]
        if isinstance(entry.key, WeightKey):
            buffer = bindings.weights[entry.key]
            stored.add(buffer)
            leaves.append((buffer, source.type))
        else:
            assert entry.data is not None
            leaves.append((entry.data.tobytes(), source.type))
    steps = []
    for equation in equations:
        steps.append((equation.op, tuple(equation.params.items()), tuple(number[v] for v in equation.inputs)))
        number[equation.output] = len(number)
    contraction = loaded.contraction
    # Which memory a buffer lies in is up to the kernel, so another kernel has its own.
    kind = (contraction.kernel, contraction.order, contraction.weights, contraction.transposed)
    return (kind, tuple(leaves), tuple(steps), number[value]), frozenset(stored)


def evaluated(equation: Equation, values: Mapping[Value, Array]) -> Array:
    """An equation's result on the host. Raises KernelFault for what is a fault on a device."""
    row = OPS[equation.op]
    arithmetic = SUMS if row.kind in (OpKind.CONTRACTION, OpKind.REDUCTION) else OTHERS
    operands = [values[value] for value in equation.inputs]
    try:
        return row.evaluate(operands, equation.params, equation.output.type, arithmetic)
    except GraphError as error:
        fault = KernelFault(equation.op, 0)
        fault.add_note(str(error))
        raise fault from error


def encoded(x: Array, dtype: DType) -> bytes:
    """Row-major bytes, rounded to a float dtype."""
    return bytes(to_bytes(np.ascontiguousarray(to_dtype(x, dtype)), dtype))


def memory_of(piece: BufferSlice) -> NDArray[np.uint8]:
    """The bytes of a slice, which must lie within its buffer."""
    memory: NDArray[np.uint8] = piece.buffer.handle[piece.offset : piece.offset + piece.nbytes]
    assert len(memory) == piece.nbytes, f"{piece.nbytes} bytes at {piece.offset} leave {piece.buffer.nbytes}"
    return memory


def _operand_bytes(call: Call) -> int:
    contraction = call.loaded.contraction
    return call.given.type.count * contraction.activations.size + call.result.type.count * contraction.results.size


def _reader(entry: Input, program: Program, bindings: Bindings) -> Callable[[], Array]:
    """What fetches an input from where it is bound."""
    type, key = entry.value.type, entry.key
    if isinstance(key, WeightKey):
        memory = bindings.weights[key].handle
    elif isinstance(key, StateKey):
        memory = bindings.states[key].handle
    elif isinstance(key, SlotKey):
        offset = next(slot.offset for slot in program.slots if slot.key == key)
        memory = memory_of(bindings.inputs)[offset:]
    else:  # a constant of the compiler's, which brings its data
        data = entry.data
        assert data is not None
        return lambda: data
    memory = memory[: type.nbytes]  # a state's buffer may be longer: a smaller entry sees its first rows
    return lambda: from_bytes(memory, type.dtype, type.shape)
