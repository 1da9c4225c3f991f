"""How a weight lies on a device: planes of 32-bit words, tiles of rows interleaved.

One layout for each weight, a function of its format, shape and the device's `Caps` alone, so that gather, matvec and
matmul read one copy. The stored row [blocks] is taken apart into planes: the quants of all blocks, their scales, their
high bits. A plane has `words` words a row, taken `vector` at a time (4 where a block allows: 16 bytes a load). Word w
of row r lies at

    start + ((r // tile_rows) · words + w // vector · vector) · tile_rows + r % tile_rows · vector + w % vector

so that neighbouring rows are neighbouring vectors, which is what a kernel with a lane a row wants; `tile_rows` = 1 is
plain rows. The plane of quants comes first, so that its vectors are aligned. Where matrix fragments are read straight
into registers, four lanes share a block and each wants its words of several blocks in one load: with `run` words a
lane, the 16 words of four (or two) neighbouring blocks are ordered by lane first, and w above is the word's place in
that order (`Plane.ordered`).

Every format's fields start at even bytes, so a device word is two halfwords of the stored row: `halfwords` gives them.
Fields of two bytes are paired: one word holds those of two neighbouring columns or blocks.
A weight over the binding limit is split into `parts` by rows, each a region of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import Unsupported
from poot_executor.formats import Format

LANES = 4
"""Lanes that share a block of quants in a matrix fragment, and words of a load."""


@dataclass(frozen=True, slots=True)
class Plane:
    """A field of every block of a row, as words: `words` a row, taken `vector` at a time.

    The field has `field_bytes` bytes at `field_offset` of a block; fields of 2 bytes share words in pairs. Within a
    part the plane starts at word `start · padded rows`. `run`, where it is not 0, is how many neighbouring words of a
    block a lane takes, and orders words within runs of 16.
    """

    name: str
    field_offset: int
    field_bytes: int
    words: int
    start: int
    vector: int
    run: int = 0

    def ordered(self, word: Any) -> Any:
        """Where word `word` of a row comes in the row: an integer, array or kernel handle."""
        if not self.run:
            return word
        blocks, inner = LANES // self.run, word % (LANES * self.run)
        block = word // (LANES * self.run)
        first = block // blocks * (LANES * LANES) + inner // self.run * LANES
        return first + block % blocks * self.run + inner % self.run

    def word_at(self, place: Any) -> Any:
        """The word that comes at a place of the row: the inverse of `ordered`."""
        if not self.run:
            return place
        blocks, inner = LANES // self.run, place % (LANES * LANES)
        lane, rest = inner // LANES, inner % LANES
        block = place // (LANES * LANES) * blocks + rest // self.run
        return block * (LANES * self.run) + lane * self.run + rest % self.run

    def place(self, row: Any, word: Any, tile_rows: int, padded_rows: int) -> Any:
        """Where word `word` of row `row` of a part lies, in words from the part's start: all of them integers,
        arrays or kernel handles."""
        word = self.ordered(word)
        tile, inner = row // tile_rows, row % tile_rows
        unit, rest = word // self.vector * self.vector, word % self.vector
        return (tile * self.words + unit) * tile_rows + inner * self.vector + rest + self.start * padded_rows


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [first, first + rows) of a weight, at byte `offset` of its buffer, `nbytes` long."""

    first: int
    rows: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The device layout of a stored tensor [rows, columns] (leading axes flattened to rows)."""

    format: Format
    rows: int
    columns: int
    tile_rows: int
    parts: tuple[Part, ...]
    fragments: bool = False

    @property
    def blocks(self) -> int:
        """Blocks a row."""
        return self.columns // self.format.columns

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes in their order within a part."""
        planes: list[Plane] = []
        start = 0
        for name, offset, nbytes in _plane_fields(self.format):
            words = -(-self.blocks * nbytes // 4) if nbytes == 2 else self.blocks * (nbytes // 4)
            wide = nbytes >= 16 or (not self.format.is_packed and words % 4 == 0)
            run = nbytes // 4 // LANES if self.fragments and name == "quants" else 0
            run = run if run and words % (LANES * LANES) == 0 else 0
            planes.append(Plane(name, offset, nbytes, words, start, 4 if wide else 1, run))
            start += words
        return tuple(planes)

    @property
    def row_words(self) -> int:
        """Words a row over all planes."""
        return sum(plane.words for plane in self.planes)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole weight on the device."""
        return self.parts[-1].offset + self.parts[-1].nbytes

    def plane(self, name: str) -> Plane:
        """The plane of that name."""
        return next(p for p in self.planes if p.name == name)

    def padded(self, rows: int) -> int:
        """Rows of a part, rounded up to whole tiles."""
        return -(-rows // self.tile_rows) * self.tile_rows

    def halfwords(self, plane: Plane, word: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The stored row's halfword indices (2 bytes each) that make device word `word` of a plane, low then high.

        -1 stands for zero (padding of an odd pair). The numpy form of what the reorder kernel computes.
        """
        block_half, start = self.format.nbytes // 2, plane.field_offset // 2
        if plane.field_bytes == 2:
            low, high = 2 * word, 2 * word + 1
            at = low * block_half + start, high * block_half + start
            return at[0], np.where(high < self.blocks, at[1], -1)
        per_block = plane.field_bytes // 4
        block, j = word // per_block, word % per_block
        at_low = block * block_half + start + 2 * j
        return at_low, at_low + 1

    def reorder(self, stored: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """The device words of stored rows u8[rows, row_bytes]: the reference of the reorder kernel, used by tests."""
        half = np.ascontiguousarray(stored).reshape(self.rows, -1).view("<u2").astype(np.uint32)
        out = np.zeros(self.nbytes // 4, np.uint32)
        for part in self.parts:
            rows = half[part.first : part.first + part.rows]
            rows = np.pad(rows, ((0, self.padded(part.rows) - part.rows), (0, 1)))  # column -1 is zero
            base = part.offset // 4
            for plane in self.planes:
                low, high = self.halfwords(plane, np.arange(plane.words))
                words = rows[:, low] | rows[:, high] << np.uint32(16)
                row, word = np.indices(words.shape)
                out[base + plane.place(row, word, self.tile_rows, len(rows))] = words
        return out


def _plane_fields(format: Format) -> list[tuple[str, int, int]]:
    """(name, offset, bytes) of each plane: neighbouring 2-byte scale and minimum share one plane of whole words."""
    names = [f.name for f in format.fields]
    if names[:2] == ["scale", "minimum"]:
        rest = [(f.name, f.offset, f.nbytes) for f in format.fields[2:]]
        return [*reversed(rest), ("scale_minimum", 0, 4)]
    return [(f.name, f.offset, f.nbytes) for f in reversed(format.fields)]


def layout_for(
    format: Format,
    shape: tuple[int, ...],
    *,
    tile_rows: int,
    max_bytes: int | None,
    alignment: int,
    fragments: bool = False,
) -> WeightLayout:
    """The one layout of a stored tensor on a device. `max_bytes` bounds a part, `alignment` its offset (both bytes).
    `fragments` orders quants for registers of matrix fragments, where rows are plain and their blocks allow it.

    Tensors of fewer than two axes keep plain rows. Raises Unsupported where one tile of rows exceeds `max_bytes`.
    """
    columns = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1], dtype=np.int64)) if len(shape) > 1 else 1
    tile = tile_rows if len(shape) > 1 else 1
    format.row_bytes(columns)
    ordered = fragments and tile == 1 and len(shape) > 1
    probe = WeightLayout(format, rows, columns, tile, (), ordered)
    tile_bytes = probe.row_words * 4 * tile
    if max_bytes is not None and tile_bytes > max_bytes:
        raise Unsupported(
            f"weight {format.name}{list(shape)}",
            f"{tile} rows take {tile_bytes:,} bytes, over the binding limit of {max_bytes:,}",
        )
    part_rows = rows if max_bytes is None else max_bytes // tile_bytes * tile
    parts: list[Part] = []
    offset = 0
    for first in range(0, rows, part_rows):
        count = min(part_rows, rows - first)
        nbytes = probe.padded(count) * probe.row_words * 4
        parts.append(Part(first, count, offset, nbytes))
        offset = -(-(offset + nbytes) // alignment) * alignment
    return WeightLayout(format, rows, columns, tile, tuple(parts), ordered)
