"""Measuring schedules on a device: each region of a step with each of its candidates, on the step's own weights.

A candidate's whole step runs first, over poisoned memory and states written anew, and must give what the heuristic's
step gave: a value that differs by more than rounding, which a program with sums in another order tells, or that was
never written, disqualifies it. Only then its own
dispatches are timed, those of all layers together, so that weights come from memory as they do in a step; the best so
far and the candidate take turns, so that a clock that drifts favours neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Self

from poot_executor.compile.candidates import TRIED, candidates, kind_of
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.pipeline import Compilation
from poot_executor.compile.program import DispatchCommand, Program
from poot_executor.compile.schedule_picks import KEY, NORM, Schedules
from poot_executor.compile.target import Pick
from poot_executor.device import Device, Recording
from poot_executor.errors import (
    CompileLimit,
    DeviceError,
    DeviceLost,
    DeviceTimeout,
    OutOfMemory,
    Poisoned,
    Unsupported,
)
from poot_executor.graph.graph import Graph
from poot_executor.graph.keys import SlotKey
from poot_executor.tuning_step import Array, Bound, TuningStep
from poot_executor.weights import StoredTensor, WeightKey

MARGIN = 0.97
"""A candidate is taken where it needs at most this share of the best one's time: less is noise."""
TURNS, SECONDS = 7, 0.05
"""Each is measured so many times, and for so long at least, up to ten times as often."""
TURNS_LEAST, FAR = 3, 1.1
"""So many times are enough where even the candidate's shortest is so much longer than the best one's longest."""


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
        self._device = device
        options = options or CompileOptions()
        self._compilation = Compilation(graph, device.target, options)
        self._base = self._program({})
        other = Compilation(graph, device.target, replace(options, deterministic=not options.deterministic))
        self._step = TuningStep(device, self._base, other.program(Schedules()), stored, inputs, seed)

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
        self._step.free()

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
        bound = self._step.bind(best)
        try:
            self._step.run(best, bound.bindings)
            improved = True
            while improved:
                improved = False
                for candidate in candidates(key, _schedule(best, key), pick, self._device.target.caps):
                    made = self._candidate({**picks, key: candidate}, key)
                    if made is None or _kernels(made, key) in seen:
                        continue
                    seen.add(_kernels(made, key))
                    tried += 1
                    other = self._bound(made)
                    if other is None:
                        wrong += 1
                        continue
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

    def _final(self, key: str, picks: Mapping[str, Pick], made: tuple[Program, Bound]) -> tuple[float, float]:
        """Seconds of the heuristic and of the winner."""
        plain = self._program(picks)
        bound = self._step.bind(plain)
        try:
            self._step.run(plain, bound.bindings)
            times = self._race(key, (plain, bound), made)
            return (0.0, 0.0) if times is None else times
        finally:
            bound.free()

    def _bound(self, program: Program) -> Bound | None:
        """What a candidate is bound to; None where the device has no memory for it."""
        try:
            return self._step.bind(program)
        except OutOfMemory:
            return None

    def _recorded(self, bound: tuple[Program, Bound], key: str) -> AbstractContextManager[Recording]:
        """The dispatches of a key; of a norm, the whole step."""
        program = bound[0]
        commands = program.commands if _is_norm(key) else tuple(_commands(program, key))
        return self._step.recorded(program, bound[1], commands)

    def _candidate(self, picks: Mapping[str, Pick], key: str) -> Program | None:
        """The program with a candidate; None where the candidate does not fit."""
        try:
            made = self._program(picks)
        except (Unsupported, CompileLimit):
            return None
        return made if _commands(made, key) else None

    def _race(self, key: str, best: tuple[Program, Bound], made: tuple[Program, Bound]) -> tuple[float, float] | None:
        """Seconds of the best and of a candidate; None where the candidate is wrong."""
        try:
            if not self._step.agrees(self._step.run(made[0], made[1].bindings)):
                return None
        except (DeviceLost, DeviceTimeout, Poisoned):
            raise
        except DeviceError:
            return None  # A kernel fault, or a kernel that the device refuses to load or to launch.
        times: tuple[list[float], list[float]] = ([], [])
        with self._recorded(best, key) as one, self._recorded(made, key) as other:
            while not _decided(*times):
                for recording, mine in zip((one, other), times, strict=True):
                    mine.append(self._step.seconds(recording))
        return _seconds(*times)


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
