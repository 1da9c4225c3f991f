"""Which contractions run on the NPU, and the order of a step: host work as long as there is some, then one run list of
everything that waits for the NPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.weights import WeightKey
from poot_npu.xdna.kernels import Shape

Covers = Callable[[Shape], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """An equation and the values that nothing needs after it."""

    equation: Equation
    dead: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Work of one place: on the host one after another, on the NPU one run list."""

    on_npu: bool
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """`stages` in order. `fixed` are the values that depend on weights and constants alone: a covered contraction's
    second operand, computed when the step is lowered and not again."""

    stages: tuple[Stage, ...]
    fixed: frozenset[Value]


def plan(graph: Graph, covers: Covers) -> Plan:
    """The stages of a graph. What only feeds the weights of covered contractions is in none of them."""
    fixed = fixed_values(graph)
    operands: dict[Value, tuple[Value, ...]] = {}
    npu: set[Value] = set()
    for equation in graph.equations:
        shape = contraction_shape(equation, fixed)
        covered = shape is not None and covers(shape)
        operands[equation.output] = equation.inputs[:1] if covered else equation.inputs
        if covered:
            npu.add(equation.output)
    stages = _order(graph, fixed - set(graph.roots()), operands, npu)
    return Plan(_with_deaths(graph, stages, operands), fixed)


def contraction_shape(equation: Equation, fixed: frozenset[Value]) -> Shape | None:
    """The shape of a matmul of step values [tokens, inner] by weights [inner, outputs]; None for anything else."""
    if equation.op != "matmul":
        return None
    a, b = equation.inputs
    if len(a.shape) != 2 or len(b.shape) != 2 or b not in fixed or a in fixed:
        return None
    return (a.shape[0], b.shape[0], b.shape[1])


def fixed_values(graph: Graph) -> frozenset[Value]:
    """Values that are the same in every step."""
    fixed = {entry.value for entry in graph.inputs if isinstance(entry.key, WeightKey) or entry.data is not None}
    for equation in graph.equations:
        if equation.inputs and all(value in fixed for value in equation.inputs):
            fixed.add(equation.output)
    return frozenset(fixed)


def chain(value: Value, makers: Mapping[Value, Equation], there: set[Value]) -> list[Equation]:
    """The equations that give a value, operands first, without those of values that are there."""
    found: list[Equation] = []
    seen = set(there)
    pending = [value]
    while pending:
        head = pending[-1]
        if head in seen:
            pending.pop()
            continue
        equation = makers[head]
        lacking = [operand for operand in equation.inputs if operand not in seen]
        if lacking:
            pending += lacking
        else:
            found.append(equation)
            seen.add(head)
            pending.pop()
    return found


def _order(
    graph: Graph, inline: frozenset[Value], operands: Mapping[Value, tuple[Value, ...]], npu: set[Value]
) -> list[tuple[bool, list[Equation]]]:
    """Equations by stages. A value of `inline` is computed wherever it is used: decoded weights are not kept."""
    makers = {equation.output: equation for equation in graph.equations}
    needed, waiting = set(graph.roots()), []
    for equation in reversed(graph.equations):
        if equation.output in needed and equation.output not in inline:
            waiting.append(equation)
            needed.update(operands[equation.output])
    waiting.reverse()
    inputs = {entry.value for entry in graph.inputs}
    done = inputs | inline
    stages: list[tuple[bool, list[Equation]]] = []
    while waiting:
        host: list[Equation] = []
        rest: list[Equation] = []
        for equation in waiting:
            ready = all(value in done for value in operands[equation.output])
            if equation.output in npu or not ready:
                rest.append(equation)
                continue
            there = set(inputs)
            for value in operands[equation.output]:
                if value in inline and value not in there:
                    made = chain(value, makers, there)
                    host += made
                    there.update(e.output for e in made)
            host.append(equation)
            done.add(equation.output)
        runs = [e for e in rest if e.output in npu and all(value in done for value in operands[e.output])]
        done.update(e.output for e in runs)
        stages += [(on, found) for on, found in ((False, host), (True, runs)) if found]
        waiting = [e for e in rest if e.output not in done]
    return stages


def _with_deaths(
    graph: Graph, stages: list[tuple[bool, list[Equation]]], operands: Mapping[Value, tuple[Value, ...]]
) -> tuple[Stage, ...]:
    later = set(graph.roots())
    made: list[Stage] = []
    for on, equations in reversed(stages):
        works: list[Work] = []
        for equation in reversed(equations):
            values = dict.fromkeys((*operands[equation.output], equation.output))
            works.append(Work(equation, tuple(value for value in values if value not in later)))
            later.discard(equation.output)  # before it is made there is none, or an earlier one of its own
            later.update(operands[equation.output])
        made.append(Stage(on, tuple(works[::-1])))
    return tuple(made[::-1])
