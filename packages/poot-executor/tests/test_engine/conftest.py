"""A runtime with faults, a device over it, and programs by hand: what the engine's tests run on.

`FakeRuntime` stands where a vendor's driver library stands: memory, graphs, a queue, status codes.
It computes for real (numpy), later than it is asked to, and fails where it is told to. `FakeDevice`
is a device as any other: it maps status codes to poot's errors and knows nothing of the engine.
"""

import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poot_executor.compile.program import OutputField, Program, SlotField, StateUse, WeightUse
from poot_executor.compile.target import Caps, Granularity, Target
from poot_executor.device import Buffer, BufferKind, Device, MemoryInfo
from poot_executor.dtype import F32, I32, U8, from_bytes, to_bytes
from poot_executor.engine import Engine
from poot_executor.errors import (
    DeviceLost,
    DeviceTimeout,
    KernelFault,
    OutOfMemory,
    Poisoned,
    WeightError,
)
from poot_executor.formats import FORMATS
from poot_executor.graph.graph import Equation, Graph, Input, StatePair, TensorType, Value
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey, Storage
from poot_executor.layout import layout_for
from poot_executor.weights import StoredTensor, WeightKey

DRIVER_CALLS = (
    "malloc", "free", "copy_in", "copy_out", "create_graph", "destroy_graph", "launch", "wait",
)  # fmt: skip


class RuntimeStatus(Exception):
    """A status code of the runtime: LOST, TIMEOUT, MEMORY, BUSY, INVALID."""


@dataclass
class FakeRuntime:
    """Work is queued by `launch` and done by `wait` or by a copy, in order.

    `fail(status, after=n, only=names)` makes the call after the next n raise that status; LOST and
    TIMEOUT stick. `waits_for_one` waits for the oldest launch, otherwise for all. `calls` counts
    every call that reached the runtime.
    """

    waits_for_one: bool = False
    limit: int = 1 << 40
    wait_seconds: float = 0.0
    calls: Counter = field(default_factory=Counter)
    memory: dict[int, np.ndarray] = field(default_factory=dict)
    graphs: dict[int, tuple[Callable[[], Any], frozenset[int]]] = field(default_factory=dict)
    queue: deque = field(default_factory=deque)
    results: deque = field(default_factory=deque)
    faults: list = field(default_factory=list)
    dead: str | None = None
    interrupt: bool = False
    next_id: int = 1

    def fail(self, status, *, after=0, only=DRIVER_CALLS):
        self.faults.append([after, status, only])

    @property
    def total(self):
        return sum(self.calls.values())

    def _enter(self, name):
        self.calls[name] += 1
        if self.dead:
            raise RuntimeStatus(self.dead)
        for fault in self.faults:
            if name in fault[2]:
                if fault[0] == 0:
                    self.faults.remove(fault)
                    self.dead = fault[1] if fault[1] in ("LOST", "TIMEOUT") else None
                    raise RuntimeStatus(fault[1])
                fault[0] -= 1

    def _new_id(self):
        self.next_id += 1
        return self.next_id

    @property
    def used(self):
        return sum(block.nbytes for block in self.memory.values())

    def malloc(self, nbytes):
        self._enter("malloc")
        if self.used + nbytes > self.limit:
            raise RuntimeStatus("MEMORY")
        address = self._new_id()
        self.memory[address] = np.zeros(nbytes, np.uint8)
        return address

    def free(self, address):
        self._enter("free")
        busy = any(address in self.graphs[graph][1] for graph in self.queue)
        held = any(address in addresses for _, addresses in self.graphs.values())
        if address not in self.memory or busy or held:
            raise RuntimeStatus("INVALID")
        del self.memory[address]

    def copy_in(self, address, data, offset):
        self._enter("copy_in")
        self._run(len(self.queue))
        assert offset + len(data) <= self.memory[address].nbytes
        self.memory[address][offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def copy_out(self, address, nbytes):
        self._enter("copy_out")
        self._run(len(self.queue))
        return self.memory[address][:nbytes].tobytes()

    def create_graph(self, work, addresses):
        self._enter("create_graph")
        graph = self._new_id()
        self.graphs[graph] = (work, frozenset(addresses))
        return graph

    def destroy_graph(self, graph):
        self._enter("destroy_graph")
        if graph not in self.graphs or graph in self.queue:
            raise RuntimeStatus("INVALID")
        del self.graphs[graph]

    def launch(self, graph):
        self._enter("launch")
        self.queue.append(graph)

    def wait(self):
        """The fault (kernel, code) of what was waited for, or None."""
        self._enter("wait")
        if self.interrupt:
            self.interrupt = False
            signal.raise_signal(signal.SIGINT)
        time.sleep(self.wait_seconds)
        if not self.waits_for_one:
            self._run(len(self.queue))
            faults = [fault for fault in self.results if fault]
            self.results.clear()
            return faults[0] if faults else None
        if not self.results:
            self._run(min(1, len(self.queue)))
        return self.results.popleft() if self.results else None

    def _run(self, count):
        for _ in range(count):
            work, _ = self.graphs[self.queue.popleft()]
            self.results.append(work())


class FakeDevice(Device):
    """A whole-graph device over the runtime, for the equations add, mul and i32 div."""

    def __init__(self, runtime, target, seconds=None):
        self.runtime = runtime
        self._target = target
        self.seconds = seconds
        self.poison = None
        self.refused = 0
        self._used = dict.fromkeys(BufferKind, 0)

    @property
    def target(self):
        return self._target

    def _call(self, name, *args):
        if self.poison:
            self.refused += 1
            raise Poisoned(f"poisoned: {self.poison}")
        try:
            return getattr(self.runtime, name)(*args)
        except RuntimeStatus as status:
            code = str(status)
            if code == "LOST":
                self.poison = code
                raise DeviceLost(f"{name}: the device is lost") from status
            if code == "TIMEOUT":
                self.poison = code
                raise DeviceTimeout(name, 600.0) from status
            if code == "MEMORY":
                asked = args[0] if name == "malloc" else 0
                raise OutOfMemory(asked, None, self.runtime.limit) from status
            raise RuntimeError(f"{name}: {code}") from status

    def allocate(self, kind, nbytes):
        handle = self._call("malloc", nbytes)
        self._used[kind] += nbytes
        return Buffer(kind, nbytes, handle)

    def free(self, buffer):
        if buffer.handle is None:
            return
        self._call("free", buffer.handle)
        self._used[buffer.kind] -= buffer.nbytes
        buffer.handle = None

    def upload(self, use, stored):
        words = use.layout.reorder(np.asarray(stored.data)).tobytes()
        buffer = self.allocate(BufferKind.WEIGHT, len(words))
        try:
            self._call("copy_in", buffer.handle, words, 0)
        except OutOfMemory:
            self.free(buffer)
            raise
        return buffer

    def lower(self, program, bindings):
        spaces = [bindings.inputs, bindings.outputs, bindings.constants, bindings.arena]
        buffers = [space.buffer for space in spaces if space is not None]
        buffers += [*bindings.weights.values(), *bindings.states.values()]
        work = _interpreter(self.runtime.memory, program, bindings)
        return self._call("create_graph", work, [buffer.handle for buffer in buffers])

    def replay(self, recording):
        self._call("launch", recording)

    def synchronize(self):
        fault = self._call("wait")
        if fault is not None:
            if self._target.caps.traps:
                self.poison = "a trap"
            raise KernelFault(*fault)

    def write(self, buffer, data, offset=0):
        self._call("copy_in", buffer.handle, bytes(data), offset)

    def read(self, buffer, out, offset=0):
        out[:] = np.frombuffer(self._call("copy_out", buffer.handle, len(out)), np.uint8)

    def memory(self):
        return MemoryInfo(dict(self._used), None, self.runtime.limit)

    def device_time(self):
        return self.seconds

    def release(self, recording):
        self._call("destroy_graph", recording)

    def close(self):
        self.runtime.queue.clear()


def _interpreter(memory, program, bindings):
    """A closure that runs the graph over the runtime's memory: a fault (kernel, code) or None."""

    def load(space, offset, type):
        block = memory[space.buffer.handle][space.offset + offset :][: type.nbytes]
        return from_bytes(block.tobytes(), type.dtype, type.shape)

    def store(space, offset, type, value):
        block = memory[space.buffer.handle][space.offset + offset :][: type.nbytes]
        block[:] = np.frombuffer(to_bytes(value, type.dtype), np.uint8)

    def whole(buffer):
        return SimpleNamespace(buffer=buffer, offset=0)

    def run():
        graph = program.graph
        offsets = {slot.key: slot.offset for slot in program.slots}
        values = {}
        if bindings.arena is not None:  # what lies in the arena never outlives a step
            memory[bindings.arena.buffer.handle][:] = 0xA5
        for given in graph.inputs:
            value = given.value
            if given.storage is Storage.SLOT:
                values[value] = load(bindings.inputs, offsets[given.key], value.type)
            elif given.storage is Storage.STATE:
                values[value] = load(whole(bindings.states[given.key]), 0, value.type)
            else:
                values[value] = load(whole(bindings.weights[given.key]), 0, value.type)
        for equation in graph.equations:
            a, b = (values[value] for value in equation.inputs)
            if equation.op == "div" and b == 0:
                return ("divide", 7)
            rule = {"add": np.add, "mul": np.multiply, "div": np.floor_divide}[equation.op]
            values[equation.output] = rule(a, b)
        for pair in graph.state:
            store(whole(bindings.states[pair.key]), 0, pair.after.type, values[pair.after])
        for out in program.outputs:
            store(bindings.outputs, out.offset, out.type, values[graph.outputs[out.name]])
        for check, offset in zip(graph.checks, program.checks, strict=True):
            store(bindings.outputs, offset, check.type, values[check])
        return None

    return run


class Store:
    """A weight store over host arrays."""

    def __init__(self, **tensors):
        self._tensors = tensors

    def names(self):
        return tuple(self._tensors)

    def tensor(self, name):
        if name not in self._tensors:
            raise WeightError(f"no tensor {name}")
        return self._tensors[name]


def stored(name, format, shape, data):
    raw = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
    return StoredTensor(name, FORMATS[format], shape, raw)


def key(tag):
    return SlotKey(SlotKind.INPUT, tag)


class ProgramMaker:
    """Builds a program by hand: slots, weights and states in; named values out."""

    def __init__(self, target):
        self.target = target
        self._values = 0
        self._inputs = []
        self._equations = []
        self._slots = []
        self._weights = []
        self._states = []
        self._pairs = []
        self._input_bytes = 0

    def value(self, shape, dtype):
        self._values += 1
        return Value(self._values, TensorType(shape, dtype))

    def slot(self, name, shape, dtype):
        value = self.value(shape, dtype)
        self._inputs.append(Input(value, Storage.SLOT, name))
        self._slots.append(SlotField(name, value.type, self._input_bytes))
        self._input_bytes += -(-value.type.nbytes // 16) * 16
        return value

    def weight(self, role, shape, format="f32", stored_shape=None, tile_rows=1):
        layout = layout_for(
            FORMATS[format],
            stored_shape or shape,
            tile_rows=tile_rows,
            max_bytes=None,
            alignment=16,
        )
        value = self.value(shape, FORMATS[format].dtype or U8)
        self._inputs.append(Input(value, Storage.CONST, role))
        self._weights.append(WeightUse(role, value.type, layout))
        return value

    def state(self, name, shape, dtype):
        value = self.value(shape, dtype)
        self._inputs.append(Input(value, Storage.STATE, name))
        self._states.append(StateUse(name, value.type))
        return value

    def apply(self, op, a, b):
        out = self.value(a.shape, a.dtype)
        self._equations.append(Equation(op, (a, b), {}, out))
        return out

    def keep(self, name, before, after):
        self._pairs.append(StatePair(name, before, after))

    def build(self, outputs, checks=(), arena_bytes=0, constants=b""):
        at = 0
        fields, packet = [], []
        for check in checks:
            packet.append(at)
            at += check.type.nbytes
        for name, value in outputs.items():
            at = -(-at // 16) * 16
            fields.append(OutputField(name, value.type, at))
            at += value.type.nbytes
        graph = Graph(tuple(self._inputs), tuple(self._equations), outputs, tuple(self._pairs), tuple(checks))
        return Program(
            graph, self.target, (), tuple(self._weights), tuple(self._states), tuple(self._slots),
            self._input_bytes, tuple(fields), tuple(packet), at, constants, arena_bytes, arena_bytes,
        )  # fmt: skip


W, TIED = WeightKey(None, "embedding"), WeightKey(None, "head")
TOTAL = StateKey(None, "total")


def accumulate(target, *, rows=2, width=4, weight=W, arena=64, constants=b""):
    """total += x; scaled = weight · v; quotient = a / b, which faults where b is 0; two checks."""
    make = ProgramMaker(target)
    w = make.weight(weight, (width,))
    v = make.slot(key("v"), (width,), F32)
    x = make.slot(key("x"), (rows, width), F32)
    a, b = make.slot(key("a"), (), I32), make.slot(key("b"), (), I32)
    checks = make.slot(key("check0"), (), I32), make.slot(key("check1"), (), I32)
    total = make.state(TOTAL, (rows, width), F32)
    after = make.apply("add", total, x)
    make.keep(TOTAL, total, after)
    outputs = {
        "total": after,
        "scaled": make.apply("mul", w, v),
        "quotient": make.apply("div", a, b),
    }
    return make.build(outputs, checks, arena, constants)


def step_inputs(*, rows=2, width=4, x=1.0, v=3.0, a=6, b=2, check0=-1, check1=-1):
    scalars = {"a": a, "b": b, "check0": check0, "check1": check1}
    return {
        key("v"): np.full(width, v, np.float32),
        key("x"): np.full((rows, width), x, np.float32),
        **{key(name): np.array(value, np.int32) for name, value in scalars.items()},
    }


class Lab:
    """One device with an engine, and the makers of what runs on it."""

    W, TIED, TOTAL = W, TIED, TOTAL
    key = staticmethod(key)
    stored = staticmethod(stored)
    Store = Store
    inputs = staticmethod(step_inputs)

    def __init__(self, *, traps=False, seconds=None, **runtime):
        caps = Caps(granularity=Granularity.GRAPH, traps=traps)
        self.runtime = FakeRuntime(**runtime)
        self.device = FakeDevice(self.runtime, Target("fake", caps), seconds)
        self.engine = Engine(self.device)
        self.weight = np.arange(4, dtype=np.float32)
        self.store = Store(w=stored("w", "f32", (4,), self.weight))

    def maker(self):
        return ProgramMaker(self.device.target)

    def program(self, **kwargs):
        return accumulate(self.device.target, **kwargs)

    def executable(self):
        return self.engine.load_weights(self.store, {W: "w", TIED: "w"})

    def ready(self, **kwargs):
        """An executable and an entry of it."""
        executable = self.executable()
        return executable, self.engine.add_entry(executable, self.program(**kwargs))

    def held(self):
        """What the runtime holds: bytes, buffers, graphs."""
        runtime = self.runtime
        return runtime.used, len(runtime.memory), len(runtime.graphs)


@pytest.fixture
def make_lab():
    return Lab


@pytest.fixture
def lab():
    return Lab()
