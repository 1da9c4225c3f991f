"""An entry: a program with its per-step blocks, how inputs get in and outputs get out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.program import OutputField, Program, SlotField
from poot_executor.device import Buffer, Device, Recording
from poot_executor.dtype import from_bytes, to_bytes
from poot_executor.errors import BindError, CheckFailed
from poot_executor.executor import EntryId, StepInputs, StepOutputs
from poot_executor.graph.keys import SlotKey
from poot_executor.stats import Counters
from poot_executor.weights import WeightKey

WORD = 4
"""Transfers start and end at whole words."""
SMALL = 1024
"""Bytes of an input up to which they are compared faster as bytes than as an array."""


@dataclass(slots=True, eq=False)
class Lane:
    """One input block, one output block and the recording over them: one step in flight.

    `staged` holds the input block's bytes; while `known`, the device's block equals it.
    """

    inputs: Buffer
    outputs: Buffer
    staged: NDArray[np.uint8]
    recording: Recording | None = None
    known: bool = True

    def stage(self, encoded: list[tuple[SlotField, bytes]]) -> tuple[int, int]:
        """Take in a step's inputs; returns the bytes [low, high) that the device lacks, if any."""
        known = self.known
        low, high = len(self.staged), 0
        for slot, data in encoded:
            end = slot.offset + len(data)
            held = self.staged[slot.offset : end]
            same = held.tobytes() == data if len(data) <= SMALL else (held == np.frombuffer(data, np.uint8)).all()
            if not same:
                self.known = False
                held.data[:] = data
                low, high = min(low, slot.offset), max(high, end)
        if not known:
            return 0, len(self.staged)
        return (low // WORD * WORD, -(-high // WORD) * WORD) if high else (0, 0)

    def send(self, device: Device, low: int, high: int, counters: Counters) -> None:
        """Write the bytes [low, high) in one transfer; none where they are empty."""
        if low == high:
            counters.unchanged_inputs += 1
            return
        # Until the write is done the block is unknown: one that fails may have written a part.
        device.write(self.inputs, self.staged[low:high], low)
        self.known = True
        counters.input_writes += 1
        counters.input_bytes += high - low


@dataclass(slots=True, eq=False)
class Entry:
    """A program bound to buffers: one lane until a step of it is submitted ahead, then two."""

    id: EntryId
    program: Program
    weights: Mapping[WeightKey, Buffer]
    constants: Buffer | None
    lanes: list[Lane]
    slots: Mapping[SlotKey, SlotField] = field(init=False)

    def __post_init__(self) -> None:
        self.slots = {slot.key: slot for slot in self.program.slots}

    def recordings(self) -> list[Recording]:
        """The recordings of its lanes, as far as they were made."""
        return [lane.recording for lane in self.lanes if lane.recording is not None]

    def buffers(self) -> list[Buffer]:
        """The entry's own buffers: blocks and constants."""
        blocks = [buffer for lane in self.lanes for buffer in (lane.inputs, lane.outputs)]
        return blocks if self.constants is None else [*blocks, self.constants]

    def encode(self, inputs: StepInputs) -> list[tuple[SlotField, bytes]]:
        """The device bytes of every input. Raises BindError naming what is not as the slots say."""
        try:
            encoded = [(slot, _input_bytes(slot, inputs[key])) for key, slot in self.slots.items()]
        except KeyError:
            encoded = []
        if len(encoded) != len(self.slots) or len(inputs) != len(encoded):
            missing = sorted(str(key) for key in self.slots.keys() - inputs.keys())
            unknown = sorted(str(key) for key in inputs.keys() - self.slots.keys())
            parts = [f"input {name} is missing" for name in missing]
            parts += [f"input {name} is unknown" for name in unknown]
            counts = f"the entry has {len(self.slots)} inputs, {len(inputs)} were given"
            raise BindError(f"{'; '.join(parts)}: {counts}")
        return encoded

    def decode(self, block: NDArray[np.uint8]) -> StepOutputs:
        """The outputs in a block that was read. Raises CheckFailed for the first that fails."""
        for code, offset in enumerate(self.program.checks):
            index = int.from_bytes(block[offset : offset + 4].tobytes(), "little", signed=True)
            if index >= 0:
                raise CheckFailed(code, index)
        block.flags.writeable = False
        return StepOutputs({out.name: _output(out, block) for out in self.program.outputs})


def _input_bytes(slot: SlotField, value: NDArray[Any]) -> bytes:
    dtype, shape = slot.type.dtype, slot.type.shape
    if not isinstance(value, np.ndarray):
        raise BindError(f"input {slot.key} must be an array {slot.type}, not {type(value).__name__}")
    if value.dtype != dtype.numpy or value.shape != shape:
        raise BindError(
            f"input {slot.key} must be {slot.type} (numpy {dtype.numpy}), not {value.dtype}{list(value.shape)}"
        )
    return to_bytes(value, dtype)


def _output(out: OutputField, block: NDArray[np.uint8]) -> NDArray[Any]:
    data = block[out.offset : out.offset + out.type.nbytes]
    array = from_bytes(data, out.type.dtype, out.type.shape)
    array.flags.writeable = False
    return array
