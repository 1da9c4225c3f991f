"""Selections along a row: argmax and arg_top_k, ties to the lowest index. A group of threads a row."""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.compile.elementwise import HELD
from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import unravel
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.hooks import Hooks
from poot_executor.compile.lower.parts import part_columns, row_parts
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


def lower_argmax(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """root[r] = the lowest column that holds the row's maximum; of a long row the parts' columns first."""
    anchor = region.anchor
    assert anchor is not None
    axis = anchor.params["axis"]
    shape = anchor.inputs[0].shape
    rows, columns = anchor.inputs[0].type.count // shape[axis], shape[axis]
    parts = row_parts(rows, columns, caps)
    if parts:
        return _argmax_in_parts(scene, region, anchor, rows, parts, caps)
    frame, groups, row, columns = _frame(scene, region, anchor, columns, caps)
    best = _sweep(frame, (0, columns), _elements(frame, anchor, row), None, None, anchor)
    with frame.b.if_(frame.b.thread_id() == 0):
        frame.write(region.root)[row] = best[1]
    return [frame.draft(groups, frame.nbytes(), threads=frame.b.group_size)]


def _elements(frame: Frame, anchor: Equation, row: Handle) -> Callable[[Handle], Handle]:
    """A row's elements by their column."""
    axis, shape = anchor.params["axis"], anchor.inputs[0].shape
    lead = unravel(frame.b, row, shape[:axis] + shape[axis + 1 :])
    return lambda column: frame.element(anchor.inputs[0], (*lead[:axis], column, *lead[axis:]))


def _argmax_in_parts(scene: Scene, region: Region, anchor: Equation, rows: int, parts: int, caps: Caps) -> list[Draft]:
    """Each part's maximum and its column, then the first part that has the greatest of them."""
    inner = Scene(scene.graph, scene.stored - {region.root}, scene.layouts)
    held, columns = HELD[anchor.inputs[0].dtype], anchor.inputs[0].shape[anchor.params["axis"]]
    frame = Frame(inner, caps, f"{region.kind}_parts", caps.group_threads)
    frame.read(anchor.inputs[0])
    b, shape = frame.b, (rows, parts)
    values, places = frame.scratch(0, shape, held), frame.scratch(1, shape, DType.I32)
    row, at = b.group_id(0), b.group_id(0) * parts + b.group_id(1)
    best = _sweep(frame, part_columns(frame, columns, parts), _elements(frame, anchor, row), None, None, anchor)
    with b.if_(b.thread_id() == 0):
        values[at] = best[0]
        places[at] = best[1]
    first = frame.draft((rows, parts, 1), frame.nbytes(), threads=b.group_size, parts=parts)
    frame = Frame(inner, caps, region.kind, caps.group_threads)
    b = frame.b
    values, places = frame.scratch(0, shape, held), frame.scratch(1, shape, DType.I32)
    out, row = frame.write(region.root), b.group_id(0)
    best = _sweep(frame, (0, parts), lambda part: values[row * parts + part], None, None, anchor)
    with b.if_(b.thread_id() == 0):
        out[row] = places[row * parts + best[1]]
    return [first, frame.draft((rows, 1, 1), frame.nbytes(), threads=b.group_size, parts=parts)]


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
            frame, (0, columns), lambda c: frame.element(anchor.inputs[0], (*lead, c)), value.get(), place.get(), anchor
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
    columns: tuple[Handle | int, Handle | int],
    element: Callable[[Handle], Handle],
    last: Handle | None,
    after: Handle | None,
    anchor: Equation,
) -> tuple[Handle, Handle]:
    """The largest element of columns [low, high) that comes after (`last`, `after`) in descending order, and its lowest
    column; `high` where there is none."""
    b, (low, high) = frame.b, columns
    held = HELD[anchor.inputs[0].dtype]
    best, place = b.var(lowest(anchor.inputs[0].dtype), held, name="best"), b.var(high, DType.I32, name="place")
    with b.range(b.thread_id() + low, high, b.group_size, name="column") as column:
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
    return top, b.group_min(b.select(best.get() == top, place.get(), b.as_handle(high, DType.I32)))
