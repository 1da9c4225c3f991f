"""Reading a weight block by block: the decoders that a contraction is specialized with, one a format.

A block is up to 32 columns of one row. A decoder loads a row's words of a block, gives the quants as f32, and says how
the dot product of quants and activations becomes the product with weights: scale · Σ q·x + minimum · Σ x, so that a
zero point is never rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_executor.compile.weight_access import plane_word
from poot_executor.dtype import DType
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.packing import from_bf16
from poot_executor.layout import Part, WeightLayout

DENSE_BLOCKS = (32, 16, 8, 4, 2, 1)
"""Columns that a contraction takes at a time from a format that has no blocks of its own: the first that divides the
depth, and with
plain rows, whose lanes take neighbouring vectors, one vector's."""


def block_columns(layout: WeightLayout) -> int:
    """Columns that a contraction takes at a time."""
    if layout.format.is_packed:
        return layout.format.columns
    fits = layout.plane("value").vector * 4 // layout.format.nbytes
    if layout.tile_rows == 1:
        return fits
    return next(c for c in DENSE_BLOCKS if layout.columns % c == 0 and c % fits == 0)


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Blocks of one part of a weight. `columns` a block; `scaled` says that quants are to be multiplied by a scale.

    `wide` and `narrow` bind the same bytes: `wide` is read by whole vectors only, so that a target can declare it so.
    """

    b: KernelBuilder
    wide: BufferRef
    narrow: BufferRef
    layout: WeightLayout
    part: Part

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return block_columns(self.layout)

    @property
    def has_minimum(self) -> bool:
        """Whether a block has a minimum beside its scale."""
        return any(field.name == "minimum" for field in self.layout.format.fields)

    @property
    def scaled(self) -> bool:
        """Whether what `value` gives is a quant, to be multiplied by the block's scale."""
        return self.layout.format.is_packed

    def scales(self, row: Handle, block: Handle) -> tuple[Handle, Handle | None]:
        """Scale and minimum (None where the format has none) of a block."""
        b = self.b
        if self.has_minimum:
            scale, minimum = b.unpack_half2(self._word("scale_minimum", row, block))
            return scale, minimum
        pair = self._word("scale", row, block >> 1)
        return b.half_to_float((pair >> b.cast((block & 1) << 4, DType.U32)) & 0xFFFF), None

    def words(self, row: Handle, block: Handle) -> list[Handle]:
        """The quant words of a row's block, then for 5-bit formats the word of high bits."""
        plane = self.layout.plane("quants" if self.scaled else "value")
        first = block * self.quant_words
        words: list[Handle] = []
        for i in range(0, self.quant_words, plane.vector):
            at = plane.place(row, first + i, self.layout.tile_rows, self.layout.padded(self.part.rows))
            loaded = (self.wide if plane.vector > 1 else self.narrow).load_words(at, plane.vector)
            words.extend(loaded[lane] for lane in range(plane.vector)) if plane.vector > 1 else words.append(loaded)
        if "high" in {p.name for p in self.layout.planes}:
            words.append(self._word("high", row, block))
        return words

    @property
    def quant_words(self) -> int:
        """Words of a row's block in the plane of quants."""
        if not self.scaled:
            return self.columns * self.layout.format.nbytes // 4
        return self.layout.plane("quants").field_bytes // 4

    def order(self) -> list[int]:
        """Columns of a block in the order that suits the words."""
        if self.layout.format.name[:2] in ("q4", "q5"):
            return [i + half for i in range(16) for half in (0, 16)]
        return list(range(self.columns))

    def value(self, words: Sequence[Handle], column: int) -> Handle:
        """Quant (or for dense formats the weight) number `column` of a block, f32."""
        b, name = self.b, self.layout.format.name
        match name:
            case "f32":
                return b.bitcast(words[column], DType.F32)
            case "f16":
                return b.half_to_float((words[column // 2] >> (column % 2 * 16)) & 0xFFFF)
            case "bf16":
                word = words[column // 2]
                return b.bitcast(word & 0xFFFF0000, DType.F32) if column % 2 else from_bf16(word)
            case "q8_0":
                return b.cast(b.unpack_byte(words[column // 4], column % 4 * 8, signed=True), DType.F32)
        bits = (words[column % 16 // 4] >> (column % 4 * 8 + column // 16 * 4)) & 15
        if name.startswith("q5"):
            shifted = words[4] << (4 - column) if column < 4 else words[4] >> (column - 4)
            bits = bits | (shifted & 16)
        zero = {"q4_0": 8, "q5_0": 16}.get(name, 0)
        return b.cast(b.bitcast(bits, DType.I32) - zero, DType.F32)

    def _word(self, plane: str, row: Handle, word: Handle) -> Handle:
        return plane_word(self.narrow, self.layout, self.part, self.layout.plane(plane), row, word)
