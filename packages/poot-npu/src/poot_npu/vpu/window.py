"""Windows: a state's first positions as attention reads them, heads first, as many as steps can see.

A window is the truth about its positions while it is there; the state's own memory, in the order of its type, is
brought up to date when anything else reads or writes it. So a step of a long capacity
sweeps, and touches, what was written so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import from_bytes
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_executor.graph.keys import SlotKey
from poot_executor.graph.ops import OPS
from poot_npu.vpu.attention import Attention, upper_bounds
from poot_npu.vpu.memory import Memory

Floats = NDArray[np.float32]
STEP = 128
"""Positions by which windows grow."""
MAX_BOUND_ELEMENTS = 4096


@dataclass(slots=True, eq=False)
class Window:
    """`array` f32[heads, length, width], the first positions of a state f32[positions, heads, width].

    A `scratch` window hides what no token of one step sees, and is given up behind it: the state's own memory stays the
    truth.
    """

    array: Floats
    scratch: bool = False

    @property
    def length(self) -> int:
        """Positions."""
        return self.array.shape[1]


def flush(memory: Memory) -> None:
    """Bring a state's own memory up to date."""
    window = memory.window
    if isinstance(window, Window) and not window.scratch:
        heads, length, width = window.array.shape
        _own(memory, heads, width)[:length] = window.array.transpose(1, 0, 2)


def drop(memory: Memory) -> None:
    """Bring it up to date, and forget the window."""
    flush(memory)
    memory.window = None


def fitted(memory: Memory, heads: int, width: int, length: int, last: int) -> Window:
    """The state's window, of that length; `last` is the last position that the step sees.

    A weight of 0 times what is not finite is not 0. Where the state holds it, what is behind `last` is hidden.
    """
    window = memory.window
    if isinstance(window, Window) and memory.finite and window.array.shape == (heads, length, width):
        return window
    flush(memory)
    array = np.empty((heads, length, width), np.float32)
    kept = 0
    if isinstance(window, Window):
        kept = min(window.length, length)
        array[:, :kept] = window.array[:, :kept]
    if kept < length:
        array[:, kept:] = _own(memory, heads, width)[kept:length].transpose(1, 0, 2)
        memory.finite = memory.finite and bool(np.isfinite(array[:, kept:]).all())
    if not memory.finite:
        array[:, last + 1 :] = 0
    memory.window = Window(array, not memory.finite)
    return memory.window


def put(memory: Memory, places: list[int], rows: Floats) -> None:
    """Write rows f32[m, heads, width] at positions; a negative one drops its row."""
    window = memory.window
    m, heads, width = rows.shape
    if isinstance(window, Window) and not window.scratch and max(places) < window.length:
        target = window.array
        if m == 1:
            if places[0] >= 0:
                target[:, places[0]] = rows[0]
            return
        kept = [n for n, place in enumerate(places) if place >= 0]
        target[:, [places[n] for n in kept]] = rows[kept].transpose(1, 0, 2)
        return
    drop(memory)
    own = _own(memory, heads, width)
    for place, row in zip(places, rows, strict=True):
        if place >= 0:
            own[place] = row


def _own(memory: Memory, heads: int, width: int) -> Floats:
    """A state's own memory, f32[positions, heads, width]."""
    size = 4 * heads * width
    return memory.data[: memory.data.size // size * size].view(np.float32).reshape(-1, heads, width)


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """How many positions a step must sweep: more than any token sees, from the bounds of its masks.

    `bounds` are i32 values of which the greatest is the last position that is seen; `equations` compute them of slots.
    """

    capacity: int
    bounds: tuple[Value, ...]
    equations: tuple[Equation, ...]
    given: dict[Value, Callable[[], Any]] = field(default_factory=dict)

    def length(self) -> tuple[int, int]:
        """(positions, the last that is seen): a multiple of STEP or all. All too where some token sees none, since
        softmax then weighs all alike."""
        every = self.capacity, self.capacity - 1
        if not self.bounds:
            return every
        values = {value: read() for value, read in self.given.items()}
        for equation in self.equations:
            operands = [values[v] for v in equation.inputs]
            values[equation.output] = OPS[equation.op].evaluate(operands, equation.params, equation.output.type)
        last = max(int(values[bound].max()) for bound in self.bounds)
        if min(int(values[bound].min()) for bound in self.bounds) < 0:
            return every
        return min(-(-(last + 1) // STEP) * STEP, self.capacity), last


def sweep_of(graph: Graph, attentions: Iterable[Attention], slot: Callable[[SlotKey], NDArray[np.uint8]]) -> Sweep:
    """The sweep of a step with these attentions; all positions where a mask has no upper bound of slots alone."""
    capacity, bounds = 0, []
    for found in attentions:
        capacity = max(capacity, found.capacity)
        mine = [upper_bounds(graph, condition)[:1] for condition in (found.mask, found.seen)]
        if not all(mine):
            return Sweep(max(a.capacity for a in attentions), (), ())
        bounds += [bound for one in mine for bound in one]
    distinct = tuple(dict.fromkeys(bounds))
    needed, equations, given = set(distinct), [], {}
    for equation in reversed(graph.equations):
        if equation.output in needed:
            equations.append(equation)
            needed.update(equation.inputs)
    for value in needed:
        found = graph.definition(value)
        if isinstance(found, Input):
            read = _reader(found, slot)
            if read is None:
                return Sweep(capacity, (), ())
            given[value] = read
    if sum(equation.output.type.count for equation in equations) > MAX_BOUND_ELEMENTS:
        return Sweep(capacity, (), ())
    return Sweep(capacity, distinct, tuple(reversed(equations)), given)


def _reader(entry: Input, slot: Callable[[SlotKey], NDArray[np.uint8]]) -> Callable[[], Any] | None:
    type, data = entry.value.type, entry.data
    if data is not None:
        return lambda: data
    if isinstance(entry.key, SlotKey):
        memory = slot(entry.key)[: type.nbytes]
        return lambda: from_bytes(memory, type.dtype, type.shape)
    return None
