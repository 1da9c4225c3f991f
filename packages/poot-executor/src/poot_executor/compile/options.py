"""What a compilation may be told, and the finite limits that it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from poot_executor.compile.schedule_picks import Schedules

if TYPE_CHECKING:
    from poot_executor.compile.lower.reuse import SharedKernels
    from poot_executor.compile.program_cache import ProgramCache


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Finite bounds of one program; exceeding one is CompileLimit with its name. Bytes where the name says so."""

    equations: int = 200_000
    dispatches: int = 20_000
    constant_bytes: int = 256 << 20
    arena_bytes: int = 16 << 30
    expression_operations: int = 4_096


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`verify` checks the graph after every pass and every kernel after every kernel pass. `dump` writes each pass's
    graph there.

    `deterministic` restricts schedules to batch-invariant ones: the order in which a row is reduced depends neither on
    the number of rows nor on the neighbours. `cache` is where programs are found and kept; with `verify` or `dump` it
    is passed over, since both want the passes to run. `schedules` are picks that were measured; of a deterministic
    program's, those that would change the order of a sum are passed over. `shared` are kernels that other compilations
    made, to which this one adds its own: what comes of it is the same with and without. `processes` compile several
    graphs at most; None: as many as there are processors, within a bound, where the graphs are many and large.
    """

    verify: bool = False
    deterministic: bool = False
    dump: Path | None = None
    limits: CompileLimits = field(default_factory=CompileLimits)
    schedules: Schedules = field(default_factory=Schedules)
    cache: ProgramCache | None = field(default=None, compare=False)
    shared: SharedKernels | None = field(default=None, compare=False, repr=False)
    processes: int | None = field(default=None, compare=False)
