"""What holds for every program that was planned, asked of one that was read from disk before anything runs it."""

from __future__ import annotations

from poot_executor.compile.memory import align
from poot_executor.compile.program import Arg, CopyCommand, DispatchCommand, Place, Program, Space
from poot_executor.compile.records import RecordError
from poot_executor.compile.target import Caps, Granularity
from poot_executor.graph.graph import Graph, Value
from poot_executor.graph.keys import InputKey, StateKey
from poot_executor.kernel.ir import Access
from poot_executor.weights import WeightKey


def check_program(program: Program, graph: Graph) -> None:
    """Raise RecordError unless the program fits the graph it is of, and each command its target, kernel and buffers.

    Checked: weights, states, slots and outputs are the graph's, of its types; every place lies within its space; a
    kernel gets as many buffers as it has parameters, of the least counts that it relies on, and writes to none that
    may only be read; grids, group sizes and bindings are within the caps.
    """
    _interface(program, graph)
    spaces = _Spaces(program)
    if program.target.caps.granularity is Granularity.GRAPH and program.commands:
        raise RecordError("a whole-graph device has no commands")
    for command in program.commands:
        if isinstance(command, CopyCommand):
            if command.source.nbytes != command.target.nbytes:
                raise RecordError("a copy between places of two sizes")
            spaces.check(command.source)
            spaces.check(command.target)
            _writable(command.target)
        else:
            _dispatch(command, program.target.caps, spaces)


def _interface(program: Program, graph: Graph) -> None:
    weights: dict[InputKey, Value] = {**graph.weights()}
    slots: dict[InputKey, Value] = {**graph.slots()}
    states: dict[InputKey, Value] = {pair.key: pair.before for pair in graph.state}
    for what, uses, known in (
        ("weight", program.weights, weights), ("state", program.states, states), ("slot", program.slots, slots)
    ):  # fmt: skip
        for use in uses:
            value = known.get(use.key)
            if value is None or value.type != use.type:
                raise RecordError(f"{what} {use.key} is not the graph's")
        if len({use.key for use in uses}) != len(uses):
            raise RecordError(f"two {what}s of one key")
    if {use.key for use in program.slots} != slots.keys() or {use.key for use in program.states} != states.keys():
        raise RecordError("a slot or state is missing")
    if [(f.name, f.type) for f in program.outputs] != [(name, v.type) for name, v in graph.outputs.items()]:
        raise RecordError("the outputs are not the graph's")
    if len(program.checks) != len(graph.checks):
        raise RecordError("the checks are not the graph's")
    for offset, nbytes, size in (
        *((f.offset, f.type.nbytes, program.input_bytes) for f in program.slots),
        *((f.offset, f.type.nbytes, program.output_bytes) for f in program.outputs),
        *((offset, 4, program.output_bytes) for offset in program.checks),
    ):
        if not 0 <= offset <= offset + nbytes <= size:
            raise RecordError(f"a field at {offset} of a block of {size:,} bytes")


class _Spaces:
    """How large each space is."""

    def __init__(self, program: Program) -> None:
        self._weights = {use.key: use.layout.nbytes for use in program.weights}
        self._states = {use.key: align(use.type.nbytes, 4) for use in program.states}
        self._blocks = {
            Space.INPUT: program.input_bytes,
            Space.CONSTANT: len(program.constants),
            Space.ARENA: program.arena_bytes,
            Space.OUTPUT: program.output_bytes,
        }
        self._alignment = program.target.caps.offset_alignment

    def check(self, place: Place) -> None:
        """Raise RecordError for a place beyond its space."""
        key = place.key
        if place.space is Space.WEIGHT and isinstance(key, WeightKey):
            size = self._weights.get(key)
        elif place.space is Space.STATE and isinstance(key, StateKey):
            size = self._states.get(key)
        else:
            size = self._blocks.get(place.space) if key is None else None
        if size is None or place.nbytes < 0 or not 0 <= place.offset <= place.offset + place.nbytes <= size:
            raise RecordError(f"{place} lies beyond its space")
        if place.offset % self._alignment:
            raise RecordError(f"{place} starts where no kernel can bind")


def _dispatch(command: DispatchCommand, caps: Caps, spaces: _Spaces) -> None:
    kernel = command.kernel
    if len(command.args) != len(kernel.params) or len(command.args) > caps.max_bindings:
        raise RecordError(f"kernel {kernel.name} with {len(command.args)} buffers")
    most = kernel.groups or caps.max_groups
    within = zip(command.groups, caps.max_groups, most, strict=True)
    if any(not 1 <= n <= min(limit, launched) for n, limit, launched in within):
        raise RecordError(f"kernel {kernel.name} over {command.groups} groups")
    if not 1 <= kernel.group_size <= caps.max_group_size:
        raise RecordError(f"kernel {kernel.name} with {kernel.group_size} threads a group")
    if 4 * sum(array.count for array in kernel.shared) > caps.most_shared_bytes:
        raise RecordError(f"kernel {kernel.name} with more shared memory than there is")
    for param, arg in zip(kernel.params, command.args, strict=True):
        _argument(arg, spaces)
        if param.count is not None and arg.count < param.count:
            raise RecordError(f"{kernel.name}.{param.name} relies on {param.count} elements, not {arg.count}")
        if param.access is not Access.READ:
            _writable(arg.place)


def _argument(arg: Arg, spaces: _Spaces) -> None:
    spaces.check(arg.place)
    if arg.count < 0 or 4 * arg.count > arg.place.nbytes:
        raise RecordError(f"{arg.count} elements in {arg.place}")


def _writable(place: Place) -> None:
    if place.space in (Space.WEIGHT, Space.INPUT, Space.CONSTANT):
        raise RecordError(f"{place} is written")
