"""Contractions of activations: a thread an output element, or a column of them, the whole depth in one loop.

Batched matmul (attention's scores and weighted values in their unfused form) and indexed matmul. Weights have a
template of their own.
"""

from __future__ import annotations

from poot_executor.compile.expression import Scene
from poot_executor.compile.indexing import Index, unravel
from poot_executor.compile.lower.draft import Draft, Frame, flat_element, grid
from poot_executor.compile.region import Region
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.kernel.handle import Handle

UNROLL = 8


def lower_batched(scene: Scene, region: Region, caps: Caps) -> Draft:
    """anchor[…, m, n] = Σₖ a[…, m, k] · b[…, k, n], f32, then the epilogue."""
    root, anchor = region.root, region.anchor
    assert anchor is not None
    threads = caps.group_threads
    inner = Scene(scene.graph, scene.stored - {root, anchor.output}, scene.layouts)
    frame = Frame(inner, caps, region.kind, threads)
    frame.read(*anchor.inputs)
    if root is not anchor.output:
        frame.read(root, supplied=[anchor.output])
    out = frame.write(root)
    count = root.type.count
    groups = grid(-(-count // threads), caps)
    b = frame.b
    depth = anchor.inputs[0].shape[-1]
    with_index = anchor.op == "indexed_matmul"
    place = frame.flat_group(groups) * threads + b.thread_id()
    with b.if_(place < count):
        index = unravel(b, place, anchor.output.shape)
        expert = b.cast(frame.element(anchor.inputs[2], index[:1]), DType.I32) if with_index else None
        if expert is not None:
            experts = anchor.inputs[1].shape[0]
            b.check((expert >= 0) & (expert < experts), 1)
            expert = b.max(b.min(expert, experts - 1), 0)
        total = b.var(0.0, DType.F32, name="total")
        with b.range(0, depth, unroll=min(UNROLL, depth), name="k") as k:
            left = frame.element(anchor.inputs[0], (*index[:-1], k))
            right = frame.element(anchor.inputs[1], _right(index, k, expert))
            total.set(b.fma(left, right, total.get()))
        result = total.get()
        frame.supply(anchor.output, lambda _index: result)
        out[place] = result if root is anchor.output else flat_element(frame, root)(place)
    return frame.draft(groups, frame.nbytes(), threads=threads, depth=depth)


def _right(index: Index, k: Handle, expert: Handle | None) -> Index:
    if expert is not None:
        return (expert, k, index[-1])
    return (*index[:-2], k, index[-1])
