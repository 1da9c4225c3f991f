"""Long rows in parts: where rows leave much of a target idle, many groups take a part of each, and one joins them."""

from __future__ import annotations

from poot_executor.compile.lower.draft import Frame
from poot_executor.compile.target import Caps
from poot_executor.kernel.handle import Handle

LEAST_PARTS = 8
"""Groups that a target must have for every row, so that parts pay for the dispatch that joins them."""
ROUNDS = 16
"""Columns that a thread of a part has at least."""


def row_parts(rows: int, columns: int, caps: Caps) -> int:
    """Parts of a row, each at least a few rounds long; 0 where rows are taken whole.

    Parts depend on how many rows there are, and so does the order of a sum: caps of one parallel group have none.
    """
    parts = min(caps.parallel_groups // rows, columns // (ROUNDS * caps.group_threads), caps.max_groups[1])
    return parts if parts >= LEAST_PARTS and rows <= caps.max_groups[0] else 0


def part_columns(frame: Frame, columns: int, parts: int) -> tuple[Handle, Handle]:
    """The columns [low, high) of the group's part: group (row, part) of the grid. `low` is a multiple of 4."""
    each = -(-columns // (4 * parts)) * 4
    low = frame.b.group_id(1) * each
    return low, frame.b.min(low + each, columns)
