"""Reading a weight block by block: the decoders that a contraction is specialized with, one a format.

A block is up to 32 columns of one row. A decoder loads a row's words of a block, gives the quants as f32, and says how
the dot product of quants and activations becomes the product with weights: scale · Σ q·x + minimum · Σ x, so that a
zero point is never rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_executor.compile.schedule import shares_rows
from poot_executor.compile.target import Caps
from poot_executor.compile.weight_access import plane_word
from poot_executor.dtype import DType
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.packing import from_bf16
from poot_executor.layout import Part, WeightLayout

DENSE_BLOCKS = (32, 16, 8, 4, 2, 1)
"""Columns that a contraction takes at a time from a format that has no blocks of its own: the first that divides the
depth, and with plain rows, whose lanes take neighbouring vectors, one vector's."""


def block_columns(layout: WeightLayout) -> int:
    """Columns that a contraction takes at a time."""
    if layout.format.is_packed:
        return layout.format.columns
    fits = layout.plane("value").vector * 4 // layout.format.nbytes
    if layout.tile_rows == 1:
        return fits
    return next(c for c in DENSE_BLOCKS if layout.columns % c == 0 and c % fits == 0)


def lane_words(layout: WeightLayout, caps: Caps) -> int | None:
    """Quant words that a lane takes of a block, where the lanes of a subgroup share a row; None for the whole block.

    Neighbouring lanes then take neighbouring words and neighbouring activations: eight columns each, so that a
    subgroup's loads are contiguous.
    """
    if not layout.format.is_packed or not shares_rows(caps):
        return None
    return 2 if layout.format.name == "q8_0" else 1


def row_units(layout: WeightLayout, caps: Caps) -> int:
    """How many pieces of a row there are for lanes to take."""
    words = lane_words(layout, caps)
    blocks = layout.columns // block_columns(layout)
    return blocks if words is None else blocks * (layout.plane("quants").field_bytes // 4 // words)


MAGIC = 0x4B000000
"""The bits of 2^23: a small integer in its low bits is that much above it, which converts without a conversion."""


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Blocks of one part of a weight. `columns` a block; `scaled` says that quants are to be multiplied by a scale.

    `wide` and `narrow` bind the same bytes: `wide` is read by whole vectors only, so that a target can declare it so.
    `lane_words` is how many quant words a lane takes (see above): a block then has several `pieces`.
    """

    b: KernelBuilder
    wide: BufferRef
    narrow: BufferRef
    layout: WeightLayout
    part: Part
    lane_words: int | None

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return block_columns(self.layout)

    @property
    def pieces(self) -> int:
        """Pieces of a block."""
        return 1 if self.lane_words is None else self.quant_words // self.lane_words

    @property
    def run(self) -> int:
        """Neighbouring columns that a piece has, once in each of its `starts`."""
        return self.columns if self.lane_words is None else 4 * self.lane_words

    @property
    def starts(self) -> tuple[int, ...]:
        """Where in a block the runs of its first piece begin: a word of nibbles has columns 16 apart."""
        return (0, 16) if self.pieces > 1 and self._nibbles else (0,)

    @property
    def _nibbles(self) -> bool:
        return self.layout.format.name[:2] in ("q4", "q5")

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
        return self.scales_in(self.scale_word(row, block), block)

    def scale_word(self, row: Handle, block: Handle) -> Handle:
        """The word that has a block's scale."""
        if self.has_minimum:
            return self._word("scale_minimum", row, block)
        return self._word("scale", row, block >> 1)

    def scales_in(self, word: Handle, block: Handle) -> tuple[Handle, Handle | None]:
        """A block's scale and minimum in that word."""
        b = self.b
        if self.has_minimum:
            scale, minimum = b.unpack_half2(word)
            return scale, minimum
        return b.half_to_float((word >> b.cast((block & 1) << 4, DType.U32)) & 0xFFFF), None

    def words(self, row: Handle, block: Handle, piece: Handle | int) -> list[Handle]:
        """The quant words of a piece of a row's block; then for 5-bit formats its high bits, the first lowest."""
        plane = self.layout.plane("quants" if self.scaled else "value")
        count = self.quant_words if self.lane_words is None else self.lane_words
        vector = min(plane.vector, count)
        first = block * self.quant_words + (piece if self.lane_words is None else piece * count)
        words: list[Handle] = []
        for i in range(0, count, vector):
            at = plane.place(row, first + i, self.layout.tile_rows, self.layout.padded(self.part.rows))
            loaded = (self.wide if vector == 4 else self.narrow).load_words(at, vector)
            words.extend([loaded] if vector == 1 else [loaded[lane] for lane in range(vector)])
        if "high" in {p.name for p in self.layout.planes}:
            high = self._word("high", row, block)
            words.append(high if isinstance(piece, int) else high >> self.b.cast(piece * self.run, DType.U32))
        return words

    @property
    def quant_words(self) -> int:
        """Words of a row's block in the plane of quants."""
        if not self.scaled:
            return self.columns * self.layout.format.nbytes // 4
        return self.layout.plane("quants").field_bytes // 4

    def order(self) -> list[tuple[int, int]]:
        """(run, column in the run) of a piece, in the order that suits the words."""
        if self.pieces > 1:
            return [(r, c) for c in range(self.run) for r in range(len(self.starts))]
        if self._nibbles:
            return [(0, i + half) for i in range(16) for half in (0, 16)]
        return [(0, c) for c in range(self.columns)]

    def value(self, words: Sequence[Handle], run: int, column: int) -> Handle:
        """Quant (or for dense formats the weight) number `column` of a run of a piece, f32."""
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
                # A signed byte with its sign flipped is that byte plus 128.
                return self._small(((words[column // 4] ^ 0x80808080) >> (column % 4 * 8)) & 255, 128)
        if self.pieces == 1:
            run, column = divmod(column, 16)
        bits = (words[column // 4] >> (column % 4 * 8 + run * 4)) & 15
        if name.startswith("q5"):
            place = run * 16 + column
            bits = bits | ((words[-1] << (4 - place) if place < 4 else words[-1] >> (place - 4)) & 16)
        return self._small(bits, {"q4_0": 8, "q5_0": 16}.get(name, 0))

    def _small(self, bits: Handle, zero: int) -> Handle:
        """A number below 2^8 in the low bits of a u32, less `zero`, as f32, exactly."""
        return self.b.bitcast(bits | MAGIC, DType.F32) - float((1 << 23) + zero)

    def _word(self, plane: str, row: Handle, word: Handle) -> Handle:
        return plane_word(self.narrow, self.layout, self.part, self.layout.plane(plane), row, word)
