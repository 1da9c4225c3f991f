"""Indices of a kernel: which lie inside what every launch binds, and which are near another one."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Op
from poot_executor.kernel.known_indices import KnownIndices

THREADS, ROW = 64, 8


def known() -> tuple[KnownIndices, list[Op]]:
    """Of a kernel that loads at thread · 8, 3 and 5 beyond it, 4 before a place that may be 0, at a number, and at what
    was loaded; x has an element for each of the first 64 · 8 at least, y any number."""
    b = KernelBuilder("indices", THREADS)
    x = b.buffer("x", DType.I32, Access.READ)
    y = b.buffer("y", DType.I32, Access.READ_WRITE)
    place = b.thread_id() * ROW
    beyond = place + 3
    loaded = [x[place], x[beyond], x[beyond + 5], x[place - 4 + 6], x[b.const(7, DType.I32)]]
    loaded.append(x[loaded[0] + 1])
    for value in loaded:
        y[place] = value
    kernel = b.finish()
    least = (replace(kernel.params[0], count=THREADS * ROW), kernel.params[1])
    kernel = replace(kernel, params=least)
    return KnownIndices(kernel), [op for op in kernel.body.walk() if op.kind == "load"]


def test_an_access_is_inside_where_every_launch_binds_its_elements() -> None:
    indices, loads = known()
    (place, beyond, further, around, number, unknown) = (op.operands[0] for op in loads)
    assert (indices.range_of(place).low, indices.range_of(place).high) == (0, (THREADS - 1) * ROW)
    assert indices.inside(0, place, 1) and indices.inside(0, place, ROW) and not indices.inside(0, place, ROW + 1)
    assert indices.inside(0, beyond, 5) and not indices.inside(0, beyond, 6)
    assert not indices.inside(0, further, 1), "the last thread's is the first beyond the buffer"
    assert indices.inside(0, around, 1)
    assert indices.inside(0, number, 1) and not indices.inside(1, number, 1), "y may have fewer elements"
    assert not indices.inside(0, unknown, 1)


def test_an_index_is_near_what_constants_were_added_to() -> None:
    indices, loads = known()
    (place, beyond, further, around, number, unknown) = (op.operands[0] for op in loads)
    assert indices.near(place) == (place, 0)
    assert indices.near(beyond) == (place, 3)
    assert indices.near(further) == (place, 8)
    base, offset = indices.near(around)
    assert base is not place and offset in (0, 6), "what may be negative is no base: a sum with it may wrap"
    assert indices.near(number) == (number, 0) and indices.constant(number) == 7
    assert indices.near(unknown) == (unknown, 0), "a loaded number may be negative"
    assert indices.constant(place) is None and indices.maker(place, "mul") is not None
