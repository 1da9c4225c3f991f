"""A step that is run again and again to be measured: its weights, inputs and states on a device, its results known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.program import Command, Program
from poot_executor.device import Bindings, Buffer, BufferKind, BufferSlice, Device, Recording
from poot_executor.dtype import BF16, F16, DType, from_bytes, to_bytes
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.layout import WeightLayout
from poot_executor.weights import StoredTensor, WeightKey

Array = NDArray[Any]

POISON = np.uint32(0x7FD5A5A5)
"""A NaN as f32, far outside as an index."""
TOLERANCE: Mapping[DType, float] = {BF16: 2.0**-5, F16: 2.0**-8}
"""What two orders of summation may always differ by over a whole step, beside a value's largest magnitude; 2⁻⁹ for
f32."""
APART, APART_MOST = 4.0, 0.25
"""Times that what two right programs differ by, and a share of the largest magnitude at most: where a step rounds its
activations to halves, layer after layer, its logits in f32 differ by more than their own rounding."""


@dataclass(slots=True, eq=False)
class Bound:
    """Buffers that go together, and what a program is bound to."""

    device: Device
    buffers: list[Buffer] = field(default_factory=list)
    bindings: Bindings = field(init=False)

    def block(self, kind: BufferKind, nbytes: int) -> BufferSlice:
        """A whole buffer: as an engine allocates, of multiples of 16 bytes, and at least that."""
        buffer = self.device.allocate(kind, max(16, -(-nbytes // 16) * 16))
        self.buffers.append(buffer)
        return BufferSlice(buffer, 0, buffer.nbytes)

    def free(self) -> None:
        """Give the buffers back; idempotent."""
        while self.buffers:
            self.device.free(self.buffers.pop())


class TuningStep:
    """A program's step and those of others of the same graph, over one set of weights and states."""

    def __init__(
        self,
        device: Device,
        base: Program,
        other: Program,
        stored: Callable[[WeightKey], StoredTensor],
        inputs: Mapping[SlotKey, Array],
        seed: int,
    ) -> None:
        """`base` gives the results that are right, `other` the same with sums in another order: what they differ by is
        what other candidates may differ by, some times. Raises what the device raises."""
        self._device, self._inputs, self._base = device, inputs, base
        self._shared = Bound(device)
        rng = np.random.default_rng(seed)
        self._initial = {use.key: _random(rng, use.type) for use in base.states}
        try:
            self._weights = self._upload(stored)
            states = [(use.key, self._shared.block(BufferKind.STATE, use.type.nbytes)) for use in base.states]
            self._states = {key: block.buffer for key, block in states}
            bound = self.bind(base)
            self._expected = self.run(base, bound.bindings)
            bound.free()
            self._allowed = self._measured(other)
        except BaseException:
            with suppress(Exception):  # The first error is the one to see.
                self.free()
            raise

    def free(self) -> None:
        """Give everything back; idempotent."""
        self._shared.free()

    def seconds(self, recording: Recording) -> float:
        """One replay: the device's own time where it tells one, else the wall's."""
        started = perf_counter()
        self._device.replay(recording)
        self._device.synchronize()
        passed = perf_counter() - started
        measured = self._device.device_time()
        return passed if measured is None else measured

    def run(self, program: Program, bindings: Bindings) -> dict[str | StateKey, Array]:
        """Outputs and states of the step, over poisoned memory and states as they were at first."""
        device = self._device
        for key, buffer in self._states.items():
            device.write(buffer, self._initial[key])
        for piece in (bindings.outputs, bindings.arena):
            if piece is not None:
                device.write(piece.buffer, np.full(piece.nbytes // 4, POISON))
        block = np.zeros(bindings.inputs.nbytes, np.uint8)
        for slot in program.slots:
            data = to_bytes(self._inputs[slot.key], slot.type.dtype)
            block[slot.offset : slot.offset + len(data)] = np.frombuffer(data, np.uint8)
        device.write(bindings.inputs.buffer, block)
        recording = device.lower(program, bindings)
        try:
            device.replay(recording)
            device.synchronize()
        finally:
            with suppress(Exception):  # The first error is the one to see.
                device.release(recording)
        found: dict[str | StateKey, Array] = {}
        outputs = np.empty(bindings.outputs.nbytes, np.uint8)
        device.read(bindings.outputs.buffer, outputs)
        for output in program.outputs:
            found[output.name] = _held(outputs[output.offset :], output.type)
        for use in program.states:
            data = np.empty(self._states[use.key].nbytes, np.uint8)
            device.read(self._states[use.key], data)
            found[use.key] = _held(data, use.type)
        return found

    def agrees(self, found: Mapping[str | StateKey, Array]) -> bool:
        """Whether floats are the heuristic's within what orders of summation may differ by. Integers are chosen from
        them, and are not compared: two nearly equal logits may change places."""
        types = self._types()
        for name, expected in self._expected.items():
            if types[name].is_float and not _apart(found[name], expected) <= self._allowed[name]:
                return False
        return True

    def _measured(self, other: Program) -> dict[str | StateKey, float]:
        """What may differ by name: `TOLERANCE`, or where that is more some times what another order differs by."""
        bound = self.bind(other)
        try:
            found = self.run(other, bound.bindings)
        finally:
            bound.free()
        types = self._types()
        allowed: dict[str | StateKey, float] = {}
        for name, expected in self._expected.items():
            if not types[name].is_float:
                continue
            measured = min(APART * _apart(found[name], expected), APART_MOST)
            allowed[name] = max(TOLERANCE.get(types[name], 2.0**-9), measured)
        return allowed

    def _types(self) -> dict[str | StateKey, DType]:
        """Of outputs and states."""
        types: dict[str | StateKey, DType] = {use.key: use.type.dtype for use in self._base.states}
        return types | {output.name: output.type.dtype for output in self._base.outputs}

    @contextmanager
    def recorded(self, program: Program, bound: Bound, commands: tuple[Command, ...]) -> Iterator[Recording]:
        """Some commands of a bound program."""
        recording = self._device.lower(replace(program, commands=commands), bound.bindings)
        try:
            yield recording
        finally:
            self._device.release(recording)

    def bind(self, program: Program) -> Bound:
        """Blocks of a program's own, over the shared weights and states."""
        bound = Bound(self._device)
        try:
            constants = bound.block(BufferKind.CONSTANT, len(program.constants)) if program.constants else None
            if constants is not None:
                padded = program.constants + bytes(constants.nbytes - len(program.constants))
                self._device.write(constants.buffer, padded)
            arena = bound.block(BufferKind.ARENA, program.arena_bytes) if program.arena_bytes else None
            inputs = bound.block(BufferKind.INPUT, program.input_bytes)
            outputs = bound.block(BufferKind.OUTPUT, program.output_bytes)
        except BaseException:
            bound.free()
            raise
        bound.bindings = Bindings(self._weights, self._states, inputs, constants, arena, outputs)
        return bound

    def _upload(self, stored: Callable[[WeightKey], StoredTensor]) -> dict[WeightKey, Buffer]:
        """Every weight, once for each tensor and layout."""
        made: dict[tuple[str, WeightLayout], Buffer] = {}
        weights: dict[WeightKey, Buffer] = {}
        for use in self._base.weights:
            tensor = stored(use.key)
            place = (tensor.name, use.layout)
            if place not in made:
                made[place] = self._device.upload(use, tensor)
                self._shared.buffers.append(made[place])
            weights[use.key] = made[place]
        return weights


def _random(rng: np.random.Generator, type_: TensorType) -> Array:
    """A state's bytes, in whole multiples of 16: numbers as a layer norm leaves them, or zeros where it has no
    floats."""
    if type_.dtype.is_float:
        data = to_bytes(rng.standard_normal(type_.shape, np.float32).astype(type_.dtype.numpy), type_.dtype)
    else:
        data = bytes(type_.nbytes)
    return np.frombuffer(data + bytes(-len(data) % 16), np.uint8)


def _held(block: Array, type_: TensorType) -> Array:
    return from_bytes(block[: type_.nbytes].tobytes(), type_.dtype, type_.shape)


def _apart(found: Array, expected: Array) -> float:
    """The greatest difference as a share of the largest magnitude; infinite where one is no number and the other is
    one, or where all should be 0 and are not."""
    mine, theirs = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(mine[~finite], theirs[~finite], equal_nan=True) or not np.isfinite(mine[finite]).all():
        return inf
    largest = float(np.max(np.abs(theirs[finite]), initial=0.0))
    difference = float(np.max(np.abs(mine[finite] - theirs[finite]), initial=0.0))
    return difference / largest if largest else inf if difference else 0.0
