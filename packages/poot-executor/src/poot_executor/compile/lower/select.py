"""Selections along a row: argmax and arg_top_k, ties to the lowest index. A group of threads a row."""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.elementwise import HELD
from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import unravel
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.hooks import Hooks
from poot_executor.compile.lower.rows import lowest, row_threads
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation
from poot_executor.kernel.handle import Handle
from poot_executor.kernels.listed_top_k import listed_top_k
from poot_executor.kernels.shortlist import ENTRIES

LONG_ROW = 1024
"""Columns from which two sweeps and a list pay for what they add to a kernel."""


def lower_argmax(scene: Scene, region: Region, caps: Caps) -> Draft:
    """root[r] = the lowest column that holds the row's maximum."""
    anchor = region.anchor
    assert anchor is not None
    axis = anchor.params["axis"]
    shape = anchor.inputs[0].shape
    frame, groups, row, columns = _frame(scene, region, anchor, shape[axis], caps)
    b = frame.b
    lead = unravel(b, row, shape[:axis] + shape[axis + 1 :])

    def element(column: Handle) -> Handle:
        return frame.element(anchor.inputs[0], (*lead[:axis], column, *lead[axis:]))

    best = _sweep(frame, columns, element, None, None, anchor)
    with b.if_(b.thread_id() == 0):
        frame.write(region.root)[row] = best[1]
    return frame.draft(groups, frame.nbytes(), threads=b.group_size)


def lower_top_k(scene: Scene, region: Region, caps: Caps) -> Draft:
    """root[r, i] = the column of the i-th largest element. Of a long row of f32 the largest are listed first; elsewhere
    it is k sweeps, each over what comes after the last pick.
    """
    anchor = region.anchor
    assert anchor is not None
    shape = anchor.inputs[0].shape
    if _is_long(anchor, caps):
        return _lower_listed_top_k(scene, region, anchor, caps)
    frame, groups, row, columns = _frame(scene, region, anchor, shape[-1], caps)
    b = frame.b
    lead = unravel(b, row, shape[:-1])
    count = anchor.params["k"]
    out = frame.write(region.root)
    held = HELD[anchor.inputs[0].dtype]
    value, place = b.var(0.0 if held is DType.F32 else 0, held), b.var(-1, DType.I32)
    with b.range(0, count, name="pick") as pick:
        best = _sweep(
            frame, columns, lambda c: frame.element(anchor.inputs[0], (*lead, c)), value.get(), place.get(), anchor
        )
        value.set(best[0])
        place.set(best[1])
        with b.if_(b.thread_id() == 0):
            out[row * count + pick] = best[1]
    return frame.draft(groups, frame.nbytes(), threads=b.group_size, k=count)


def _is_long(anchor: Equation, caps: Caps) -> bool:
    value, count = anchor.inputs[0], anchor.params["k"]
    if value.dtype is not DType.F32 or len(value.shape) != 2 or value.shape[0] > caps.max_groups[0]:
        return False
    return value.shape[1] >= LONG_ROW and count <= ENTRIES // 2


def _lower_listed_top_k(scene: Scene, region: Region, anchor: Equation, caps: Caps) -> Draft:
    value, count = anchor.inputs[0], anchor.params["k"]
    rows, columns = value.shape
    hooks = Hooks(Scene(scene.graph, scene.stored - {region.root}, scene.layouts))
    threads = row_threads(columns, caps)
    kernel = listed_top_k.specialize(
        group_size=threads, quad=hooks.quad(value), store=hooks.store(region.root), count=columns, wanted=count
    )
    return hooks.draft(kernel, caps, (rows, 1, 1), threads=threads, k=count)


def _frame(
    scene: Scene, region: Region, anchor: Equation, columns: int, caps: Caps
) -> tuple[Frame, tuple[int, int, int], Handle, int]:
    inner = Scene(scene.graph, scene.stored - {region.root}, scene.layouts)
    frame = Frame(inner, caps, region.kind, row_threads(columns, caps))
    frame.read(anchor.inputs[0])
    frame.write(region.root)
    rows = anchor.inputs[0].type.count // columns
    groups = grid(rows, caps)
    row = frame.flat_group(groups)
    return frame, groups, frame.b.min(row, rows - 1) if groups[1] > 1 else row, columns


def _sweep(
    frame: Frame,
    columns: int,
    element: Callable[[Handle], Handle],
    last: Handle | None,
    after: Handle | None,
    anchor: Equation,
) -> tuple[Handle, Handle]:
    """The largest element that comes after (`last`, `after`) in descending order, and its lowest column."""
    b = frame.b
    held = HELD[anchor.inputs[0].dtype]
    best, place = b.var(lowest(anchor.inputs[0].dtype), held, name="best"), b.var(columns, DType.I32, name="place")
    with b.range(b.thread_id(), columns, b.group_size, name="column") as column:
        candidate = element(column)
        if held is DType.F32:  # NaN counts as -inf
            candidate = b.select(candidate == candidate, candidate, float("-inf"))
        better = (candidate > best.get()) | ((candidate == best.get()) & (column < place.get()))
        if last is not None and after is not None:
            first = after < 0
            better = better & (first | (candidate < last) | ((candidate == last) & (column > after)))
        best.set(b.select(better, candidate, best.get()))
        place.set(b.select(better, column, place.get()))
    top = b.group_max(best.get())
    return top, b.group_min(b.select(best.get() == top, place.get(), b.const(columns, DType.I32)))
