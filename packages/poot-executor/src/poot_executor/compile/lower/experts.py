"""Contractions with matrices that rows choose: y[r, n] = Σₖ x[r, k] · w[index[r], n, k], a row at a time.

A group has some rows of the matrix that its activation row chose, and reads them as `projection` does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from poot_executor.compile.classify import experts_of
from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import unravel
from poot_executor.compile.lower.activations import Column, activation_blocks
from poot_executor.compile.lower.blocks import BlockReader, lane_words
from poot_executor.compile.lower.draft import Draft, Frame, grid
from poot_executor.compile.lower.epilogue import Products, store_products, store_registers
from poot_executor.compile.lower.products import accumulate, sum_lanes
from poot_executor.compile.lower.projection import declare_reads, supply_totals, token_totals
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.movement import GATHER_CHECK, gathered_row
from poot_executor.compile.region import Projection, Region
from poot_executor.compile.schedule import contraction_schedule
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation
from poot_executor.kernel.handle import Handle
from poot_executor.layout import Part


def lower_experts(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """One dispatch: the grid's last axis runs over activation rows."""
    projection = region.projection
    assert projection is not None
    (segment,) = projection.segments
    inner = Scene(scene.graph, scene.stored - {a.output for a in segment.anchors} - {region.root}, scene.layouts)
    frame = Frame(inner, caps, region.kind, caps.group_threads)
    b, width = frame.b, caps.subgroup_width or 1
    readers = [_reader(frame, anchor) for anchor in segment.anchors]
    count, depth = projection.left.shape
    rows = segment.anchors[0].output.shape[-1]
    units = depth // readers[0].columns * readers[0].pieces
    schedule = contraction_schedule(rows, units, 1, caps, anchors=len(readers))
    if schedule is None or schedule.shared_bytes(len(readers), 0, caps) > caps.max_shared_bytes:
        raise Unsupported(f"experts of {projection.left.type}", "shared memory does not hold a group's products")
    declare_reads(frame, projection)
    which = segment.anchors[0].inputs[2]
    frame.read(which)
    out = frame.write(region.root)
    flat = grid(-(-rows // schedule.columns), caps)
    token, group = b.group_id(2), frame.flat_group(flat)
    expert = b.cast(frame.element(which, (token,)), DType.I32)
    experts = segment.anchors[0].inputs[1].shape[0]
    b.check((expert >= 0) & (expert < experts), GATHER_CHECK)
    expert = b.max(b.min(expert, experts - 1), 0)
    read = _read(frame, projection, readers[0].run, token, uniform=schedule.lanes == 1)
    slot = b.thread_id() // schedule.lanes if schedule.lanes > 1 else b.thread_id()
    places = [slot + j * (caps.group_threads // schedule.lanes) for j in range(schedule.rows)]
    local = [group * schedule.columns + place for place in places]
    totals = accumulate(b, readers, [read], [row + expert * rows for row in local], depth, schedule.lanes)
    matrix = Part(0, rows, 0, 0)
    if schedule.lanes == 1:
        store_registers(frame, segment, out, [token], local, totals, matrix)
    else:
        partials = sum_lanes(b, totals, schedule.lanes, width)
        shape = (1, schedule.columns, len(readers), partials)
        products = Products(b.shared("results", DType.F32, prod(shape)), *shape)
        lanes = schedule.lanes
        with b.if_(b.thread_id() % min(lanes, width) == 0):
            for w, total in enumerate(totals):
                for j, place in enumerate(places):
                    at = products.place(b.thread_id() % lanes // width, w, 0, place)
                    products.shared[at] = total[0][j].get()
        b.barrier()
        rows_of = RowMap(schedule.columns, 0, 1)
        store_products(frame, segment, out, products, rows_of, group, token, count, matrix, caps.group_threads)
    chosen = sum(reader.part.nbytes for reader in readers) // experts
    work = count * chosen + frame.nbytes() - sum(2 * reader.part.nbytes for reader in readers)
    return [
        frame.draft(
            (*flat[:2], count), work, threads=caps.group_threads, lanes=schedule.lanes, rows=schedule.rows,
            weights=len(readers), prologue=projection.prologue is not None,
        )
    ]  # fmt: skip


def _reader(frame: Frame, anchor: Equation) -> BlockReader:
    weight = experts_of(frame.scene.graph, anchor)
    assert weight is not None, "the matcher sees to that"
    layout = frame.scene.layouts[weight]
    wide, narrow = (frame.weight_part(weight, 0) for _ in range(2))
    return BlockReader(frame.b, wide, narrow, layout, layout.parts[0], lane_words(layout, frame.caps))


def _read(
    frame: Frame, projection: Projection, run: int, token: Handle, *, uniform: bool
) -> Callable[[Handle], Column]:
    """Blocks of the activation row, normed where a norm comes before."""
    read = activation_blocks(frame, projection.left, run, frame.caps.group_threads, uniform=uniform)
    if projection.prologue is not None:
        (totals,) = token_totals(frame, projection, [_normed_row(frame, projection, token)], frame.caps.group_threads)
        supply_totals(frame, projection, totals)
    return lambda first: read(token, first)


def _normed_row(frame: Frame, projection: Projection, row: Handle) -> Handle:
    """The row of the norm that an activation row is."""
    assert projection.prologue is not None
    value = projection.left
    while value != projection.prologue.root:
        equation = frame.scene.graph.equation(value)
        assert equation is not None, "the matcher sees to that"
        if equation.op == "gather":
            which = equation.inputs[1]
            index = unravel(frame.b, row, which.shape)
            row = gathered_row(frame.emission, which, index, equation.inputs[0].shape[0])
        value = equation.inputs[0]
    return row
