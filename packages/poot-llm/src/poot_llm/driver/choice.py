"""Which of several step shapes runs a set of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from poot_llm.blocks.step import StepShape


@dataclass(frozen=True, slots=True)
class RowWork:
    """What a row has to do: its row among those of a step, how many positions are cached, how many ids are not."""

    row: int
    cached: int
    pending: int


def choose_shape(shapes: Iterable[StepShape], work: Sequence[RowWork]) -> StepShape | None:
    """The shape to run next, None where none fits. One row alone may be any of those that a step is among.

    The one that finishes the longest pending run in the fewest passes over the weights, so that a
    run is padded up rather than split; then the one of least work.
    """
    best: tuple[tuple[int, ...], StepShape] | None = None
    rows = max(item.row for item in work) + 1
    longest = max(item.pending for item in work)
    for shape in shapes:
        ends = (item.cached + min(item.pending, shape.tokens) for item in work)
        if not holds(shape, rows, len(work)) or max(ends) > shape.span:
            continue
        passes = -(-longest // shape.tokens)
        cost = (passes, shape.rows * shape.tokens, shape.span)
        if best is None or cost < best[0]:
            best = cost, shape
    return None if best is None else best[1]


def holds(shape: StepShape, rows: int, count: int) -> bool:
    """Whether a step holds so many rows, the last of which is the `rows`-th."""
    return shape.rows >= rows if shape.among is None else count == 1 and shape.among >= rows


def shapes_for(shapes: Sequence[StepShape], row: int, cached: int, pending: int, end: int) -> list[StepShape]:
    """Every shape that `choose_shape` gives while one row caches `pending` ids and then goes on,
    token by token, until `end` positions are cached.
    """
    found: dict[StepShape, None] = {}
    while cached < end:
        shape = choose_shape(shapes, [RowWork(row, cached, pending)])
        if shape is None:
            break
        found[shape] = None
        if pending == 1:
            # Decoding: the same shape serves until its span is full.
            cached = shape.span
        else:
            taken = min(pending, shape.tokens)
            cached, pending = cached + taken, max(pending - taken, 1)
    return list(found)
