"""A program as text: a line a command, then what the whole takes and why it came out so."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from textwrap import wrap
from typing import Any

from poot_executor.compile.program import Arg, CopyCommand, DispatchCommand, Place, Program, Space
from poot_executor.compile.schedule_picks import KEY, MEASURED, NORM
from poot_executor.graph.graph import Equation
from poot_executor.graph.op_row import OpKind
from poot_executor.graph.ops import op_named
from poot_executor.weights import WeightKey

HEADINGS = ("", "region:kernel", "equations", "groups", "bytes", "ops", "work", "schedule")
WIDTHS = (5, 22, 18, 10, 6, 6, 6, 60)
"""Columns of the table; a cell that is wider is cut and ends in "…". The sum stays within 140."""
_SAID = (KEY, NORM, MEASURED)
RIGHT = frozenset({"", "groups", "bytes", "ops", "work"})


def explain(program: Program) -> str:
    """The program as a table of at most 140 columns, then totals. The text ends in a newline.

    A line gives a command's number, region (and its kernel, where that has another name), the graph's equations it
    computes (as ranges), its groups, the bytes of the buffers it binds (each once), its arithmetic operations (a
    product and its sum count as two), the planner's work, and its schedule. A whole-graph device has no commands: its
    operations are counted instead.
    """
    head = f"{program.graph.name} for {program.target.kind}"
    if not program.commands:
        lines = [f"{head}: {len(program.graph.equations)} equations, lowered by the device", *_operations(program)]
    else:
        sharing = Counter(dispatch.equations for dispatch in program.dispatches)
        rows = [_row(number, command, program, sharing) for number, command in enumerate(program.commands)]
        lines = [head, _line(HEADINGS), *map(_line, rows)]
    return "\n".join(line.rstrip() for line in [*lines, "", *_totals(program)]) + "\n"


def short(count: float) -> str:
    """A count in at most five characters: 999, 1.5k, 12M, 3.1G (powers of 1000)."""
    if count < 1000:
        return str(int(count))
    for unit in "kMGT":
        count /= 1000
        if count < 999.5 or unit == "T":
            return f"{count:.1f}{unit}" if count < 9.95 else f"{count:.0f}{unit}"
    raise AssertionError


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers as runs: 1-3,7."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _row(
    number: int, command: DispatchCommand | CopyCommand, program: Program, sharing: Mapping[tuple[int, ...], int]
) -> tuple[str, ...]:
    if isinstance(command, CopyCommand):
        route = f"{_place(command.source)} -> {_place(command.target)}"
        nbytes = short(command.target.nbytes)
        return (str(number), "copy", "", "", nbytes, "", "", route)
    equations = [program.graph.equations[i] for i in command.equations]
    return (
        str(number),
        _name(command),
        ranges(command.equations),
        "×".join(map(str, command.groups)),
        short(_bound_bytes(command.args)),
        # Several dispatches of one region (a weight in parts) are shown with equal shares.
        short(sum(map(operations, equations)) / sharing[command.equations]),
        short(command.work),
        _schedule(command.schedule),
    )


def _schedule(schedule: Mapping[str, Any]) -> str:
    """The tunables; a measured schedule begins with "measured"."""
    shown = [f"{name}={value}".replace(", ", ",") for name, value in schedule.items() if name not in _SAID]
    return " ".join([MEASURED, *shown] if MEASURED in schedule else shown)


def _name(command: DispatchCommand) -> str:
    name = command.kernel.name
    return name if name == command.region or "+" in command.region else f"{command.region}:{name}"


def _place(place: Place) -> str:
    return f"{place.space.value} {place.key}" if place.key is not None else f"{place.space.value}+{place.offset}"


def _bound_bytes(args: Sequence[Arg]) -> int:
    return sum(place.nbytes for place in dict.fromkeys(arg.place for arg in args))


def operations(equation: Equation) -> int:
    """Arithmetic operations of an equation: two a multiply-add, one an element elsewhere; movement has none."""
    kind = op_named(equation.op).kind
    if kind is OpKind.CONTRACTION:
        return 2 * equation.output.type.count * equation.inputs[0].shape[-1]
    if kind in (OpKind.MOVEMENT, OpKind.SOURCE):
        return 0
    if kind is OpKind.REDUCTION:
        return prod(equation.inputs[0].shape)
    if kind is OpKind.INDEXED and equation.op != "packed_dequant":
        return 0
    return equation.output.type.count


def _line(cells: Sequence[str]) -> str:
    fitted = []
    for heading, width, cell in zip(HEADINGS, WIDTHS, cells, strict=True):
        cut = cell if len(cell) <= width else cell[: width - 1] + "…"
        fitted.append(cut.rjust(width) if heading in RIGHT else cut.ljust(width))
    return " ".join(fitted)


def _operations(program: Program) -> list[str]:
    counts = Counter(equation.op for equation in program.graph.equations)
    return [f"{count:>7} {name}" for name, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))]


def _totals(program: Program) -> list[str]:
    dispatches = program.dispatches
    kernels = len({dispatch.kernel for dispatch in dispatches})
    copies = len(program.commands) - len(dispatches)
    floor = program.arena_floor
    above = f", {100 * (program.arena_bytes / floor - 1):.1f}% above its floor of {floor:,}" if floor else ""
    weights = {use.key: use.layout.nbytes for use in program.weights}
    totals = [
        ("equations", f"{len(program.graph.equations):,}"),
        ("dispatches", f"{len(dispatches):,} of {kernels:,} kernels, {_a_layer(program)}and {copies:,} copies"),
        ("arena", f"{program.arena_bytes:,} bytes{above}"),
        ("weights", f"{len(weights):,}, {sum(weights.values()):,} bytes as laid out; one of two roles counts twice"),
        ("states", f"{len(program.states):,}, {sum(use.type.nbytes for use in program.states):,} bytes"),
        ("constants", f"{len(program.constants):,} bytes"),
        ("blocks", f"{program.input_bytes:,} bytes of inputs, {program.output_bytes:,} of outputs and checks"),
        ("passes", ", ".join(program.passes) or "none changed anything"),
        ("schedules", _picked(program)),
        *_declines(program),
    ]
    return [line for name, text in totals for line in wrap(f"{name:<12} {text}", 140, subsequent_indent=" " * 13)]


def _picked(program: Program) -> str:
    """How many dispatches have a schedule that was measured, and which; the rest have the heuristic's."""
    chosen = [d for d in program.dispatches if KEY in d.schedule]
    measured = {d.schedule[KEY]: d.schedule[MEASURED] for d in chosen if MEASURED in d.schedule}
    count = sum(MEASURED in d.schedule for d in chosen)
    said = "; ".join(
        f"{key}: {' '.join(f'{name}={value}' for name, value in pick.items())}" for key, pick in measured.items()
    )
    return f"{len(chosen) - count} dispatches by heuristic, {count} as measured" + (f" ({said})" if said else "")


def _a_layer(program: Program) -> str:
    counted = dispatches_per_layer(program)
    return "" if counted is None else f"{counted:g} a layer, "


def dispatches_per_layer(program: Program) -> float | None:
    """Dispatches between the first weights of the first and the last layer, by layer; None below two layers."""
    first: dict[int, int] = {}
    for number, dispatch in enumerate(program.dispatches):
        for arg in dispatch.args:
            key = arg.place.key
            if arg.place.space is Space.WEIGHT and isinstance(key, WeightKey) and key.layer is not None:
                first.setdefault(key.layer, number)
    if len(first) < 2:
        return None
    low, high = min(first), max(first)
    return (first[high] - first[low]) / (high - low)


def _declines(program: Program) -> list[tuple[str, str]]:
    """Reasons why a fusion did not fire, the most frequent first; those that differ in a value alone are one."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], int] = {}
    for decline in program.declines:
        key = (decline.matcher, re.sub(r"%\d+", "a value", decline.reason))
        counts[key] += 1
        first[key] = min(decline.equation, first.get(key, decline.equation))
    return [
        ("declined", f"{count}× {matcher}: {reason} (first at equation {first[matcher, reason]})")
        for (matcher, reason), count in counts.most_common()
    ]


__all__ = ["dispatches_per_layer", "explain", "operations", "ranges", "short"]
