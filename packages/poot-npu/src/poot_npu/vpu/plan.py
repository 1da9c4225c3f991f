"""What of a graph is computed where: in which of several models, or on the host between two of them.

Nearly every program is one model. A primitive that OpenVINO does not have, or not exactly, is computed by the host;
what needs its result is in the next model.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.graph.keys import StateKey
from poot_npu.vpu.rewrite import Rewrites
from poot_npu.vpu.table import on_host


@dataclass(frozen=True, slots=True, eq=False)
class RowUpdate:
    """A state of which a step replaces rows: those that `index` names, by `rows`. A negative index drops its row.
    `windowed`: every reader of it in the program reads its window (`window.py`)."""

    key: StateKey
    equation: Equation
    windowed: bool

    @property
    def index(self) -> Value:
        """i32[m]."""
        return self.equation.inputs[1]

    @property
    def rows(self) -> Value:
        """The new rows."""
        return self.equation.inputs[2]


@dataclass(frozen=True, slots=True, eq=False)
class WholeUpdate:
    """A state that a step replaces."""

    key: StateKey
    after: Value


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A model that computes `values`, in order, then equations for the host."""

    values: tuple[Value, ...]
    host: tuple[Equation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The stages in order; the updates of states after the last; and each value's stage."""

    stages: tuple[Stage, ...]
    updates: tuple[RowUpdate | WholeUpdate, ...]
    stage_of: dict[Value, int]
    crossing: tuple[Value, ...]
    """Values that leave the model that computes them: results, and what the host or a later model reads."""


def make_plan(graph: Graph, rewrites: Rewrites, windows: Set[StateKey] = frozenset()) -> Plan:
    """Walk back from what is wanted, then forward by stages. `windows` are the states that attention sweeps."""
    updates = tuple(_updates(graph, windows))
    wanted = [*graph.outputs.values(), *graph.checks]
    for update in updates:
        wanted += [update.index, update.rows] if isinstance(update, RowUpdate) else [update.after]
    needed = _needed(graph, rewrites, wanted)
    stage_of: dict[Value, int] = {}
    by_host: set[Value] = set()
    for equation in graph.equations:
        out = equation.output
        if out not in needed:
            continue
        host = out not in rewrites and on_host(equation)
        stage = 0
        for value in _reads(equation, rewrites):
            if value in stage_of:
                stage = max(stage, stage_of[value] + (value in by_host and not host))
        stage_of[out] = stage
        if host:
            by_host.add(out)
    crossing = dict.fromkeys(v for v in wanted if v not in by_host and v in stage_of)
    for equation in graph.equations:
        out = equation.output
        if out in stage_of:
            for value in _reads(equation, rewrites):
                crosses = out in by_host or stage_of.get(value, 0) < stage_of[out]
                if crosses and value not in by_host and value in stage_of:
                    crossing[value] = None
    count = 1 + max(stage_of.values(), default=0)
    stages = [
        Stage(
            tuple(e.output for e in graph.equations if stage_of.get(e.output) == n and e.output not in by_host),
            tuple(e for e in graph.equations if stage_of.get(e.output) == n and e.output in by_host),
        )
        for n in range(count)
    ]
    return Plan(tuple(stages), updates, stage_of, tuple(crossing))


def _updates(graph: Graph, windows: Set[StateKey]) -> Iterable[RowUpdate | WholeUpdate]:
    for pair in graph.state:
        if pair.before == pair.after:
            continue
        made = graph.equation(pair.after)
        if made is not None and made.op == "scatter_update" and made.inputs[0] == pair.before:
            yield RowUpdate(pair.key, made, pair.key in windows)
        else:
            yield WholeUpdate(pair.key, pair.after)


def _needed(graph: Graph, rewrites: Rewrites, wanted: Iterable[Value]) -> set[Value]:
    needed = set(wanted)
    for equation in reversed(graph.equations):
        if equation.output in needed:
            needed.update(_reads(equation, rewrites))
    return needed


def _reads(equation: Equation, rewrites: Rewrites) -> tuple[Value, ...]:
    rewrite = rewrites.get(equation.output)
    return equation.inputs if rewrite is None else rewrite.inputs
