"""How a contraction reads its activations: a block of columns of one row at a time, every thread of a group the same
ones.

A block is read, or computed, as vectors of four where it can be. On a target whose subgroups are so narrow that one
vector a lane covers a block, each lane reads one and the subgroup passes them round: a load costs such a target (a CPU
that poses as a GPU) many times what a shuffle does. Anything else is computed element by element.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Value
from poot_executor.kernel.handle import Handle

Column = Callable[[int], Handle]
Read = Callable[[Handle, Handle], Column]


def activation_blocks(frame: Frame, left: Value, columns: int, threads: int, *, uniform: bool) -> Read:
    """read(row, first)(column) is the activation [row, first + column]; call read once a block.

    `uniform` says that the threads of a group read the same block at the same time, in uniform control flow.
    """
    if uniform and passes_round(frame.caps, columns, threads) and left.shape[-1] % 4 == 0:
        return lambda row, first: _passed_round(frame, left, row, first)
    if left.shape[-1] % 4 == 0 and columns % 4 == 0:
        return lambda row, first: _vectors(frame, left, row, first, columns)
    return lambda row, first: _elements(frame, left, row, first, columns)


def passes_round(caps: Caps, columns: int, threads: int) -> bool:
    """Does one vector a lane of a subgroup cover a block?"""
    width = caps.subgroup_width
    return "subgroup" in caps.features and width is not None and width * 4 == columns and threads % width == 0


def _passed_round(frame: Frame, left: Value, row: Handle, first: Handle) -> Column:
    b = frame.b
    own = frame.emission.vector(left, (row, first + b.lane_id() * 4), 1)
    if own.width == 1:
        return lambda _column: own
    return lambda column: b.subgroup_shuffle(own[column % 4], b.const(column // 4, DType.I32))


def _vectors(frame: Frame, left: Value, row: Handle, first: Handle, columns: int) -> Column:
    # All of them now: what the template supplies may be another row's when a column is asked for.
    loaded = [frame.emission.vector(left, (row, first + 4 * i), 1) for i in range(columns // 4)]

    def column(place: int) -> Handle:
        vector = loaded[place // 4]
        return vector if vector.width == 1 else vector[place % 4]

    return column


def _elements(frame: Frame, left: Value, row: Handle, first: Handle, columns: int) -> Column:
    elements = [frame.element(left, (row, first + i)) for i in range(columns)]
    return lambda place: elements[place]
