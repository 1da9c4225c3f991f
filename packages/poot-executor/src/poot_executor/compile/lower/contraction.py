"""Contractions with weights: y[m, n] = Σₖ x[m, k] · w[n, k], the weight read once, in its stored precision.

A thread takes `rows` weight rows and `tile` activation rows and walks the whole depth, block by block, so that no sum crosses threads and
the order of a row's sum depends on its depth alone. Neighbouring threads take neighbouring weight rows, which the device layout interleaves.
"""

from __future__ import annotations

from poot_executor.compile.classify import weight_of
from poot_executor.compile.expression import Index, Scene, unravel
from poot_executor.compile.lower.activations import activation_blocks
from poot_executor.compile.lower.blocks import BlockReader
from poot_executor.compile.lower.draft import Draft, Frame
from poot_executor.compile.lower.products import accumulate
from poot_executor.compile.region import Region
from poot_executor.compile.schedule import ContractionSchedule, contraction_schedule
from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Equation, Value
from poot_executor.kernel.handle import Handle
from poot_executor.layout import WeightLayout


def lower_contraction(scene: Scene, region: Region, caps: Caps) -> list[Draft]:
    """One dispatch a part of the weight."""
    anchor = region.anchor
    assert anchor is not None
    weight = weight_of(scene.graph, anchor)
    assert weight is not None
    layout = scene.layouts[weight]
    return [_lower_part(scene, region, anchor, weight, layout, p, caps) for p in range(len(layout.parts))]


def _lower_part(
    scene: Scene, region: Region, anchor: Equation, weight: Value, layout: WeightLayout, which: int, caps: Caps
) -> Draft:  # fmt: skip
    root, left = region.root, anchor.inputs[0]
    part = layout.parts[which]
    count, depth = left.shape
    schedule = contraction_schedule(layout, count, caps)
    inner = Scene(scene.graph, scene.stored - {root, anchor.output}, scene.layouts)
    frame = Frame(inner, caps, region.kind, schedule.threads)
    b = frame.b
    reader = BlockReader(b, frame.weight_part(weight, which), frame.weight_part(weight, which), layout, part)
    if depth % reader.columns:
        raise Unsupported(f"contraction with {layout.format.name}{list(weight.shape)}", f"its depth is not whole blocks of {reader.columns}")
    frame.read(left)
    if root is not anchor.output:
        frame.read(root, supplied=[anchor.output])
    out = frame.write(root)
    across = -(-part.rows // (schedule.threads * schedule.rows))
    groups = (across, -(-count // schedule.tile), 1)
    if across > caps.max_groups[0] or groups[1] > caps.max_groups[1]:
        raise Unsupported(f"contraction of {count} by {part.rows} rows", f"a grid of {groups} is over the target's {caps.max_groups}")
    rows = [_row(frame, schedule, layout, j) for j in range(schedule.rows)]
    tokens = [b.group_id(1) * schedule.tile + m for m in range(schedule.tile)]
    if count % schedule.tile:
        tokens = [b.min(token, count - 1) for token in tokens]
    read = activation_blocks(frame, left, reader.columns, b.group_size)
    (totals,) = accumulate(b, [reader], [lambda first, token=t: read(token, first) for t in tokens], rows, depth)
    for j, row in enumerate(rows):
        with b.if_(row < part.rows):
            for m, token in enumerate(tokens):
                place = token * layout.rows + (row + part.first)
                frame.supply(anchor.output, lambda _index, value=totals[m][j]: value.get())
                index = (token, row + part.first)
                out[place] = _result(frame, root, anchor.output, index, place)
    return frame.draft(groups, frame.nbytes(), **schedule.describe(), part=which)


def _row(frame: Frame, schedule: ContractionSchedule, layout: WeightLayout, j: int) -> Handle:
    """Weight row number `j` of this thread. Threads of a group take neighbouring rows."""
    b = frame.b
    return b.group_id(0) * (schedule.threads * schedule.rows) + (b.thread_id() + j * schedule.threads)


def _result(frame: Frame, root: Value, product: Value, index: Index, place: Handle) -> Handle:
    if root is product:
        return frame.element(product, index)
    if root.shape == product.shape:
        return frame.element(root, index)
    return frame.element(root, unravel(frame.b, place, root.shape))
