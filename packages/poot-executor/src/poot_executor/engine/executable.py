"""An executable: weights, state and arena that its entries share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from poot_executor.compile.program import Program
from poot_executor.device import Bindings, Buffer, BufferKind, BufferSlice, Device, Recording
from poot_executor.engine.entry import Entry, Lane
from poot_executor.engine.state import State, new_state_types
from poot_executor.engine.transaction import Transaction
from poot_executor.engine.weights import BoundWeights, WeightTable
from poot_executor.executor import EntryId, ExecutableId
from poot_executor.graph.keys import StateKey


@dataclass(slots=True, eq=False)
class Executable:
    """What is published of an executable.

    `dirty` says that a step ran since the state was last all zero; `failure` why a reset is needed.
    """

    id: ExecutableId
    weights: WeightTable
    states: dict[StateKey, State] = field(default_factory=dict)
    arena: Buffer | None = None
    entries: dict[EntryId, Entry] = field(default_factory=dict)
    dirty: bool = False
    failure: str | None = None

    def recordings(self) -> list[Recording]:
        """Every recording of the executable."""
        return [r for entry in self.entries.values() for r in entry.recordings()]

    def buffers(self) -> list[Buffer]:
        """Every buffer of the executable, once."""
        own = [buffer for entry in self.entries.values() for buffer in entry.buffers()]
        shared = [state.buffer for state in self.states.values()]
        arena = [] if self.arena is None else [self.arena]
        return [*own, *arena, *shared, *self.weights.buffers()]

    def lower(self, entry: Entry, lane: Lane, made: Transaction) -> Recording:
        """A recording of an entry over one of its lanes, as things stand."""
        return made.lower(entry.program, bindings(entry, lane, self.states, self.arena))


@dataclass(slots=True, eq=False)
class Addition:
    """An entry that is ready to be published, and what its publication replaces."""

    entry: Entry
    bound: BoundWeights
    states: dict[StateKey, State]
    arena: Buffer | None
    recorded: list[tuple[Lane, Recording]]
    old_recordings: list[Recording]
    old_buffers: list[Buffer]

    def publish(self, executable: Executable) -> None:
        """Make it part of the executable. Nothing here can fail."""
        executable.weights.publish(self.bound)
        executable.states = self.states
        executable.arena = self.arena
        for lane, recording in self.recorded:
            lane.recording = recording
        executable.entries[self.entry.id] = self.entry


def prepare_addition(
    executable: Executable, id: EntryId, program: Program, device: Device, made: Transaction
) -> Addition:
    """Bind a new entry through `made`, without changing the executable.

    The arena is the largest any entry needs, each state likewise; where one of them must grow,
    every recording of the executable is made again over the new buffers, and the old ones go once
    the addition is published. So the old and the new arena exist side by side for a moment: an
    executable whose largest entry comes first never pays that.
    """
    fresh = new_state_types(executable.states, program.states, dirty=executable.dirty)
    bound = executable.weights.bind(program.weights, made)
    states = dict(executable.states)
    for key, type in fresh.items():
        states[key] = State(type, made.allocate(BufferKind.STATE, type.nbytes))
    arena, held = executable.arena, executable.arena
    if program.arena_bytes > (0 if held is None else held.nbytes):
        arena = made.allocate(BufferKind.ARENA, program.arena_bytes)
    constants = None
    if program.constants:
        constants = made.allocate(BufferKind.CONSTANT, len(program.constants))
        padded = np.zeros(constants.nbytes, np.uint8)
        padded[: len(program.constants)] = np.frombuffer(program.constants, np.uint8)
        device.write(constants, padded)
    entry = Entry(id, program, bound.buffers, constants, [new_lane(program, made)])
    replaced = [executable.states[key].buffer for key in fresh if key in executable.states]
    if arena is not held and held is not None:
        replaced.append(held)
    recorded: list[tuple[Lane, Recording]] = []
    if replaced:
        for old, lane in _recorded_lanes(executable.entries.values()):
            over = bindings(old, lane, states, arena)
            recorded.append((lane, made.lower(old.program, over)))
    stale = executable.recordings() if replaced else []
    return Addition(entry, bound, states, arena, recorded, stale, replaced)


def new_lane(program: Program, made: Transaction) -> Lane:
    """A lane with zero-filled blocks, not recorded."""
    inputs = made.allocate(BufferKind.INPUT, program.input_bytes)
    outputs = made.allocate(BufferKind.OUTPUT, program.output_bytes)
    return Lane(inputs, outputs, np.zeros(inputs.nbytes, np.uint8))


def bindings(entry: Entry, lane: Lane, states: Mapping[StateKey, State], arena: Buffer | None) -> Bindings:
    """Where the spaces of an entry's program lie."""
    program = entry.program
    return Bindings(
        weights=entry.weights,
        states={use.key: states[use.key].buffer for use in program.states},
        inputs=_whole(lane.inputs),
        constants=None if entry.constants is None else _whole(entry.constants),
        arena=_whole(arena) if arena is not None and program.arena_bytes else None,
        outputs=_whole(lane.outputs),
    )


def _whole(buffer: Buffer) -> BufferSlice:
    return BufferSlice(buffer, 0, buffer.nbytes)


def _recorded_lanes(entries: Iterable[Entry]) -> list[tuple[Entry, Lane]]:
    return [(e, lane) for e in entries for lane in e.lanes if lane.recording is not None]
