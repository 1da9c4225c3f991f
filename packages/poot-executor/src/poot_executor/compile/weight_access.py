"""Reading a weight in its device layout, one element at a time: what gathers and pointwise expressions use.

Contractions read whole blocks instead (kernels/contraction.py). Both stand on `layout.WeightLayout`.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.dtype import DType
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.packing import from_bf16
from poot_executor.layout import Part, Plane, WeightLayout


def weight_element(
    b: KernelBuilder, parts: Sequence[BufferRef], layout: WeightLayout, row: Handle, column: Handle
) -> Handle:
    """Element [row, column] as f32, decoded. With several parts the one that holds the row is read."""
    if len(parts) == 1:
        return _element(b, parts[0], layout, layout.parts[0], row, column)
    value = b.var(0.0, DType.F32, name="element")
    for buffer, part in zip(parts, layout.parts, strict=True):
        with b.if_((row >= part.first) & (row < part.first + part.rows)):
            value.set(_element(b, buffer, layout, part, row - part.first, column))
    return value.get()


def plane_word(
    buffer: BufferRef, layout: WeightLayout, part: Part, plane: Plane, row: Handle, word: Handle | int
) -> Handle:
    """Word `word` of a row of a part in a plane."""
    return buffer.load_words(plane.place(row, buffer.index_handle(word), layout.tile_rows, layout.padded(part.rows)))


def _element(
    b: KernelBuilder, buffer: BufferRef, layout: WeightLayout, part: Part, row: Handle, column: Handle
) -> Handle:
    def word(name: str, index: Handle) -> Handle:
        return plane_word(buffer, layout, part, layout.plane(name), row, index)

    def half(name: str, index: Handle) -> Handle:
        return _shifted(b, word(name, index // 2), (index % 2) * 16)

    dense = layout.format.dtype
    if dense is DType.F32:
        return b.bitcast(word("value", column), DType.F32)
    if dense is not None:
        bits = half("value", column)
        return b.half_to_float(bits & 0xFFFF) if dense is DType.F16 else from_bf16(bits)
    block, inner = column // 32, column % 32
    quant = _quant(b, layout, word, block, inner)
    if "scale_minimum" in {p.name for p in layout.planes}:
        scale, minimum = b.unpack_half2(word("scale_minimum", block))
        return b.fma(scale, quant, minimum)
    return b.half_to_float(half("scale", block) & 0xFFFF) * quant


def _quant(b: KernelBuilder, layout: WeightLayout, word, block: Handle, inner: Handle) -> Handle:  # noqa: ANN001
    """The quant of one column, as f32, with the format's zero point taken off."""
    name = layout.format.name
    if name == "q8_0":
        packed = word("quants", block * 8 + inner // 4)
        return b.cast(b.unpack_byte(packed, b.cast((inner % 4) * 8, DType.U32), signed=True), DType.F32)
    # Byte i of a 4-bit block: column i low, column i + 16 high.
    packed = word("quants", block * 4 + (inner % 16) // 4)
    nibble = _shifted(b, packed, (inner % 4) * 8 + (inner // 16) * 4) & 15
    if name.startswith("q5"):
        nibble = nibble | ((_shifted(b, word("high", block), inner) & 1) << 4)
    zero = {"q4_0": 8, "q5_0": 16}.get(name, 0)
    return b.cast(b.bitcast(nibble, DType.I32) - zero, DType.F32)


def _shifted(b: KernelBuilder, word: Handle, bits: Handle) -> Handle:
    return word >> b.cast(bits, DType.U32)
