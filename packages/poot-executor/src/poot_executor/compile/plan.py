"""From ordered units to a program: places for every value, commands with their arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from poot_executor.compile.lower.draft import Draft, Operand
from poot_executor.compile.memory import Block, Span, align, plan_arena
from poot_executor.compile.order import Ordered
from poot_executor.compile.program import (
    Arg,
    Command,
    CopyCommand,
    DispatchCommand,
    OutputField,
    Place,
    SlotField,
    Space,
    StateUse,
    WeightUse,
)  # fmt: skip
from poot_executor.compile.target import Caps
from poot_executor.compile.unit import Unit
from poot_executor.dtype import to_bytes
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Graph, Input, Value
from poot_executor.graph.keys import SlotKey, StateKey, Storage
from poot_executor.kernel.ir import Kernel
from poot_executor.layout import WeightLayout
from poot_executor.weights import WeightKey


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The blocks that a program shares with its caller: slots in the input block, outputs and checks in the output
    block."""

    slots: tuple[SlotField, ...]
    input_bytes: int
    outputs: tuple[OutputField, ...]
    checks: tuple[int, ...]
    output_bytes: int


def make_schema(graph: Graph, alignment: int) -> Schema:
    """Fields at offsets that a kernel can bind."""
    inputs, outputs = Block(alignment), Block(alignment)
    slots = tuple(
        SlotField(i.key, i.value.type, inputs.add(i.value.type.nbytes))
        for i in graph.inputs
        if isinstance(i.key, SlotKey)
    )
    named = tuple(OutputField(name, v.type, outputs.add(v.type.nbytes)) for name, v in graph.outputs.items())
    checks = tuple(outputs.add(4) for _ in graph.checks)
    return Schema(slots, inputs.nbytes, named, checks, outputs.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What memory planning adds to a program."""

    commands: tuple[Command, ...]
    weights: tuple[WeightUse, ...]
    states: tuple[StateUse, ...]
    constants: bytes
    arena_bytes: int
    arena_floor: int


@dataclass(slots=True)
class Planner:
    """Places values and writes commands. One use. With `keep` nothing in the arena takes the place of anything else, so
    that every intermediate is still there after the step."""

    graph: Graph
    ordered: Ordered
    layouts: Mapping[Value, WeightLayout]
    schema: Schema
    caps: Caps
    optimize: Callable[[Kernel], Kernel]
    keep: bool = False
    launched: dict[tuple[Kernel, tuple[int, ...], tuple[int, int, int]], Kernel] = field(default_factory=dict)
    places: dict[Value, Place] = field(default_factory=dict)
    constants: bytearray = field(default_factory=bytearray)
    firsts: list[CopyCommand] = field(default_factory=list)
    finals: list[CopyCommand] = field(default_factory=list)
    position: dict[Value, int] = field(default_factory=dict)

    def run(self) -> Plan:
        """Place inputs, results and the rest, then write the commands in order."""
        self.position = {e.output: i for i, e in enumerate(self.graph.equations)}
        self._place_inputs()
        self._place_results()
        arena_bytes, floor = self._place_arena()
        # Inputs are copied before the first unit: a state that is an output is the one before the step.
        commands: list[Command] = [*self.firsts, *self._copied_outputs(inputs=True)]
        for unit in self.ordered.units:
            commands.extend(self._commands(unit))
        # A state may hold a version that is an output when its next value, which lies elsewhere, is copied there.
        commands.extend(self._copied_outputs(inputs=False))
        commands.extend(self.finals)
        weights = tuple(
            WeightUse(i.key, i.value.type, self.layouts[i.value])
            for i in self.graph.inputs
            if isinstance(i.key, WeightKey)
        )
        states = tuple(StateUse(i.key, i.value.type) for i in self.graph.inputs if isinstance(i.key, StateKey))
        return Plan(tuple(commands), weights, states, bytes(self.constants), arena_bytes, floor)

    def _place_inputs(self) -> None:
        slots = {f.key: f for f in self.schema.slots}
        used = {v for unit in self.ordered.units for v in unit.touches} | set(self.graph.roots())
        for entry in self.graph.inputs:
            value = entry.value
            if isinstance(entry.key, SlotKey):
                if value in used:
                    self._fits(value)
                self.places[value] = Place(Space.INPUT, slots[entry.key].offset, align(value.type.nbytes, 4))
            elif isinstance(entry.key, StateKey):
                self._fits(value)
                self.places[value] = Place(Space.STATE, 0, align(value.type.nbytes, 4), entry.key)
            elif entry.storage is Storage.COMPUTED and value in used:
                self.places[value] = self._constant(entry)

    def _constant(self, entry: Input) -> Place:
        assert entry.data is not None
        data = to_bytes(entry.data, entry.value.dtype)
        self.constants.extend(bytes(-len(self.constants) % self.caps.offset_alignment))
        place = Place(Space.CONSTANT, len(self.constants), align(len(data), 4))
        self.constants.extend(data + bytes(-len(data) % 4))
        return place

    def _place_results(self) -> None:
        """States in place, then outputs and checks straight into the output block."""
        made = [root for unit in self.ordered.units for root in unit.roots]
        for root, state in self.ordered.direct.items():
            self.places[root] = self.places[state]
        offsets = [(f.offset, self.graph.outputs[f.name]) for f in self.schema.outputs]
        offsets += list(zip(self.schema.checks, self.graph.checks, strict=True))
        stored = set(made)
        for offset, value in offsets:
            if value in stored and value not in self.places and value not in self.ordered.in_place:
                self.places[value] = Place(Space.OUTPUT, offset, align(value.type.nbytes, 4))

    def _place_arena(self) -> tuple[int, int]:
        """Everything else by lifetime. A value updated in place shares the buffer of its first version."""
        owner: dict[Value, Value] = {}
        for root in (root for unit in self.ordered.units for root in unit.roots):
            old = self.ordered.in_place.get(root)
            owner[root] = root if old is None else owner.get(old, old)
        lives: dict[Value, list[int]] = {}
        end = len(self.ordered.units)
        for at, unit in enumerate(self.ordered.units):
            for value in (*unit.roots, *unit.touches):
                first = owner.get(value, value)
                if first not in self.places:
                    lives.setdefault(first, []).append(at)
        for value in (*self.graph.outputs.values(), *self.graph.checks, *(root for root, _ in self.ordered.late)):
            first = owner.get(value, value)
            if first in lives:
                lives[first].append(end)
        values = [v for v in lives if v not in self.layouts]
        staged = sorted(self.ordered.staged, key=lambda v: v.id)
        if self.keep:
            lives = {v: [0, end] for v in lives}
        spans = [Span(v.type.nbytes, min(lives[v]), max(lives[v])) for v in values]
        spans += [Span(v.type.nbytes, 0, end) for v in staged]
        plan = plan_arena(spans, self.caps.offset_alignment)
        offsets = list(plan.offsets)
        for value, offset in zip(values, offsets, strict=False):
            self._fits(value)
            self.places[value] = Place(Space.ARENA, offset, align(value.type.nbytes, 4))
        for root, first in owner.items():
            self.places.setdefault(root, self.places[first])
        kept = {
            v: Place(Space.ARENA, offset, self.places[v].nbytes)
            for v, offset in zip(staged, offsets[len(values) :], strict=True)
        }
        self.firsts = [CopyCommand(self.places[v], place) for v, place in kept.items()]
        for root, state in self.ordered.late:
            self._refuse_weight(root, "state")
            self.finals.append(CopyCommand(kept.get(root, self.places[root]), self.places[state]))
        return plan.nbytes, plan.floor

    def _fits(self, value: Value) -> None:
        limit = self.caps.max_binding_bytes
        if limit is not None and value.type.nbytes > limit:
            raise Unsupported(
                f"tensor {value.type}", f"it takes {value.type.nbytes:,} bytes, over the binding limit of {limit:,}"
            )

    def _commands(self, unit: Unit) -> list[Command]:
        commands: list[Command] = []
        for root, old in unit.updates.items():
            if root in self.ordered.copied:
                self._refuse_weight(old, "data of the update")
                commands.append(CopyCommand(self.places[old], self.places[root]))
        equations = sorted(self.position[v] for v in self._covered(unit) if v in self.position)
        for draft in unit.drafts:
            args = tuple(self._arg(draft, operand) for operand in draft.operands)
            commands.append(
                DispatchCommand(
                    self._kernel(draft, args),
                    args,
                    draft.groups,
                    draft.work,
                    unit.kind,
                    tuple(equations),
                    draft.schedule,
                )
            )
        return commands

    def _kernel(self, draft: Draft, args: tuple[Arg, ...]) -> Kernel:
        """The kernel with what its launches have in common: equal regions bind as much over equal grids."""
        key = (draft.kernel, tuple(arg.count for arg in args), draft.groups)
        if key not in self.launched:
            self.launched[key] = self.optimize(draft.kernel).launched(key[1], draft.groups)
        return self.launched[key]

    def _covered(self, unit: Unit) -> set[Value]:
        """The values whose equations the unit computes."""
        covered: set[Value] = set()
        stack = [root for region in unit.regions for root in region.roots]
        while stack:
            value = stack.pop()
            equation = self.graph.equation(value)
            if value not in covered and value not in unit.reads and equation is not None:
                covered.add(value)
                stack.extend(v for v in equation.inputs if v not in self.places)
        return covered

    def _arg(self, draft: Draft, operand: Operand) -> Arg:
        value = operand.value
        layout = self.layouts.get(value)
        if layout is None:
            place = self.places[value]
            return Arg(place, place.nbytes // 4 if value.dtype.size < 4 else value.type.count)
        part = layout.parts[operand.part or 0]
        key = self.graph.input(value)
        assert key is not None and isinstance(key.key, WeightKey)
        return Arg(Place(Space.WEIGHT, part.offset, part.nbytes, key.key), part.nbytes // 4)

    def _copied_outputs(self, *, inputs: bool) -> list[CopyCommand]:
        """Outputs and checks that lie elsewhere: an input (asked for apart), a next state, a value of two names."""
        offsets = [(f.offset, self.graph.outputs[f.name]) for f in self.schema.outputs]
        offsets += list(zip(self.schema.checks, self.graph.checks, strict=True))
        copies: list[CopyCommand] = []
        for offset, value in offsets:
            self._refuse_weight(value, "output")
            target = Place(Space.OUTPUT, offset, align(value.type.nbytes, 4))
            if isinstance(self.graph.definition(value), Input) is inputs and self.places[value] != target:
                copies.append(CopyCommand(self.places[value], target))
        return copies

    def _refuse_weight(self, value: Value, role: str) -> None:
        if value in self.layouts:
            key = self.graph.input(value)
            raise Unsupported(
                f"{role} {value}: {value.type}",
                f"weight {key.key if key else ''} lies in a layout of its own: compute a value from it",
            )
