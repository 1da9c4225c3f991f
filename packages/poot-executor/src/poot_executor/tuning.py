"""Measuring schedules on a device: each region of a step with each of its candidates, on the step's own weights.

A candidate's whole step runs first, over poisoned memory and states written anew, and must give what the heuristic's
step gave: a value that differs by more than rounding, or that was never written, disqualifies it. Only then its own
dispatches are timed, those of all layers together, so that weights come from memory as they do in a step; the best so
far and the candidate take turns, so that a clock that drifts favours neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.candidates import TRIED, candidates, kind_of
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.pipeline import Compilation
from poot_executor.compile.program import DispatchCommand, Program
from poot_executor.compile.schedule_picks import KEY, NORM, Schedules
from poot_executor.compile.target import Pick
from poot_executor.device import Bindings, Buffer, BufferKind, BufferSlice, Device, Recording
from poot_executor.dtype import BF16, F16, DType, from_bytes, to_bytes
from poot_executor.errors import CompileLimit, KernelFault, OutOfMemory, Unsupported
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.layout import WeightLayout
from poot_executor.weights import StoredTensor, WeightKey

Array = NDArray[Any]

POISON = np.uint32(0x7FD5A5A5)
"""A NaN as f32, far outside as an index."""
MARGIN = 0.97
"""A candidate is taken where it needs at most this share of the best one's time: less is noise."""
TURNS, SECONDS = 7, 0.05
"""Each is measured so many times, and for so long at least, up to ten times as often."""
TURNS_LEAST, FAR = 3, 1.1
"""So many times are enough where even the candidate's shortest is so much longer than the best one's longest."""
TOLERANCE: Mapping[DType, float] = {BF16: 2.0**-5, F16: 2.0**-8}
"""What two orders of summation may differ by over a whole step, beside a value's largest magnitude; 2⁻⁹ for f32."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found for a region key: the `pick` (empty: the heuristic is best), its seconds and the heuristic's, over
    all of the step's dispatches of that key; `tried` candidates, of which `wrong` gave another result or a fault."""

    key: str
    pick: Pick
    seconds: float
    heuristic: float
    tried: int
    wrong: int


class Tuner:
    """A step on a device: its weights uploaded, its inputs and states fixed. Use it in `with`."""

    def __init__(
        self,
        device: Device,
        graph: Graph,
        stored: Callable[[WeightKey], StoredTensor],
        inputs: Mapping[SlotKey, Array],
        options: CompileOptions | None = None,
        seed: int = 0,
    ) -> None:
        """`stored` gives a weight's stored tensor, `inputs` every slot's value. States hold random numbers.

        Raises what `compile` and the device raise.
        """
        self._device, self._inputs = device, inputs
        self._compilation = Compilation(graph, device.target, options or CompileOptions())
        self._shared = _Bound(device)
        self._base = self._program({})
        rng = np.random.default_rng(seed)
        self._initial = {use.key: _random(rng, use.type) for use in self._base.states}
        try:
            self._weights = self._upload(stored)
            states = [(use.key, self._shared.block(BufferKind.STATE, use.type.nbytes)) for use in self._base.states]
            self._states = {key: block.buffer for key, block in states}
            bound = self._bind(self._base)
            self._expected = self._run(self._base, bound.bindings)
            bound.free()
        except BaseException:
            self.close()
            raise

    @property
    def keys(self) -> list[str]:
        """What there is to choose: norms first, which decide what other regions are, then by order in the step."""
        said = [d.schedule for d in self._base.dispatches if KEY in d.schedule]
        norms = dict.fromkeys(s[NORM] for s in said if NORM in s)
        return [*norms, *dict.fromkeys(s[KEY] for s in said)]

    def tune(
        self, report: Callable[[Measured], None] = lambda _: None, kinds: Collection[str] = TRIED.keys()
    ) -> list[Measured]:
        """Choose for every key of these kinds, one after another, each over what was chosen before. Regions that a
        choice makes anew are tuned too."""
        picks: dict[str, Pick] = {}
        found: list[Measured] = []
        waiting = [key for key in self.keys if kind_of(key) in kinds]
        while waiting:
            key = waiting.pop(0)
            measured = self._choose(key, picks)
            if measured is None:
                continue
            found.append(measured)
            report(measured)
            if measured.pick:
                picks[key] = measured.pick
                if _is_norm(key):
                    made = self._program(picks)
                    known = {m.key for m in found} | {*waiting}
                    said = (d.schedule[KEY] for d in made.dispatches if KEY in d.schedule)
                    waiting += [k for k in dict.fromkeys(said) if k not in known and kind_of(k) in kinds]
        return found

    def close(self) -> None:
        """Give everything back; idempotent."""
        self._shared.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _program(self, picks: Mapping[str, Pick]) -> Program:
        """Under these picks. Its dispatches are timed alone, over what the whole step left in the arena."""
        return self._compilation.program(Schedules.of({key: dict(pick) for key, pick in picks.items()}), keep=True)

    def _choose(self, key: str, picks: Mapping[str, Pick]) -> Measured | None:
        """The best of a key's candidates, changing one tunable at a time; None where the step has no such region."""
        best = self._program(picks)
        if not _commands(best, key):
            return None
        pick: Pick = ()
        tried = wrong = 0
        heuristic = seconds = 0.0
        seen = {_kernels(best, key)}
        bound = self._bind(best)
        try:
            self._run(best, bound.bindings)
            improved = True
            while improved:
                improved = False
                for candidate in candidates(key, _schedule(best, key), pick, self._device.target.caps):
                    made = self._candidate({**picks, key: candidate}, key)
                    if made is None or _kernels(made, key) in seen:
                        continue
                    seen.add(_kernels(made, key))
                    tried += 1
                    other = self._bind(made)
                    times = self._race(key, (best, bound), (made, other))
                    if times is None:
                        wrong += 1
                        other.free()
                        continue
                    heuristic = seconds = heuristic or times[0]
                    if times[1] >= MARGIN * times[0]:
                        other.free()
                        continue
                    bound.free()
                    best, bound, pick, improved = made, other, candidate, True
            if pick:
                # Whoever wins many races is lucky too: what counts is one more, against the heuristic.
                heuristic, seconds = self._final(key, picks, (best, bound))
                pick = pick if seconds < MARGIN * heuristic else ()
        finally:
            bound.free()
        return Measured(key, pick, seconds if pick else heuristic, heuristic, tried, wrong)

    def _final(self, key: str, picks: Mapping[str, Pick], made: tuple[Program, _Bound]) -> tuple[float, float]:
        """Seconds of the heuristic and of the winner."""
        plain = self._program(picks)
        bound = self._bind(plain)
        try:
            self._run(plain, bound.bindings)
            times = self._race(key, (plain, bound), made)
            return (0.0, 0.0) if times is None else times
        finally:
            bound.free()

    def _candidate(self, picks: Mapping[str, Pick], key: str) -> Program | None:
        """The program with a candidate; None where the candidate does not fit."""
        try:
            made = self._program(picks)
        except (Unsupported, CompileLimit):
            return None
        return made if _commands(made, key) else None

    def _race(self, key: str, best: tuple[Program, _Bound], made: tuple[Program, _Bound]) -> tuple[float, float] | None:
        """Seconds of the best and of a candidate; None where the candidate is wrong."""
        try:
            if not self._agrees(self._run(made[0], made[1].bindings)):
                return None
        except (KernelFault, OutOfMemory):
            return None
        times: tuple[list[float], list[float]] = ([], [])
        with self._recorded(*best, key) as one, self._recorded(*made, key) as other:
            while not _decided(*times):
                for recording, mine in zip((one, other), times, strict=True):
                    mine.append(self._seconds(recording))
        return _seconds(*times)

    def _seconds(self, recording: Recording) -> float:
        started = perf_counter()
        self._device.replay(recording)
        self._device.synchronize()
        passed = perf_counter() - started
        measured = self._device.device_time()
        return passed if measured is None else measured

    # A step

    def _run(self, program: Program, bindings: Bindings) -> dict[str | StateKey, Array]:
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

    def _agrees(self, found: Mapping[str | StateKey, Array]) -> bool:
        """Whether floats are the heuristic's within what orders of summation may differ by. Integers are chosen from
        them, and are not compared: two nearly equal logits may change places."""
        types: dict[str | StateKey, DType] = {use.key: use.type.dtype for use in self._base.states}
        types |= {output.name: output.type.dtype for output in self._base.outputs}
        for name, expected in self._expected.items():
            if types[name].is_float and not _close(found[name], expected, types[name]):
                return False
        return True

    @contextmanager
    def _recorded(self, program: Program, bound: _Bound, key: str) -> Iterator[Recording]:
        """The dispatches of a key; of a norm, the whole step."""
        commands = program.commands if _is_norm(key) else tuple(_commands(program, key))
        recording = self._device.lower(replace(program, commands=commands), bound.bindings)
        try:
            yield recording
        finally:
            self._device.release(recording)

    def _bind(self, program: Program) -> _Bound:
        """Blocks of a program's own, over the shared weights and states."""
        bound = _Bound(self._device)
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


@dataclass(slots=True, eq=False)
class _Bound:
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


def _decided(best: list[float], made: list[float]) -> bool:
    """Whether both were measured often enough: less often where the candidate is far behind."""
    turns = len(best)
    if turns >= TURNS_LEAST and min(made) > FAR * max(best):
        return True
    return turns >= TURNS and (sum(best) + sum(made) >= 2 * SECONDS or turns >= 10 * TURNS)


def _seconds(best: list[float], made: list[float]) -> tuple[float, float]:
    """What each took: medians, and a candidate's no better beside the best one's than its shortest time is, since what
    else a machine does makes some times longer and none shorter."""
    middle = median(best)
    return middle, max(median(made), middle * min(made) / min(best))


def _is_norm(key: str) -> bool:
    return key.startswith(NORM + " ")


def _commands(program: Program, key: str) -> list[DispatchCommand]:
    """The dispatches of a region key; of a norm those that it is inside of, or all where it is apart, since none
    names it then."""
    named = [d for d in program.dispatches if d.schedule.get(NORM if _is_norm(key) else KEY) == key]
    return named if named or not _is_norm(key) else list(program.dispatches)


def _kernels(program: Program, key: str) -> tuple[bytes, ...]:
    """What tells two schedules of a key apart: two picks may come to one."""
    return tuple(d.kernel.digest() for d in _commands(program, key))


def _schedule(program: Program, key: str) -> Mapping[str, Any]:
    """What a region key's present schedule is."""
    return {"apart": 0} if _is_norm(key) else _commands(program, key)[0].schedule


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


def _close(found: Array, expected: Array, dtype: DType) -> bool:
    """NaN where the other has none is never close."""
    mine, theirs = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(mine[~finite], theirs[~finite], equal_nan=True) or not np.isfinite(mine[finite]).all():
        return False
    largest = float(np.max(np.abs(theirs[finite]), initial=0.0))
    return bool(np.all(np.abs(mine[finite] - theirs[finite]) <= TOLERANCE.get(dtype, 2.0**-9) * largest))
