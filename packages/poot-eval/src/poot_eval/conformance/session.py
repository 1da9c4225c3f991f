"""A program on a device with no engine between: every byte it may leave unwritten is poisoned
first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile import compile
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.program import Program
from poot_executor.device import Bindings, Buffer, BufferKind, BufferSlice, Device, Recording
from poot_executor.dtype import from_bytes, to_bytes
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import InputKey, StateKey
from poot_executor.layout import WeightLayout
from poot_executor.weights import StoredTensor

Array = NDArray[Any]

POISON = np.uint32(0x7FD5A5A5)
"""What blocks hold before a run: a NaN as f32, far outside as an index."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a step left on the device."""

    outputs: Mapping[str, Array]
    state: Mapping[StateKey, Array]
    checks: tuple[int, ...]


class Session:
    """One program, its buffers and its recording on a device. Made by `open_session` or `open_program`."""

    def __init__(self, device: Device, program: Program, inputs: Mapping[InputKey, Array]) -> None:
        self.device = device
        self.program = program
        self._buffers: list[Buffer] = []
        self._recordings: list[Recording] = []
        weights = {use.key: self._keep(device.upload(use, _stored(use.layout, use.type, inputs[use.key])))
                   for use in program.weights}  # fmt: skip
        states = {use.key: self._block(BufferKind.STATE, use.type.nbytes) for use in program.states}
        constants = self._block(BufferKind.CONSTANT, len(program.constants)) if program.constants else None
        if constants is not None:
            device.write(constants, _padded(program.constants, constants.nbytes))
        arena = self._block(BufferKind.ARENA, program.arena_bytes) if program.arena_bytes else None
        self.bindings = Bindings(
            weights,
            states,
            _whole(self._block(BufferKind.INPUT, program.input_bytes)),
            None if constants is None else _whole(constants),
            None if arena is None else _whole(arena),
            _whole(self._block(BufferKind.OUTPUT, program.output_bytes)),
        )

    def lower(self) -> Recording:
        """The whole program as one recording."""
        return self._recorded(self.program)

    def lower_each(self) -> list[Recording]:
        """Each command as a recording of its own: what "eager" means."""
        return [self._recorded(replace(self.program, commands=(command,))) for command in self.program.commands]

    def set_inputs(self, inputs: Mapping[InputKey, Array]) -> None:
        """Write every slot, and every state that `inputs` names."""
        block = np.full(self.bindings.inputs.nbytes // 4, POISON).view(np.uint8)
        for slot in self.program.slots:
            data = to_bytes(inputs[slot.key], slot.type.dtype)
            block[slot.offset : slot.offset + len(data)] = np.frombuffer(data, np.uint8)
        self.device.write(self.bindings.inputs.buffer, block)
        for use in self.program.states:
            if use.key in inputs:
                buffer = self.bindings.states[use.key]
                self.device.write(buffer, _padded(to_bytes(inputs[use.key], use.type.dtype), buffer.nbytes))

    def poison(self) -> None:
        """Fill the output block and the arena, so that what a step leaves unwritten shows."""
        for piece in (self.bindings.outputs, self.bindings.arena):
            if piece is not None:
                self.device.write(piece.buffer, np.full(piece.nbytes // 4, POISON))

    def run(self, recordings: Recording | list[Recording]) -> Result:
        """Replay, wait, and read everything back."""
        for recording in recordings if isinstance(recordings, list) else [recordings]:
            self.device.replay(recording)
            self.device.synchronize()
        return self.read()

    def read(self) -> Result:
        """Outputs, states and checks as they lie on the device."""
        block = np.empty(self.bindings.outputs.nbytes, np.uint8)
        self.device.read(self.bindings.outputs.buffer, block)
        outputs = {f.name: _held(block[f.offset :], f.type) for f in self.program.outputs}
        states = {}
        for use in self.program.states:
            data = np.empty(self.bindings.states[use.key].nbytes, np.uint8)
            self.device.read(self.bindings.states[use.key], data)
            states[use.key] = _held(data, use.type)
        checks = tuple(int(block[at : at + 4].view("<i4")[0]) for at in self.program.checks)
        return Result(outputs, states, checks)

    def close(self) -> None:
        """Give everything back."""
        for recording in self._recordings:
            self.device.release(recording)
        for buffer in self._buffers:
            self.device.free(buffer)

    def _recorded(self, program: Program) -> Recording:
        recording = self.device.lower(program, self.bindings)
        self._recordings.append(recording)
        return recording

    def _block(self, kind: BufferKind, nbytes: int) -> Buffer:
        # As an engine allocates: whole multiples of 16 bytes, and at least that.
        return self._keep(self.device.allocate(kind, max(16, -(-nbytes // 16) * 16)))

    def _keep(self, buffer: Buffer) -> Buffer:
        self._buffers.append(buffer)
        return buffer


@contextlib.contextmanager
def open_session(
    device: Device, graph: Graph, inputs: Mapping[InputKey, Array], options: CompileOptions | None = None
) -> Iterator[Session]:
    """Compile a graph for the device and bind it. `inputs` holds weights as the oracle takes them.

    What is allocated is given back at the end, unless the device was lost in between.
    """
    with open_program(device, compile(graph, device.target, options or CompileOptions()), inputs) as session:
        yield session


@contextlib.contextmanager
def open_program(device: Device, program: Program, inputs: Mapping[InputKey, Array]) -> Iterator[Session]:
    """As `open_session`, of a program that was compiled for the device before."""
    session = Session(device, program, inputs)
    try:
        session.set_inputs(inputs)
        session.poison()
        yield session
    except BaseException:
        # The first error is the one to see: a poisoned device cannot take anything back.
        with contextlib.suppress(Exception):
            session.close()
        raise
    session.close()


def _stored(layout: WeightLayout, type: TensorType, value: Array) -> StoredTensor:
    """A weight as a checkpoint holds it."""
    data = np.frombuffer(to_bytes(value, type.dtype), np.uint8)
    shape = (*type.shape[:-1], layout.columns) if type.shape else ()
    return StoredTensor("weight", layout.format, shape, data)


def _held(block: NDArray[np.uint8], type: TensorType) -> Array:
    return from_bytes(block[: type.nbytes], type.dtype, type.shape)


def _padded(data: bytes, nbytes: int) -> NDArray[np.uint8]:
    whole = np.zeros(nbytes, np.uint8)
    whole[: len(data)] = np.frombuffer(data, np.uint8)
    return whole


def _whole(buffer: Buffer) -> BufferSlice:
    return BufferSlice(buffer, 0, buffer.nbytes)
