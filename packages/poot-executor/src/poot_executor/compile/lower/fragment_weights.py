"""Weights as matrix fragments, read straight into registers: what a lane loads, and its halves for each product.

Lane 4g + t of a subgroup has columns of weight rows g and g + 8. Which columns is free, as long as the activations come
in the same order: so a lane takes neighbouring words, four at a load, and `fours` and `by_bytes` say which columns of
a run of 32 they hold. A quant becomes a half by its bits: put below a power of two whose last place is one, less that
power.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.compile.schedule_fragments import DEPTH, unit_columns
from poot_executor.dtype import DType
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.layout import LANES, Part, WeightLayout

Pair = tuple[Handle, Handle]

Loaded = list[Handle]
"""Words of a lane from one row of a unit: four of quants (or of halves), then high bits, then scales."""


@dataclass(frozen=True, slots=True)
class Magic:
    """A power of two whose last place is one, as a half: an integer in its low bits is that much above it. `one` is 1,
    `minus` −1."""

    power: int
    bits: int
    one: int
    minus: int

    def negated(self, zero: int) -> int:
        """The half −(power + zero), which takes the power and a zero point off."""
        return self.bits | zero | 0x8000


MAGIC = {DType.BF16: Magic(128, 0x4300, 0x3F80, 0xBF80), DType.F16: Magic(1024, 0x6400, 0x3C00, 0xBC00)}
ZEROS = {"q4_0": 8, "q5_0": 16}


def both(half: int) -> int:
    """A word with a half twice."""
    return half << 16 | half


def apart(layout: WeightLayout) -> bool:
    """Whether a lane's columns of a run are two groups of four apart, not eight neighbours."""
    return layout.format.name.startswith(("q4", "q5"))


def fours(layout: WeightLayout, lane: Handle) -> tuple[Handle, Handle]:
    """Of a run of 32 columns, where the two groups of four neighbours begin that lane `lane` of four has."""
    if apart(layout):
        return lane * 4, lane * 4 + 16  # a byte has columns i and i + 16
    return lane * 8, lane * 8 + 4


def by_bytes(layout: WeightLayout, four: list[Handle]) -> list[Handle]:
    """Four neighbouring columns in the order in which their halves are taken: in packed words every other byte."""
    return [four[c] for c in (0, 2, 1, 3)] if layout.format.is_packed else four


@dataclass(frozen=True, slots=True)
class FragmentWeight:
    """One part of a weight as fragments of `half`. `lane` is t. `in_order` says that activations come as they are
    stored, so that packed halves are put in order; otherwise activations are put in theirs (`by_bytes`)."""

    b: KernelBuilder
    wide: BufferRef
    narrow: BufferRef
    layout: WeightLayout
    part: Part
    half: DType
    lane: Handle
    in_order: bool

    @property
    def runs(self) -> int:
        """Runs of 32 columns of a load."""
        return unit_columns(self.layout) // DEPTH

    @property
    def scaled(self) -> bool:
        """Whether a run's products are to be multiplied by its scale."""
        return self.layout.format.is_packed

    @property
    def has_minimum(self) -> bool:
        """Whether a block has a minimum beside its scale."""
        return any(field.name == "minimum" for field in self.layout.format.fields)

    def load(self, row: Handle, unit: Handle) -> Loaded:
        """The words of a unit of a row that this lane needs."""
        plane = self.layout.plane("quants" if self.scaled else "value")
        first = row * plane.words + unit * (LANES * LANES) + self.lane * LANES
        loaded = self.wide.load_words(first + plane.start * self.layout.padded(self.part.rows), LANES)
        words = [loaded[i] for i in range(LANES)]
        if self._high:
            words += self._words("high", row, unit, self.runs)
        if self.has_minimum:
            words += self._words("scale_minimum", row, unit, self.runs)
        elif self.scaled:
            words += self._words("scale", row, unit, self.runs // 2)
        return words

    @property
    def _high(self) -> bool:
        return any(plane.name == "high" for plane in self.layout.planes)

    def scales(self, words: Loaded) -> list[tuple[Handle, Handle | None]]:
        """Scale and minimum (None where the format has none) of each run of a unit; nothing for dense weights."""
        if not self.scaled:
            return []
        pairs = [self.b.unpack_half2(word) for word in words[LANES + self.runs * self._high :]]
        return list(pairs) if self.has_minimum else [(scale, None) for pair in pairs for scale in pair]

    def pairs(self, words: Loaded, run: int) -> tuple[Pair, Pair]:
        """The halves of a run, two a word, for its two fragments: each a pair of words."""
        name = self.layout.format.name
        if not self.scaled:
            return (words[0], words[1]), (words[2], words[3])
        if name == "q8_0":
            low, high = words[2 * run : 2 * run + 2]
            return self._bytes(low), self._bytes(high)
        word = words[run]
        high = words[LANES + run] >> self.b.cast(self.lane * 4, DType.U32) if self._high else None
        return self._nibbles(word, high, 0), self._nibbles(word, high, 4)

    def _nibbles(self, word: Handle, high: Handle | None, shift: int) -> Pair:
        """Columns 0 and 2, then 1 and 3, of the low (or for `shift` 4 the high) nibbles of a word."""
        found = []
        for odd in (0, 1):
            bits = (word >> (shift + 8 * odd)) & 0x000F000F
            if high is not None:
                # Bit i of the run's high bits belongs to column i: to place 4 of one half, to place 20 of the other.
                first, second = 4 * shift + odd, 4 * shift + odd + 2
                bits = bits | (((high >> first) & 1) << 4) | (((high >> second) & 1) << 20)
            found.append(self._less(bits | both(MAGIC[self.half].bits), ZEROS.get(self.layout.format.name, 0)))
        return self._ordered(found[0], found[1])

    def _bytes(self, word: Handle) -> Pair:
        """Bytes 0 and 2, then 1 and 3, as signed numbers."""
        b, magic = self.b, MAGIC[self.half]
        found = []
        for odd in (0, 1):
            part = word >> (8 * odd)
            if self.half is DType.F16:
                # With its sign flipped a signed byte is that byte plus 128, which f16 has room for.
                found.append(self._less((part & 0x00FF00FF) ^ both(magic.bits | 0x80), 128))
                continue
            # 128 + the low seven bits, less 128, or 256 where the sign bit is set: which is 128 with that bit added.
            low, sign = (part & 0x007F007F) | both(magic.bits), (part & 0x00800080) | both(magic.bits)
            found.append(b.packed_fma(sign, both(magic.minus), low, self.half))
        return self._ordered(found[0], found[1])

    def _ordered(self, even: Handle, odd: Handle) -> Pair:
        """Words of columns 0 and 2, and of 1 and 3, as words of 0 and 1, and of 2 and 3, where order is asked for."""
        if not self.in_order:
            return even, odd
        return (even & 0xFFFF) | (odd << 16), (even >> 16) | (odd & 0xFFFF0000)

    def _less(self, bits: Handle, zero: int) -> Handle:
        magic = MAGIC[self.half]
        return self.b.packed_fma(bits, both(magic.one), both(magic.negated(zero)), self.half)

    def _words(self, name: str, row: Handle, unit: Handle, count: int) -> list[Handle]:
        """The `count` words of a unit in a plane without an order of its own, in one load where they are aligned."""
        plane, padded = self.layout.plane(name), self.layout.padded(self.part.rows)
        first = row * plane.words + unit * count + plane.start * padded
        aligned = plane.words % count == 0 and plane.start * padded % count == 0
        if count in (2, 4) and aligned:
            loaded = self.wide.load_words(first, count)
            return [loaded[i] for i in range(count)]
        return [self.narrow.load_words(first + i) for i in range(count)]
