"""Putting a stored weight into its device layout: a kernel a run of rows, each thread one device word from two
halfwords."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from poot_executor.compile.lower.draft import grid
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.layout import Part, Plane, WeightLayout


@dataclass(frozen=True, slots=True)
class ReorderStep:
    """Stored bytes [first_byte, first_byte + nbytes) into a part: stage them, then run `kernel` over (staging,
    part)."""

    part: Part
    first_byte: int
    nbytes: int
    staged_bytes: int
    kernel: Kernel
    groups: tuple[int, int, int]


def reorder_steps(layout: WeightLayout, staging_bytes: int, caps: Caps) -> Iterator[ReorderStep]:
    """The steps of a weight, each of at most `staging_bytes` stored bytes in whole tiles of rows."""
    row_bytes = layout.format.row_bytes(layout.columns)
    tile = layout.tile_rows
    for part in layout.parts:
        most = part.rows if part.rows * row_bytes <= staging_bytes else staging_bytes // (row_bytes * tile) * tile
        if most == 0:
            raise Unsupported(
                f"weight of {layout.columns} columns", f"{tile} rows of {row_bytes:,} bytes exceed the staging buffer"
            )
        for first in range(0, part.rows, most):
            rows = min(most, part.rows - first)
            kernel = _kernel(layout, part, first, rows, caps)
            nbytes = rows * row_bytes
            words = layout.padded(rows) * layout.row_words
            groups = grid(-(-words // caps.group_threads), caps)
            yield ReorderStep(part, (part.first + first) * row_bytes, nbytes, -(-nbytes // 4) * 4, kernel, groups)


@lru_cache(maxsize=256)
def _kernel(layout: WeightLayout, part: Part, first: int, rows: int, caps: Caps) -> Kernel:
    """Rows [first, first + rows) of a part, staged from byte 0, to their words in every plane."""
    b = KernelBuilder("reorder", caps.group_threads)
    source = b.buffer("stored", DType.U32, Access.READ_WRITE)
    target = b.buffer("weight", DType.U32, Access.READ_WRITE)
    tile, padded = layout.tile_rows, layout.padded(rows)
    groups = grid(-(-padded * layout.row_words // caps.group_threads), caps)
    group = b.group_id(0) if groups[1] == 1 else b.group_id(1) * groups[0] + b.group_id(0)
    place = group * caps.group_threads + b.thread_id()
    for plane in layout.planes:
        words = plane.words * padded
        at = place - plane.start * padded
        with b.if_((at >= 0) & (at < words)):
            # Order within a plane: tile of rows, vector of words, row within the tile, word within the vector.
            lane, rest = at % plane.vector, at // plane.vector
            row_in_tile, rest = rest % tile, rest // tile
            units = plane.words // plane.vector
            word, row = plane.word_at(rest % units * plane.vector + lane), rest // units * tile + row_in_tile
            value = b.var(0, DType.U32, name="value")
            with b.if_(row < rows):
                value.set(_stored_word(b, source, layout, plane, row, word))
            start = plane.start * layout.padded(part.rows) + first * plane.words
            target.store_word(at + start, value.get())
    return b.finish()


def _stored_word(
    b: KernelBuilder, source: BufferRef, layout: WeightLayout, plane: Plane, row: Handle, word: Handle
) -> Handle:
    """The device word: two halfwords of the stored row, as `WeightLayout.halfwords` says."""
    row_half = layout.format.row_bytes(layout.columns) // 2
    block_half, start = layout.format.nbytes // 2, plane.field_offset // 2

    def half(index: Handle) -> Handle:
        at = row * row_half + index
        return (source.load_words(at >> 1) >> b.cast((at & 1) << 4, DType.U32)) & 0xFFFF

    if plane.field_bytes == 2:
        low, high = word * 2, word * 2 + 1
        second = b.var(0, DType.U32, name="second")
        with b.if_(high < layout.blocks):
            second.set(half(high * block_half + start))
        return half(low * block_half + start) | (second.get() << 16)
    per_block = plane.field_bytes // 4
    at = word // per_block * block_half + start + word % per_block * 2
    return half(at) | (half(at + 1) << 16)
