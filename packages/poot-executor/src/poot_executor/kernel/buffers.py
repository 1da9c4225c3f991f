"""Buffers and shared arrays as a kernel is written: element access over whole 32-bit words.

A device buffer holds 32-bit elements. A buffer of f16, bf16, i8, u8 or bool elements is a u32 buffer whose elements
are read out of their word: f16 and bf16 as f32, i8 and u8 as i32, bool (a whole word, 0 or 1) as bool. Element i of a
16-bit buffer lies in bits 16·(i mod 2) of word i div 2, element i of an 8-bit buffer in bits 8·(i mod 4) of word i
div 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.fold import Number
from poot_executor.kernel.fragments import FragmentType
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access
from poot_executor.kernel.packing import from_bf16, unpack_byte
from poot_executor.kernel.signatures import WORD_DTYPES

if TYPE_CHECKING:
    from poot_executor.kernel.operations import Operations

_PER_WORD = {DType.F16: 2, DType.BF16: 2, DType.I8: 4, DType.U8: 4}
_READ_AS = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.I8: DType.I32, DType.U8: DType.I32}


def word_dtype(dtype: DType) -> DType:
    """The element dtype of the kernel parameter that holds a buffer of `dtype`."""
    return dtype if dtype in WORD_DTYPES else DType.U32


class BufferRef:
    """A buffer of `dtype` elements. Indices are i32 element indices or Python integers.

    `value_dtype` is what `ref[i]` gives and what a store takes. An index outside the buffer is the device's robust
    access: it reads some value, and a store does nothing or hits an element of the same buffer.
    """

    __slots__ = ("_builder", "access", "dtype", "index", "name", "per_word", "value_dtype")

    def __init__(self, builder: Operations, index: int, name: str, dtype: DType, access: Access) -> None:
        self._builder = builder
        self.index = index
        self.name = name
        self.dtype = dtype
        self.access = access
        self.per_word = _PER_WORD.get(dtype, 1)
        self.value_dtype = _READ_AS.get(dtype, dtype)

    def __getitem__(self, index: Handle | int) -> Handle:
        """Element `index`."""
        return self.load(index)

    def __setitem__(self, index: Handle | int, value: Handle | Number) -> None:
        """Store a scalar. Raises KernelError for a 16- or 8-bit buffer, whose words two threads would share."""
        self.store(index, value)

    def load(self, index: Handle | int, width: int = 1) -> Handle:
        """`width` (1, 2 or 4) elements from `index`, a multiple of `width`, as a scalar or vector."""
        b = self._builder
        if self.per_word == 1:
            loaded = self.load_words(index, width)
            return loaded != 0 if self.dtype is DType.BOOL else loaded
        at = b.as_index(index)
        if width == 1:
            return self._part(self.load_words(at // self.per_word), at % self.per_word)
        if width not in (2, 4):
            raise KernelError(f"load of width {width}: 1, 2 or 4")
        words = self.load_words(at // self.per_word, max(1, width // self.per_word))
        first = at % self.per_word if width < self.per_word else b.const(0, DType.I32)
        return b.vector(*(self._lane(words, first, lane) for lane in range(width)))

    def load_words(self, index: Handle | int, width: int = 1) -> Handle:
        """`width` (1, 2 or 4) whole words from word `index`, a multiple of `width`, in the parameter's own dtype."""
        return self._builder.emit("load", self._builder.as_index(index), buffer=self.index, width=width)

    def store(self, index: Handle | int, value: Handle | Number) -> None:
        """Store a scalar, or a vector from an index that is a multiple of its width."""
        b = self._builder
        if self.per_word != 1:
            raise KernelError(
                f"{self.name} has {self.dtype} elements, and sub-word stores are whole words: pack and use store_word"
            )
        handle = b.as_handle(value, self.value_dtype)
        if handle.dtype is not self.value_dtype:
            raise KernelError(f"a store of {handle.type} to {self.name}, which holds {self.dtype}: cast it")
        if self.dtype is DType.BOOL:
            handle = b.cast(handle, DType.U32)
        b.effect("store", b.as_index(index), handle, buffer=self.index)

    def store_word(self, index: Handle | int, word: Handle | int) -> None:
        """Store a whole u32 word (or a vector of them) of a buffer of sub-word or bool elements, by word index."""
        b = self._builder
        b.effect("store", b.as_index(index), b.as_handle(word, word_dtype(self.dtype)), buffer=self.index)

    def load_fragment(self, index: Handle | int, type: FragmentType, stride: int, major: str = "row") -> Handle:
        """A matrix fragment whose lines ("row" or "column") are `stride` words apart, from word `index`."""
        at = self._builder.as_index(index)
        return self._builder.emit("fragment_load", at, buffer=self.index, stride=stride, major=major, **type.attrs)

    def store_fragment(self, index: Handle | int, value: Handle, stride: int, major: str = "row") -> None:
        """Store a matrix fragment of sums, its lines `stride` elements apart, from element `index`."""
        at = self._builder.as_index(index)
        self._builder.effect("fragment_store", at, value, buffer=self.index, stride=stride, major=major)

    def index_handle(self, index: Handle | int) -> Handle:
        """An index as an i32 handle."""
        return self._builder.as_index(index)

    def length(self) -> Handle:
        """Elements bound at the dispatch, an i32; of a sub-word buffer, those that its whole words hold."""
        return self._builder.emit("length", buffer=self.index) * self.per_word

    def atomic(self, operation: str, index: Handle | int, value: Handle | int) -> Handle:
        """add, min, max or or on an i32 or u32 element; gives the old value."""
        b = self._builder
        if self.dtype not in (DType.I32, DType.U32):
            raise KernelError(f"atomic works on i32 and u32, and {self.name} is {self.dtype}")
        handle = b.as_handle(value, self.dtype)
        return b.emit("atomic", b.as_index(index), handle, buffer=self.index, operation=operation)

    def _lane(self, words: Handle, first: Handle, lane: int) -> Handle:
        word, place = divmod(lane, self.per_word)
        return self._part(words[word] if words.width > 1 else words, first + place)

    def _part(self, word: Handle, place: Handle) -> Handle:
        """The element in a word: `place` counts from its low bits."""
        b = self._builder
        shift = b.cast(place, DType.U32) * (32 // self.per_word)
        if self.dtype is DType.F16:
            return b.half_to_float(word >> shift)
        if self.dtype is DType.BF16:
            return from_bf16(word >> shift)
        return unpack_byte(word, shift, signed=self.dtype is DType.I8)


class SharedRef:
    """A shared array of the group: `count` elements of f32, i32 or u32."""

    __slots__ = ("_builder", "count", "dtype", "index", "name")

    def __init__(self, builder: Operations, index: int, name: str, dtype: DType, count: int) -> None:
        self._builder = builder
        self.index = index
        self.name = name
        self.dtype = dtype
        self.count = count

    def __getitem__(self, index: Handle | int) -> Handle:
        return self._builder.emit("shared_load", self._builder.as_index(index), array=self.index)

    def __setitem__(self, index: Handle | int, value: Handle | Number) -> None:
        b = self._builder
        b.effect("shared_store", b.as_index(index), b.as_handle(value, self.dtype), array=self.index)

    def load(self, index: Handle | int, width: int) -> Handle:
        """`width` (2 or 4) elements from `index`, a multiple of `width`, as a vector."""
        return self._builder.emit("shared_load", self._builder.as_index(index), array=self.index, width=width)

    def load_fragment(self, index: Handle | int, type: FragmentType, stride: int, major: str = "row") -> Handle:
        """A matrix fragment whose lines ("row" or "column") are `stride` elements apart, from element `index`."""
        at = self._builder.as_index(index)
        return self._builder.emit("fragment_load", at, array=self.index, stride=stride, major=major, **type.attrs)

    def store_fragment(self, index: Handle | int, value: Handle, stride: int, major: str = "row") -> None:
        """Store a matrix fragment of sums, its lines `stride` elements apart, from element `index`."""
        at = self._builder.as_index(index)
        self._builder.effect("fragment_store", at, value, array=self.index, stride=stride, major=major)

    def atomic(self, operation: str, index: Handle | int, value: Handle | int) -> Handle:
        """add, min, max or or on an i32 or u32 element; gives the old value."""
        b = self._builder
        handle = b.as_handle(value, self.dtype)
        return b.emit("atomic", b.as_index(index), handle, array=self.index, operation=operation)

    def copy_from(self, place: Handle, source: BufferRef, word: Handle) -> None:
        """Begin to copy four words of a buffer, from a multiple of four, to a multiple of four here."""
        b = self._builder
        b.effect("shared_copy", b.as_index(place), b.as_index(word), buffer=source.index, array=self.index)

    def multiply(
        self, a: Handle | int, c: Handle | int, sums: Sequence[Handle], half: DType, behind: int = 0
    ) -> list[Handle]:
        """The sums with a warpgroup's product of the tiles that begin at words `a` and `c`."""
        b, attrs = self._builder, {"array": self.index, "half": str(half), "behind": behind}
        return b.several("warpgroup_mma", b.as_index(a), b.as_index(c), *sums, **attrs)
