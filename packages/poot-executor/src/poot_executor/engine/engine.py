"""`Engine`: an `Executor` over one device. It records a step once and replays it.

Steps in flight: `submit` replays at once; `collect` waits. A second step may be submitted before
the first is collected. It runs over blocks of its own (the entry's second lane, where both are
steps of one entry), so it cannot overwrite what the first one's collection is still to read.

Failure: a device call that fails after a replay marks every executable with a step in flight as
needing a reset, discards those steps and waits until the device is idle. Where that wait fails too,
the engine is poisoned: it refuses all work and never touches the device again, so that what pending
work could reference is leaked rather than freed. A lost device or a timeout poisons at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from time import perf_counter

import numpy as np

from poot_executor.compile.program import Program
from poot_executor.compile.target import Target
from poot_executor.device import Buffer, Device, Recording
from poot_executor.engine.entry import Entry, Lane
from poot_executor.engine.executable import Executable, new_lane, prepare_addition
from poot_executor.engine.flight import Flight, Step
from poot_executor.engine.health import Health
from poot_executor.engine.state import write_zeros
from poot_executor.engine.transaction import Transaction, give_back
from poot_executor.engine.weights import WeightTable
from poot_executor.errors import (
    BindError,
    CallOrder,
    CheckFailed,
    DeviceError,
    KernelFault,
    NeedsReset,
)
from poot_executor.executor import (
    EntryId,
    ExecutableId,
    Executor,
    StepId,
    StepInputs,
    StepOutputs,
)
from poot_executor.stats import Counters, EngineStats
from poot_executor.weights import WeightMap, WeightStore


class Engine(Executor):
    """Drives a device that its caller opened and closes. `Executor` has the methods' contract."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._target = device.target
        self._health = Health(self._target.caps.traps)
        self._counters = Counters()
        self._executables: dict[ExecutableId, Executable] = {}
        self._flight = Flight(self._counters)
        self._ids = count(1)

    @property
    def target_set(self) -> tuple[Target, ...]:
        """The one target of its device."""
        return (self._target,)

    # Executables and entries

    def load_weights(self, store: WeightStore, weight_map: WeightMap) -> ExecutableId:
        """A new executable; the map is checked against the store."""
        self._health.require()
        table = WeightTable(store, weight_map)
        id = ExecutableId(next(self._ids))
        self._executables[id] = Executable(id, table)
        return id

    def add_entry(self, executable: ExecutableId, program: Program) -> EntryId:
        """Upload, allocate, and record again what must move; all or nothing."""
        found = self._executable(executable)
        self._require_idle("an entry is added")
        if program.target != self._target:
            raise BindError(
                f"the program was compiled for target {program.target.kind}, this engine drives "
                f"{self._target.kind}: compile for a target of its target_set (kind and caps)"
            )
        id = EntryId(next(self._ids))
        with self._transaction() as made:
            addition = prepare_addition(found, id, program, self._device, made)
        addition.publish(found)
        self._discard(addition.old_recordings, addition.old_buffers)
        return id

    def prepare(self, executable: ExecutableId, entry: EntryId, *, ahead: bool = False) -> None:
        """Record the entry, or both of its lanes."""
        found = self._executable(executable)
        item = self._entry(found, entry)
        self._require_idle("an entry is prepared")
        for place in range(2 if ahead else 1):
            self._recorded_lane(found, item, place)

    def remove_entry(self, executable: ExecutableId, entry: EntryId) -> None:
        """Release its recordings and free its blocks."""
        found = self._executable(executable)
        item = self._entry(found, entry)
        self._require_idle("an entry is removed")
        del found.entries[entry]
        self._discard(item.recordings(), item.buffers())

    def unload(self, executable: ExecutableId) -> None:
        """Release and free everything of the executable."""
        found = self._executable(executable)
        self._abandon(found)
        del self._executables[executable]
        self._discard(found.recordings(), found.buffers())

    def close(self) -> None:
        """Unload everything. A poisoned engine only forgets: it does not touch its device."""
        if self._health.closed or self._health.reason is not None:
            self._health.close()
            return
        self._health.close()
        self._settle(self._flight.discard())
        held = list(self._executables.values())
        self._executables.clear()
        for executable in held:
            self._discard(executable.recordings(), executable.buffers())

    # Steps

    def step(self, executable: ExecutableId, entry: EntryId, inputs: StepInputs) -> StepOutputs:
        """`submit`, then `collect`."""
        self._health.require()
        self._require_idle("`step` is called")
        return self.collect(self.submit(executable, entry, inputs))

    def submit(self, executable: ExecutableId, entry: EntryId, inputs: StepInputs) -> StepId:
        """Check, write what changed, replay."""
        entered = perf_counter()
        found = self._executable(executable)
        item = self._entry(found, entry)
        self._flight.require_room()
        if found.failure is not None:
            raise NeedsReset(
                f"executable {found.id} failed a step ({found.failure}): call reset_state before the next one"
            )
        encoded = item.encode(inputs)
        lane = self._recorded_lane(found, item, 1 if self._flight.uses(item.lanes[0]) else 0)
        low, high = lane.stage(encoded)
        with self._watch():
            lane.send(self._device, low, high, self._counters)
        assert lane.recording is not None
        found.dirty = True
        try:
            self._device.replay(lane.recording)
        except BaseException as error:
            # Some of its submissions may be under way: one more wait than there are steps.
            self._fail(error, [found], waits=self._flight.count + 1)
            raise
        self._counters.replays += 1
        step = Step(StepId(next(self._ids)), found, item, lane, entered)
        self._flight.submitted(step, perf_counter())
        return step.id

    def collect(self, step: StepId) -> StepOutputs:
        """Wait, read the output block in one transfer, examine the checks."""
        self._health.require()
        oldest = self._flight.oldest(step)
        # A fresh block each time: the outputs are views of it.
        block = np.empty(oldest.lane.outputs.nbytes, np.uint8)
        try:
            self._device.synchronize()
            waited = perf_counter()
            device_time = self._device.device_time()
            self._device.read(oldest.lane.outputs, block)
            self._counters.output_reads += 1
        except BaseException as error:
            self._fail(error, [], waits=self._flight.count)
            raise
        try:
            outputs = oldest.entry.decode(block)
        except CheckFailed as error:
            self._reject(oldest, error)
            raise
        self._flight.collected(oldest, waited, device_time)
        return outputs

    def reset_state(self, executable: ExecutableId) -> None:
        """Zero every state; the executable needs another reset where that fails."""
        found = self._executable(executable)
        self._abandon(found)
        found.failure = "reset_state did not finish"
        with self._watch():
            for state in found.states.values():
                write_zeros(self._device, state.buffer)
        self._flight.forget(found)
        found.failure = None
        found.dirty = False

    # Counts

    def stats(self) -> EngineStats:
        """The counters, with the memory counts of a device that may be asked."""
        entries = sum(len(e.entries) for e in self._executables.values())
        memory = None
        if self._health.reason is None and not self._health.closed:
            try:
                memory = self._device.memory()
            except DeviceError as error:
                self._health.observe(error)
        executables = len(self._executables)
        return self._counters.freeze(executables, entries, memory, self._health.reason)

    # Look-ups

    def _executable(self, id: ExecutableId) -> Executable:
        self._health.require()
        if id not in self._executables:
            raise BindError(f"there is no executable {id} in this engine (any more)")
        return self._executables[id]

    def _entry(self, executable: Executable, id: EntryId) -> Entry:
        if id not in executable.entries:
            raise BindError(f"executable {executable.id} has no entry {id} (any more)")
        return executable.entries[id]

    def _require_idle(self, before: str) -> None:
        if self._flight.count:
            raise CallOrder(f"{self._flight.count} submitted steps: collect them before {before}")

    def _recorded_lane(self, executable: Executable, entry: Entry, place: int) -> Lane:
        """The entry's lane 0 or 1, made and recorded where it is not yet. All or nothing."""
        missing = place == len(entry.lanes)
        if not missing and entry.lanes[place].recording is not None:
            return entry.lanes[place]
        with self._transaction() as made:
            lane = new_lane(entry.program, made) if missing else entry.lanes[place]
            recording = executable.lower(entry, lane, made)
        lane.recording = recording
        if missing:
            entry.lanes.append(lane)
        return lane

    # Failure

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """Poison the engine where a device call inside says that the device is lost."""
        try:
            yield
        except BaseException as error:
            self._health.observe(error)
            raise

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Undo what was made inside where it raises, unless the device is lost."""
        made = Transaction(self._device, self._counters)
        try:
            yield made
        except BaseException as error:
            if not self._health.observe(error):
                with self._cleaning(error):
                    made.undo()
            raise

    @contextmanager
    def _cleaning(self, first: BaseException) -> Iterator[None]:
        """Clean up after `first`, which its caller raises again. A failure poisons the engine."""
        try:
            yield
        except BaseException as error:
            self._health.poison(f"it could not clean up after {first!r}: {error!r}")
            first.add_note(f"the device could not clean up ({error!r}): the engine is poisoned")
            if not isinstance(error, Exception):
                raise

    def _fail(self, error: BaseException, executables: list[Executable], waits: int) -> None:
        """A step failed once it had replayed: everything in flight is lost with it."""
        self._counters.failures += 1
        reason = f"{type(error).__name__}: {error}"
        for executable in [*executables, *self._flight.executables()]:
            executable.failure = reason
        self._flight.lose(reason)
        if not self._health.observe(error):
            with self._cleaning(error):
                self._settle(waits)

    def _reject(self, step: Step, error: CheckFailed) -> None:
        """A check failed: this executable's steps are lost, and no others."""
        self._counters.failures += 1
        step.executable.failure = f"{type(error).__name__}: {error}"
        behind = self._flight.lose(step.executable.failure, of=step.executable) - 1
        with self._cleaning(error):
            self._settle(behind)

    def _settle(self, waits: int) -> None:
        """Wait until `waits` replays are done; what their kernels say is discarded with them.

        Where that cannot be waited for, the engine is poisoned.
        """
        for _ in range(waits):
            try:
                self._device.synchronize()
            except BaseException as error:
                if not self._health.observe(error) and isinstance(error, KernelFault):
                    continue
                self._health.poison(f"the steps in flight could not be finished: {error!r}")
                raise

    def _abandon(self, executable: Executable) -> None:
        """Wait for the executable's submitted steps and discard them."""
        mine = self._flight.count_of(executable)
        if mine and mine < self._flight.count:
            raise CallOrder("another executable has a submitted step: collect it first")
        if mine:
            executable.failure = "its submitted steps were discarded"
            self._settle(self._flight.lose(executable.failure, of=executable))

    def _discard(self, recordings: Iterable[Recording], buffers: Iterable[Buffer]) -> None:
        """Give back what is not published any more. A device that cannot is not fit for work."""
        try:
            give_back(self._device, recordings, buffers)
        except BaseException as error:
            if not self._health.observe(error):
                self._health.poison(f"the device could not give memory back: {error!r}")
            raise
