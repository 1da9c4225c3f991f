"""A recording: models bound to memory, and what the host does between and behind them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from poot_executor.compile.program import Program
from poot_executor.device import Bindings, Buffer
from poot_executor.dtype import from_bytes, to_bytes
from poot_executor.errors import DeviceTimeout, KernelFault
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.graph.ops import OPS
from poot_executor.weights import WeightKey
from poot_npu.vpu.lowering import NO_FAULT
from poot_npu.vpu.memory import Memory, bytes_of, memory_of
from poot_npu.vpu.model import Interface, Lowered
from poot_npu.vpu.nodes import WORD_TYPES
from poot_npu.vpu.packed import shared
from poot_npu.vpu.plan import RowUpdate, WholeUpdate
from poot_npu.vpu.weights import Stored
from poot_npu.vpu.window import drop, fitted, put, sweep_of

Bytes = NDArray[np.uint8]
_ELEMENTS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
MILLISECONDS = 1000.0


@dataclass(frozen=True, slots=True, eq=False)
class BoundStage:
    """A model's request over its memory, where there is a model, and the host's part behind it."""

    request: Any
    faults: NDArray[np.int32]
    names: tuple[str, ...]
    host: tuple[Callable[[], None], ...]
    keep: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class VpuRecording:
    """One step over fixed memory. `touched` are the buffers that a replay reads or writes; `prepare` is what the host
    does before the first model."""

    stages: tuple[BoundStage, ...]
    prepare: tuple[Callable[[], None], ...]
    finish: tuple[Callable[[], None], ...]
    touched: frozenset[Buffer]

    def start(self) -> None:
        """Submit the first model; it returns at once."""
        for work in self.prepare:
            work()
        first = self.stages[0]
        if first.request is not None:
            first.request.start_async()

    def complete(self, timeout: float) -> None:
        """Wait for it, then do the rest. Raises KernelFault for an index that was out of range, DeviceTimeout."""
        deadline = monotonic() + timeout
        for number, stage in enumerate(self.stages):
            if stage.request is not None:
                if number:
                    stage.request.start_async()
                if not stage.request.wait_for(max(int((deadline - monotonic()) * MILLISECONDS), 1)):
                    raise DeviceTimeout("a step on OpenVINO", timeout)
            for name, place in zip(stage.names, stage.faults.tolist(), strict=True):
                if place != NO_FAULT:
                    raise KernelFault(name, place)
            for work in stage.host:
                work()
        for work in self.finish:
            work()

    def abandon(self) -> None:
        """Stop a submitted step at the next operation, and wait until nothing writes to its memory any more."""
        for stage in self.stages:
            if stage.request is not None:
                with contextlib.suppress(RuntimeError):  # that it was cancelled, or never started
                    stage.request.cancel()
                    stage.request.wait()


def bind(
    lowered: Lowered, faces: Sequence[Interface | None], compiled: Sequence[Any], program: Program, bindings: Bindings
) -> VpuRecording:
    """Requests of the compiled models over this memory."""
    homes = _Homes(lowered.graph, program, bindings)
    rows = homes.together([a.values.rows for a in lowered.attentions])
    stages = []
    for face, made, stage in zip(faces, compiled, lowered.plan.stages, strict=True):
        request, faults, names = None, np.empty(0, np.int32), ()
        keep: list[Any] = []
        if face is not None:
            request, names = made.create_infer_request(), face.faults
            faults = np.full(len(names), NO_FAULT, np.int32)
            keep = _bound(request, face, homes, faults)
        host = tuple(_host_step(lowered.graph, equation, homes) for equation in stage.host)
        stages.append(BoundStage(request, faults, names, host, tuple(keep)))
    finish = [*homes.outputs(), *_row_updates(lowered, homes), *homes.replaced(lowered)]
    prepare = [_dropped(lowered, bindings)]
    first = faces[0]
    if first is not None and first.windows:
        windows = BoundWindows(first, stages[0].request, rows, homes, lowered, bindings)
        prepare.append(windows.fit)
        finish.insert(0, windows.check)
    buffers = [*bindings.states.values(), bindings.inputs.buffer, bindings.outputs.buffer]
    return VpuRecording(tuple(stages), tuple(prepare), tuple(finish), frozenset(buffers))


class BoundWindows:
    """The windows of a recording's first model: made to fit before each step, and bound where they changed."""

    def __init__(
        self,
        model: Interface,
        request: Any,
        rows: tuple[NDArray[np.float32], ...],
        homes: _Homes,
        lowered: Lowered,
        bindings: Bindings,
    ) -> None:
        self._request = request
        self._uses = model.windows
        self._memories = [memory_of(bindings.states[use.key]) for use in model.windows]
        self._first = len(model.reads) + len(model.tables)
        self._bound: list[Any] = [None] * len(model.windows)
        self._tensors: list[Any] = [None] * (len(model.windows) + 1)
        self._sweep = sweep_of(lowered.graph, lowered.attentions, homes.slot)
        self._columns = np.arange(self._sweep.capacity, dtype=np.int32)
        self._length = 0
        self._rows = rows

    def fit(self) -> None:
        """Sweep as many positions as the step sees."""
        length, last = self._sweep.length()
        for place, (use, memory) in enumerate(zip(self._uses, self._memories, strict=True)):
            window = fitted(memory, use.heads, use.width, length, last)
            if self._bound[place] is not window:
                self._bound[place] = window
                self._bind(place, window.array)
        if length != self._length:
            self._length = length
            self._bind(len(self._uses), self._columns[:length])

    def check(self) -> None:
        """Remember where a state got what is not finite."""
        if not all(np.isfinite(rows).all() for rows in self._rows):
            for memory in self._memories:
                memory.finite = False

    def _bind(self, place: int, array: NDArray[Any]) -> None:
        self._tensors[place] = openvino.Tensor(array, shared_memory=True)
        self._request.set_input_tensor(self._first + place, self._tensors[place])


def _dropped(lowered: Lowered, bindings: Bindings) -> Callable[[], None]:
    """States that the program reads as they are: no window may be ahead of them."""
    windowed = {u.key for u in lowered.plan.updates if isinstance(u, RowUpdate) and u.windowed}
    memories = [memory_of(buffer) for key, buffer in bindings.states.items() if key not in windowed]

    def work() -> None:
        for memory in memories:
            if memory.window is not None:
                drop(memory)

    return work


def _bound(request: Any, model: Interface, homes: _Homes, faults: NDArray[np.int32]) -> list[Any]:
    keep: list[Any] = []
    for place, value in enumerate(model.reads):
        keep.append(homes.tensor(value))
        request.set_input_tensor(place, keep[-1])
    for place, key in enumerate(model.tables, len(model.reads)):
        keep.append(homes.table(key))
        request.set_input_tensor(place, keep[-1])
    for place, value in enumerate(model.writes):
        keep.append(homes.tensor(value))
        request.set_output_tensor(place, keep[-1])
    if model.faults:
        keep.append(openvino.Tensor(faults, shared_memory=True))
        request.set_output_tensor(len(model.writes), keep[-1])
    return keep


class _Homes:
    """Where each value lies between models: a slot, a state, a place of the output block, or memory of its own."""

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

    def outputs(self) -> list[Callable[[], None]]:
        """Results that lie elsewhere: what a step was given, before any state changes, and what is a result twice."""
        pairs = [(self.bytes(value), memory[: value.type.nbytes]) for value, memory in self._fields]
        return [_copy(source, target) for source, target in pairs if source.ctypes.data != target.ctypes.data]

    def replaced(self, lowered: Lowered) -> list[Callable[[], None]]:
        """States that are replaced as a whole: every new value is taken before the first is written, since one state
        may become what another was."""
        updates = [u for u in lowered.plan.updates if isinstance(u, WholeUpdate)]
        pairs = [(self.bytes(u.after), self.state(u.key, u.after.type.nbytes)) for u in updates]
        inputs = [self._graph.input(u.after) is not None for u in updates]

        def work() -> None:
            taken = [source.copy() if given else source for (source, _), given in zip(pairs, inputs, strict=True)]
            for source, (_, target) in zip(taken, pairs, strict=True):
                target[:] = source

        return [work] if pairs else []

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


def _copy(source: Bytes, target: Bytes) -> Callable[[], None]:
    def work() -> None:
        target[:] = source

    return work


def _host_step(graph: Graph, equation: Any, homes: _Homes) -> Callable[[], None]:
    """An equation by the op table's own rule."""
    row, out = OPS[equation.op], equation.output

    def source(value: Value) -> Callable[[], Any]:
        found = graph.definition(value)
        if isinstance(found, Input) and found.data is not None:
            return lambda: found.data
        memory = homes.bytes(value)
        return lambda: from_bytes(memory, value.dtype, value.shape)

    sources = [source(value) for value in equation.inputs]
    target = homes.bytes(out)

    def work() -> None:
        result = row.evaluate([read() for read in sources], equation.params, out.type)
        target[:] = np.frombuffer(to_bytes(result, out.dtype), np.uint8)

    return work


def _row_updates(lowered: Lowered, homes: _Homes) -> list[Callable[[], None]]:
    """States whose rows are replaced: those with one index together."""
    plain: dict[Value, list[tuple[Bytes, Bytes]]] = {}
    windowed: dict[Value, list[tuple[Memory, NDArray[np.float32]]]] = {}
    limits: dict[Value, int] = {}
    for update in lowered.plan.updates:
        if not isinstance(update, RowUpdate):
            continue
        type, rows = update.equation.output.type, update.rows
        new = homes.bytes(rows)
        limits[update.index] = min(type.shape[0], limits.get(update.index, type.shape[0]))
        if update.windowed:
            memory = homes.state_memory(update.key)
            windowed.setdefault(update.index, []).append((memory, new.view(np.float32).reshape(rows.shape)))
        else:
            state = homes.state(update.key, type.nbytes).reshape(type.shape[0], -1)
            plain.setdefault(update.index, []).append((_wide(state), _wide(new.reshape(rows.shape[0], -1))))
    return [
        _rows_written(homes.bytes(index), limit, plain.get(index, []), windowed.get(index, []))
        for index, limit in limits.items()
    ]


def _wide(rows: Bytes) -> NDArray[Any]:
    """Rows of bytes in larger elements, where they fill them."""
    return rows.view(np.uint64) if rows.shape[1] % 8 == 0 and rows.ctypes.data % 8 == 0 else rows


def _rows_written(
    index: Bytes,
    limit: int,
    plain: list[tuple[NDArray[Any], NDArray[Any]]],
    windowed: list[tuple[Memory, NDArray[np.float32]]],
) -> Callable[[], None]:
    places = index.view(np.int32)

    def work() -> None:
        wanted = places.tolist()
        beyond = [n for n, place in enumerate(wanted) if place >= limit]
        if beyond:
            raise KernelFault("scatter_update", beyond[0])
        for memory, rows in windowed:
            put(memory, wanted, rows)
        if len(wanted) == 1:
            place = wanted[0]
            if place >= 0:
                for state, new in plain:
                    state[place] = new[0]
        elif plain:
            kept = places >= 0
            at = places[kept]
            for state, new in plain:
                state[at] = new[kept]

    return work
