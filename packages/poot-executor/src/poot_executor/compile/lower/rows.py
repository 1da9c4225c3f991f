"""Row reductions: a group of threads a row, each reduction a sweep over the row, then a sweep that stores.

Norms and softmaxes are such regions: their reductions feed each other and the final expression as one value a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.elementwise import HELD, narrowed
from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import Index, unravel
from poot_executor.compile.lower.draft import PER_WORD, Draft, Frame, grid, pack_word
from poot_executor.compile.lower.parts import part_columns, row_parts
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation, Value
from poot_executor.kernel.handle import Handle


def lower_rows(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """root[r, c] = expression(r, c, reductions of row r); a root that is itself a reduction has one element a row, and
    long rows are reduced in parts where rows are few."""
    root = region.root
    own = region.anchor
    columns = own.inputs[0].shape[own.params["axis"]] if own is not None else root.shape[-1]
    rows = root.type.count if own is not None else root.type.count // columns
    whole = own is not None and region.reductions == (own,) and HELD[own.inputs[0].dtype] is not DType.BOOL
    parts = row_parts(rows, columns, caps) if whole and PER_WORD.get(root.dtype, 1) == 1 else 0
    if own is not None and parts:
        return _in_parts(scene, region, own, rows, parts, caps)
    threads = row_threads(columns, caps)
    inner = Scene(scene.graph, scene.stored - {root}, scene.layouts)
    frame = Frame(inner, caps, region.kind, threads)
    supplied = [e.output for e in region.reductions]
    for reduction in region.reductions:
        frame.read(reduction.inputs[0], supplied=supplied)
    if own is None:
        frame.read(root, supplied=supplied)
    out = frame.write(root)
    per_word = PER_WORD.get(root.dtype, 1)
    group_rows = per_word if own is not None else 1
    groups = grid(-(-rows // group_rows), caps)
    b = frame.b
    group = frame.flat_group(groups)
    if groups[1] > 1:
        group = b.min(group, -(-rows // group_rows) - 1)
    if own is None:
        if columns % per_word:
            raise Unsupported(f"row reduction of {root.type}", "rows of narrow elements must fill whole words")
        row_totals(frame, region.reductions, group, columns, threads)
        with b.range(b.thread_id(), columns // per_word, threads) as word:
            parts = [frame.element(root, _row_index(frame, root, group, word * per_word + i)) for i in range(per_word)]
            if per_word == 1:
                out[group * columns + word] = parts[0]
            else:
                out.store_word(group * (columns // per_word) + word, pack_word(b, root.dtype, parts))
    else:
        results = []
        for i in range(per_word):
            row = b.min(group * per_word + i, rows - 1) if per_word > 1 else group
            results.append(row_totals(frame, region.reductions, row, columns, threads)[-1])
        with b.if_(b.thread_id() == 0):
            if per_word == 1:
                out[group] = results[0]
            else:
                out.store_word(group, pack_word(b, root.dtype, results))
    sweeps = len(region.reductions)
    return [frame.draft(groups, frame.nbytes(), threads=threads, rows=rows, columns=columns, sweeps=sweeps)]


def _in_parts(scene: Scene, region: Region, own: Equation, rows: int, parts: int, caps: Caps) -> list[Draft]:
    """Each part's reduction, then the reduction of those."""
    inner = Scene(scene.graph, scene.stored - {region.root}, scene.layouts)
    source, held = own.inputs[0], HELD[own.inputs[0].dtype]
    columns = source.shape[own.params["axis"]]
    frame = Frame(inner, caps, f"{region.kind}_parts", caps.group_threads)
    frame.read(source)
    b, row = frame.b, frame.b.group_id(0)
    partials = frame.scratch(0, (rows, parts), held)
    total = _reduced(frame, own, row, part_columns(frame, columns, parts), caps.group_threads)
    with b.if_(b.thread_id() == 0):
        partials[row * parts + b.group_id(1)] = total
    first = frame.draft((rows, parts, 1), frame.nbytes(), threads=b.group_size, parts=parts)
    frame = Frame(inner, caps, region.kind, caps.group_threads)
    b, row = frame.b, frame.b.group_id(0)
    partials, out = frame.scratch(0, (rows, parts), held), frame.write(region.root)
    partial = b.var(_neutral(own), held, name="partial")
    with b.range(b.thread_id(), parts, caps.group_threads, name="part") as part:
        partial.set(_joined(frame, own, partial.get(), partials[row * parts + part]))
    total = narrowed(b, _over_group(frame, own, partial.get()), own.output.dtype)
    with b.if_(b.thread_id() == 0):
        out[row] = total
    return [first, frame.draft((rows, 1, 1), frame.nbytes(), threads=b.group_size, parts=parts)]


def lowest(dtype: DType) -> float | int:
    """The number that no element of the dtype is below."""
    if dtype.is_float:
        return float("-inf")
    return {DType.I32: -(1 << 31), DType.U32: 0, DType.I8: -128, DType.U8: 0}[dtype]


UNROLL = 4
"""Rounds of a sweep along a row whose loads are on their way together, where a row has as many."""

LONG_SWEEP = 1024
"""Rounds of a sweep from which more threads pay whatever their reductions cost."""


def row_threads(columns: int, caps: Caps) -> int:
    """Threads a row: the target's usual group, more of them for long rows.

    A reduction over the group has every thread read a result of each subgroup: where subgroups are narrow, more of them
    than they have lanes cost more than they spare, unless the row is very long.
    """
    threads = caps.group_threads
    few = max(threads, (caps.subgroup_width or caps.max_group_size) ** 2)
    while threads * 32 < columns and threads * 2 <= caps.max_group_size:
        if threads * 2 > few and threads * LONG_SWEEP >= columns:
            break
        threads *= 2
    return threads


def row_totals(frame: Frame, reductions: Sequence[Equation], row: Handle, columns: int, threads: int) -> list[Handle]:
    """The reductions of one row, in order, each feeding the next; every thread of the group gets them.

    They are supplied to the frame's expressions as they come. Uniform control flow.
    """
    totals: list[Handle] = []
    for reduction in reductions:
        total = narrowed(frame.b, _reduced(frame, reduction, row, (0, columns), threads), reduction.output.dtype)
        totals.append(total)
        frame.supply(reduction.output, lambda _index, value=total: value)
    return totals


def _reduced(
    frame: Frame, reduction: Equation, row: Handle, columns: tuple[Handle | int, Handle | int], threads: int
) -> Handle:
    """A row's columns [low, high) reduced by the group, which are whole fours where the row is."""
    b, source, axis = frame.b, reduction.inputs[0], reduction.params["axis"]
    held, (low, high) = HELD[source.dtype], columns
    partial = b.var(_neutral(reduction), held, name="partial")
    step = 4 if source.shape[axis] % 4 == 0 and axis == len(source.shape) - 1 and held is not DType.BOOL else 1
    unroll = UNROLL if source.shape[axis] >= UNROLL * threads * step else None
    with b.range(b.thread_id() * step + low, high, threads * step, unroll=unroll, name="column") as column:
        for element in _neighbours(frame, source, _source_index(frame, reduction, row, column), axis, step):
            partial.set(_joined(frame, reduction, partial.get(), element))
    return _over_group(frame, reduction, partial.get())


def _neutral(reduction: Equation) -> float | int:
    """What a reduction starts from."""
    dtype = reduction.inputs[0].dtype
    if reduction.op == "sum":
        return 0.0 if HELD[dtype] is DType.F32 else 0
    return lowest(dtype)


def _joined(frame: Frame, reduction: Equation, partial: Handle, element: Handle) -> Handle:
    """One element more. NaN is not greater than anything, so it counts as the lowest."""
    return partial + element if reduction.op == "sum" else frame.b.select(element > partial, element, partial)


def _over_group(frame: Frame, reduction: Equation, partial: Handle) -> Handle:
    return frame.b.group_sum(partial) if reduction.op == "sum" else frame.b.group_max(partial)


def _neighbours(frame: Frame, value: Value, index: Index, axis: int, count: int) -> list[Handle]:
    if count == 1:
        return [frame.element(value, index)]
    loaded = frame.emission.vector(value, index, axis)
    return [loaded] * count if loaded.width == 1 else [loaded[i] for i in range(count)]


def _source_index(frame: Frame, reduction: Equation, row: Handle, column: Handle) -> Index:
    axis = reduction.params["axis"]
    shape = reduction.inputs[0].shape
    lead = unravel(frame.b, row, shape[:axis] + shape[axis + 1 :])
    return (*lead[:axis], column, *lead[axis:])


def _row_index(frame: Frame, value: Value, row: Handle, column: Handle) -> Index:
    return (*unravel(frame.b, row, value.shape[:-1]), column)
