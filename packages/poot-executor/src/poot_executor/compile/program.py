"""A compiled step: the optimized graph, its commands, where every buffer lies, and why it came out so. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from poot_executor.compile.target import Target
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, StateKey
from poot_executor.kernel.ir import Kernel
from poot_executor.layout import WeightLayout
from poot_executor.weights import WeightKey


class Space(Enum):
    """What a place lies in. WEIGHT and STATE places have a key; the others are one block of the executable or entry."""

    WEIGHT = "weight"
    STATE = "state"
    INPUT = "input"
    CONSTANT = "constant"
    ARENA = "arena"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes [offset, offset + nbytes) of a space."""

    space: Space
    offset: int
    nbytes: int
    key: WeightKey | StateKey | None = None


@dataclass(frozen=True, slots=True)
class Arg:
    """A kernel's argument: a place and its element count in the parameter's dtype."""

    place: Place
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class DispatchCommand:
    """Run a kernel over `groups`. `work` is the planner's weight (bytes moved plus a fixed cost); `equations` are
    indices in the graph.

    `region` names the template ("pointwise", "row_reduction", "contraction" …; of several that are launched as one,
    each: "argmax+pointwise") and `schedule` its tunables, for `explain`.
    """

    kernel: Kernel
    args: tuple[Arg, ...]
    groups: tuple[int, int, int]
    work: int
    region: str
    equations: tuple[int, ...] = ()
    schedule: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CopyCommand:
    """Copy `source` to `target`, of equal size; they do not overlap."""

    source: Place
    target: Place


Command = DispatchCommand | CopyCommand


@dataclass(frozen=True, slots=True)
class WeightUse:
    """A weight that the program reads: its key, the type and format that the graph names, and the layout its kernels
    expect."""

    key: WeightKey
    type: TensorType
    layout: WeightLayout


@dataclass(frozen=True, slots=True)
class StateUse:
    """A state buffer: its key and type. Zero-filled when first allocated and by `reset_state`."""

    key: StateKey
    type: TensorType


@dataclass(frozen=True, slots=True)
class SlotField:
    """A per-step input within the input block."""

    key: SlotKey
    type: TensorType
    offset: int


@dataclass(frozen=True, slots=True)
class OutputField:
    """A named output within the output block."""

    name: str
    type: TensorType
    offset: int


@dataclass(frozen=True, slots=True)
class Decline:
    """A fusion or template that did not fire: which, at which equation, and the reason."""

    matcher: str
    equation: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What `compile` returns.

    `graph` is the optimized one. `commands` is empty for a whole-graph device, which lowers `graph` itself. `checks`
    are the byte offsets in the output block of the graph's checks. `constants` are the bytes of the CONSTANT space.
    `arena_floor` is the lower bound that liveness allows for `arena_bytes`.
    """

    graph: Graph
    target: Target
    commands: tuple[Command, ...]
    weights: tuple[WeightUse, ...]
    states: tuple[StateUse, ...]
    slots: tuple[SlotField, ...]
    input_bytes: int
    outputs: tuple[OutputField, ...]
    checks: tuple[int, ...]
    output_bytes: int
    constants: bytes
    arena_bytes: int
    arena_floor: int
    passes: tuple[str, ...] = ()
    declines: tuple[Decline, ...] = ()

    @property
    def dispatches(self) -> tuple[DispatchCommand, ...]:
        """The commands that run kernels, in order."""
        return tuple(c for c in self.commands if isinstance(c, DispatchCommand))

    def explain(self) -> str:
        """The program as a table: each dispatch, its equations, kernel, schedule, groups, bytes and work."""
        from poot_executor.compile.explain import explain

        return explain(self)


class StoredProgram(Program):
    """A program whose graph is read when it is first asked for: running it on a device with kernels needs none."""

    _read: list[Graph | Callable[[], Graph]]

    def __init__(self, graph: Graph | Callable[[], Graph], **rest: Any) -> None:
        """`rest` are the other fields of a Program, all of them."""
        assert rest.keys() == {f.name for f in fields(Program)} - {"graph"}
        for name, value in (*rest.items(), ("_read", [graph])):
            object.__setattr__(self, name, value)

    @property
    def graph(self) -> Graph:  # pyrefly: ignore[bad-override]
        """The optimized graph, read at the first call."""
        found = self._read[0]
        if not isinstance(found, Graph):
            found = self._read[0] = found()
        return found
