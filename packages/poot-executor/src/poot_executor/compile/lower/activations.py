"""How a contraction reads its activations: a block of columns of one row at a time, every thread of a group the same ones.

Where the activations are stored as f32, a block is read as vectors of four. On a target whose subgroups are so narrow that one vector a
lane covers a block, each lane reads one and the subgroup passes them round: a load costs such a target (a CPU that poses as a GPU) many
times what a shuffle does. Anything else is computed element by element.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.handle import Handle

Column = Callable[[int], Handle]


def activation_blocks(frame: Frame, left: Value, columns: int, threads: int) -> Callable[[Handle, Handle], Column]:
    """read(row, first)(column) is the activation [row, first + column]; call read once a block, in uniform control flow."""
    stored = left in frame.scene.stored and left not in frame.scene.layouts and frame.scene.splat(left) is None
    vectors = stored and left.dtype is DType.F32 and left.shape[-1] % 4 == 0 and columns % 4 == 0
    if not vectors:
        return lambda row, first: lambda column: frame.element(left, (row, first + column))
    if _passes_round(frame.caps, columns, threads):
        return lambda row, first: _passed_round(frame, left, row, first)
    return lambda row, first: _vectors(frame, left, row, first)


def _passes_round(caps: Caps, columns: int, threads: int) -> bool:
    width = caps.subgroup_width
    return "subgroup" in caps.features and width is not None and width * 4 == columns and threads % width == 0


def _passed_round(frame: Frame, left: Value, row: Handle, first: Handle) -> Column:
    b = frame.b
    (buffer,) = frame.buffers[left]
    own = buffer.load(row * left.shape[-1] + first + b.lane_id() * 4, 4)
    return lambda column: b.subgroup_shuffle(own[column % 4], b.const(column // 4, DType.I32))


def _vectors(frame: Frame, left: Value, row: Handle, first: Handle) -> Column:
    (buffer,) = frame.buffers[left]
    known: dict[int, Handle] = {}

    def column(place: int) -> Handle:
        if place // 4 not in known:
            known[place // 4] = buffer.load(row * left.shape[-1] + first + place // 4 * 4, 4)
        return known[place // 4][place % 4]

    return column
