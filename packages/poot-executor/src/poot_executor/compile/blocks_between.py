"""Norms over each head between a projection and what finishes it: regions that have one value for each block of its
products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from poot_executor.compile.reading import reads
from poot_executor.compile.region import Region
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value


def blocks_between(
    region: Region,
    leaves: Callable[[Region], Set[Value]],
    by_root: Mapping[Value, Region],
    readers: Mapping[Value, Sequence[Region]],
    wanted: Set[Value],
) -> list[Region]:
    """Row reductions, and what is made of them element by element, that no region but this one (and one another) reads.

    `leaves` gives the stored values that a region reads, `readers` the regions that read one, `wanted` are values that
    have to be stored. Later ones come first.
    """
    found: dict[Value, Region] = {region.root: region}
    grown = True
    while grown:
        grown = False
        for value in sorted({v for r in found.values() for v in leaves(r)} - set(found) - wanted, key=lambda v: v.id):
            made = by_root.get(value)
            if made is None or not all(r.root in found for r in readers.get(value, ())):
                continue
            of_reductions = made.kind == "pointwise" and any(_reduces(by_root, v) for v in leaves(made))
            if made.kind == "row_reduction" or of_reductions:
                found[value] = made
                grown = True
    return [r for root, r in found.items() if root != region.root]


def _reduces(by_root: Mapping[Value, Region], value: Value) -> bool:
    return value in by_root and by_root[value].kind == "row_reduction"


def whole_block(
    graph: Graph, reductions: Sequence[Equation], products: Sequence[Value], stored: Set[Value]
) -> int | str:
    """How many of a row's products each reduction is over, or why they are no blocks of them."""
    counts = {e.output.type.count for e in reductions}
    if len(counts) != 1 or any(e.output.dtype is not DType.F32 for e in reductions):
        return "its reductions are not over equal blocks"
    if not all(any(reads(graph, e.inputs[0], p, stored) for p in products) for e in reductions):
        return "it waits for a reduction of something else"
    block, rest = divmod(products[0].type.count, counts.pop())
    if rest or products[0].shape[-1] % block:
        return "its reductions are not over blocks of its columns"
    return block
