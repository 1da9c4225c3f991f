"""Running a kernel: waves that stand at one place run together, and every wave gets its turn.

The hardware runs waves in any order between barriers. Orders other than `TOGETHER` run one wave
after another up to each barrier, from the first to the last or from the last to the first: what a
missing barrier lets slip shows in one of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.code_object import Descriptor
from poot_eval.gfx11.faults import TrapFault
from poot_eval.gfx11.launch import Dispatch, start_waves
from poot_eval.gfx11.local_races import LocalRaces
from poot_eval.gfx11.memory import AddressSpace
from poot_eval.gfx11.operands import EXEC, VCC
from poot_eval.gfx11.program import Program, Run
from poot_eval.gfx11.reach import Reach
from poot_eval.gfx11.waits import check_waits
from poot_eval.gfx11.waves import Waves
from poot_eval.kernel_values import POISON_BITS
from poot_executor.errors import DeviceTimeout

Array = NDArray[Any]

CHUNK_BYTES = 24 << 20
"""Bound on the vector registers and memory of the waves that run at once: past this they leave a processor's cache."""

_TURN = 64
"""Every so many runs the wave that waited longest goes first, so that one that spins cannot keep the others out."""


class Order(Enum):
    """How waves take turns."""

    TOGETHER = "together"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Work:
    """What a dispatch took: instructions that waves executed, and runs of them that shared their overhead."""

    instructions: int
    runs: int


def run_dispatch(
    program: Program,
    name: str,
    dispatch: Dispatch,
    space: AddressSpace,
    *,
    code: int = 0,
    order: Order = Order.TOGETHER,
    races: bool = False,
    waits: bool = True,
    timeout: float | None = None,
) -> Work:
    """Run a kernel over memory, which it changes. `code` is where the code object lies in it.

    Raises MemoryFault, TrapFault, InstructionRefused, with `waits` WaitFault before anything runs,
    with `races` RaceError for local memory, and DeviceTimeout after `timeout` seconds.
    """
    kernel = program.code_object.kernel(name)
    dispatch.check(kernel)
    decoded = program.code(name)
    if waits:
        check_waits(name, decoded.instructions, kernel.entry)
    deadline = None if timeout is None else time.monotonic() + timeout
    chunk = _chunk_groups(kernel, dispatch)
    instructions = runs = 0
    with np.errstate(all="ignore"):
        for first in range(0, dispatch.group_count, chunk):
            groups = min(chunk, dispatch.group_count - first)
            reach = _reach(kernel, dispatch, space, groups, code, races)
            waves = start_waves(kernel, dispatch, first, groups, reach)
            machine = _Machine(kernel.name, waves, decoded.runs, first, order, deadline, timeout or 0.0)
            machine.finish()
            instructions += machine.instructions
            runs += machine.runs_done
    return Work(instructions, runs)


def _chunk_groups(kernel: Descriptor, dispatch: Dispatch) -> int:
    waves = -(-dispatch.group_size // kernel.wave)
    each = waves * kernel.wave * (4 * kernel.vector_registers + kernel.private) + kernel.lds + dispatch.local
    return max(1, CHUNK_BYTES // each)


def _reach(kernel: Descriptor, dispatch: Dispatch, space: AddressSpace, groups: int, code: int, races: bool) -> Reach:
    per_group = -(-dispatch.group_size // kernel.wave)
    size = kernel.lds + dispatch.local
    group = np.repeat(np.arange(groups), per_group)
    tracked = LocalRaces(kernel.name, groups * size, size, group, groups) if races and size else None
    lanes = groups * per_group * kernel.wave
    return Reach(
        kernel.name, code, space, _pattern(groups * size), size, _pattern(lanes * kernel.private), kernel.private,
        group, kernel.wave, tracked,
    )  # fmt: skip


def _pattern(size: int) -> NDArray[np.uint8]:
    """Memory that nobody has written."""
    return np.full(-(-size // 4), POISON_BITS, np.uint32).view(np.uint8)


class _Machine:
    """The waves of some groups, until all of them have ended."""

    def __init__(
        self,
        kernel: str,
        waves: Waves,
        runs: Any,
        first: int,
        order: Order,
        deadline: float | None,
        timeout: float,
    ) -> None:
        self.kernel, self.waves, self.runs, self.first, self.order = kernel, waves, runs, first, order
        self.deadline, self.timeout = deadline, timeout
        self.done = np.zeros(waves.waves, np.bool_)
        self.waiting = np.zeros(waves.waves, np.bool_)
        self.turn = np.zeros(waves.waves, np.int64)
        self.current = -1
        self.instructions = self.runs_done = 0

    def finish(self) -> None:
        """Run everything."""
        while True:
            rows = self._next()
            if rows is None:
                return
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise DeviceTimeout(f"kernel {self.kernel}", self.timeout)
            waves = self.waves
            run: Run = self.runs[int(waves.pc[rows[0]])]
            waves.select(None if rows.size == waves.waves else rows)
            for step in run.steps:
                step(waves)
            self._go_on(run, rows)
            self.runs_done += 1
            self.turn[rows] = self.runs_done
            self.instructions += rows.size * (len(run.steps) + (run.last is not None))

    def _next(self) -> Array | None:
        """The waves that run next; None where all have ended."""
        ready = np.flatnonzero(~(self.done | self.waiting))
        if not ready.size:
            return None
        if self.order is not Order.TOGETHER:
            if self.current < 0 or self.done[self.current] or self.waiting[self.current]:
                self.current = int(ready[0] if self.order is Order.FORWARD else ready[-1])
            return np.array([self.current])
        pc = self.waves.pc[ready]
        if self.runs_done % _TURN == _TURN - 1:
            chosen = ready[self.turn[ready].argmin()]
            together = ready[pc == self.waves.pc[chosen]]
        else:
            together = ready[pc == pc.min()]
        modes = self.waves.modes[together]
        return together if (modes == modes[0]).all() else together[modes == modes[0]]

    def _go_on(self, run: Run, rows: Array) -> None:
        waves, last = self.waves, run.last
        if last is None:
            waves.pc[rows] = run.after
            return
        match last.mnemonic:
            case "s_endpgm" | "s_endpgm_saved":
                self.done[rows] = True
                self._release(rows)
            case "s_trap":
                group = self.first + int(waves.reach.group[rows[0]])
                raise TrapFault(self.kernel, int(last.operands[0], 0), group, last.address)
            case "s_barrier":
                waves.pc[rows] = run.after
                self.waiting[rows] = True
                self._release(rows)
            case _:
                taken = self._taken(last.mnemonic)
                waves.pc[rows] = np.where(taken, run.target, run.after)

    def _taken(self, jump: str) -> Any:
        waves = self.waves
        match jump:
            case "s_branch":
                return True
            case "s_cbranch_scc0":
                return ~waves.get_scc()
            case "s_cbranch_scc1":
                return waves.get_scc()
        index = EXEC if "exec" in jump else VCC
        some = waves.lane_mask(index).any(axis=1)
        return some if jump.endswith("nz") else ~some

    def _release(self, rows: Array) -> None:
        """Let groups go on whose waves have all come to the barrier, or ended."""
        group = self.waves.reach.group
        missing = np.zeros(int(group[-1]) + 1, np.bool_)
        missing[group[~(self.done | self.waiting)]] = True
        free = self.waiting & ~missing[group]
        if free.any():
            self.waiting[free] = False
            if self.waves.reach.races is not None:
                self.waves.reach.races.epoch[np.unique(group[free])] += 1
