"""Matrix fragments as HIP text: the layouts of AMD's matrix instructions, behind functions that hide them.

A product is 16 rows by 16 columns. A lane has words of one row of `a`, or of one column of `b`: lane l has number l mod
16, and where lanes share a row, ⌊l/16⌋ is the part of the depth that each has. Any order of the depth gives the same
product as long as it is the same in both factors. Of a sum a lane has elements of column l mod 16, and which rows
differs between generations ("AMD matrix cores", and the instruction set guides of CDNA3, RDNA3 and RDNA4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from poot_executor.dtype import DType
from poot_executor.kernel.fragments import FragmentShape, FragmentType, Use

SIDE = 16
"""Rows and columns of every product, and the depth of those of halves."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one generation's instructions hold a product: `parts` of the depth that lanes of a row have one each of,
    `values` of a sum a lane, the row of value i, how deep a product of bytes is, and the instructions."""

    parts: int
    values: int
    row: str
    byte_depth: int
    f16: str
    bf16: str
    i8: str


_CDNA2 = Family(
    4,
    4,
    "4 * (lane >> 4) + i",
    16,
    "__builtin_amdgcn_mfma_f32_16x16x16f16(poot_bits<poot_f16s>(a), poot_bits<poot_f16s>(b), c, 0, 0, 0)",
    "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k(poot_bits<poot_i16s>(a), poot_bits<poot_i16s>(b), c, 0, 0, 0)",
    "__builtin_amdgcn_mfma_i32_16x16x16i8(poot_bits<i32>(a), poot_bits<i32>(b), c, 0, 0, 0)",
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "cdna2": _CDNA2,
        "cdna3": replace(
            _CDNA2,
            byte_depth=32,
            i8="__builtin_amdgcn_mfma_i32_16x16x32_i8(poot_bits<u64>(a), poot_bits<u64>(b), c, 0, 0, 0)",
        ),
        "rdna3": Family(
            1,
            8,
            "2 * i + (lane >> 4)",
            16,
            "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32(poot_bits<poot_f16s>(a), poot_bits<poot_f16s>(b), c)",
            "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(poot_bits<poot_i16s>(a), poot_bits<poot_i16s>(b), c)",
            "__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32("
            "true, poot_bits<i32x4>(a), true, poot_bits<i32x4>(b), c, false)",
        ),
        "rdna4": Family(
            2,
            8,
            "8 * (lane >> 4) + i",
            16,
            "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(poot_bits<poot_f16s>(a), poot_bits<poot_f16s>(b), c)",
            "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(poot_bits<poot_i16s>(a), poot_bits<poot_i16s>(b), c)",
            "__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12("
            "true, poot_bits<i32x2>(a), true, poot_bits<i32x2>(b), c, false)",
        ),
    }
)
"""By the name that architectures give."""

_LANE = """\
#ifndef POOT_HOST
#define POOT_LANE const i32 lane = poot_thread() & (POOT_WAVE - 1), own = lane & 15
typedef f16 poot_f16s __attribute__((ext_vector_type($halves)));
typedef short poot_i16s __attribute__((ext_vector_type($halves)));
"""

_FACTOR = """\
typedef u32 poot_$kind __attribute__((ext_vector_type($words)));
template <int depth, int stride> POOT_INLINE poot_$kind poot_load_lines_$kind(const u32 *at) {
    POOT_LANE;
    const u32 *line = at + own * stride + ($first) / $per;
    poot_$kind found;
#pragma unroll
    for (i32 i = 0; i < $words; ++i) found[i] = line[i];
    return found;
}
template <int depth, int stride> POOT_INLINE poot_$kind poot_load_across_$kind(const u32 *at) {
    POOT_LANE;
    const u32 *word = at + ($first) * stride + own / $per;
    const u32 shift = $bits * (own % $per);
    poot_$kind found;
#pragma unroll
    for (i32 i = 0; i < $words; ++i) {
        u32 held = 0;
#pragma unroll
        for (i32 k = 0; k < $per; ++k) held |= (word[($per * i + k) * stride] >> shift & $mask) << $bits * k;
        found[i] = held;
    }
    return found;
}
"""

_SUM = """\
typedef $type poot_sum_$type __attribute__((ext_vector_type($values)));
POOT_INLINE poot_sum_$type poot_zero_$type() { return (poot_sum_$type)(($type)0); }
template <int stride, bool rows> POOT_INLINE poot_sum_$type poot_load_sum_$type(const $type *at) {
    POOT_LANE;
    poot_sum_$type found;
#pragma unroll
    for (i32 i = 0; i < $values; ++i) found[i] = at[rows ? ($row) * stride + own : own * stride + ($row)];
    return found;
}
template <int stride, bool rows> POOT_INLINE void poot_store_sum_$type($type *at, poot_sum_$type value) {
    POOT_LANE;
#pragma unroll
    for (i32 i = 0; i < $values; ++i) at[rows ? ($row) * stride + own : own * stride + ($row)] = value[i];
}
POOT_INLINE poot_sum_$type poot_fma_$type(poot_sum_$type a, poot_sum_$type b, poot_sum_$type c) {
#pragma unroll
    for (i32 i = 0; i < $values; ++i) c[i] = $fma;
    return c;
}
"""

_PRODUCTS = """\
POOT_INLINE poot_sum_f32 poot_mma_f16(poot_halves a, poot_halves b, poot_sum_f32 c) {
    return $f16;
}
POOT_INLINE poot_sum_f32 poot_mma_bf16(poot_halves a, poot_halves b, poot_sum_f32 c) {
    return $bf16;
}
POOT_INLINE poot_sum_i32 poot_mma_i8(poot_bytes a, poot_bytes b, poot_sum_i32 c) {
    return $i8;
}
#endif
"""

_FMA = MappingProxyType({"f32": "__builtin_fmaf(a[i], b[i], c[i])", "i32": "(i32)((u32)a[i] * (u32)b[i] + (u32)c[i])"})


def shapes_of(name: str) -> tuple[FragmentShape, ...]:
    """The products of a family: of halves, which are summed in f32, and of signed bytes."""
    halves = (FragmentShape(SIDE, SIDE, SIDE, half, DType.F32) for half in (DType.F16, DType.BF16))
    return (*halves, FragmentShape(SIDE, SIDE, FAMILIES[name].byte_depth, DType.I8, DType.I32))


def fragment_name(type: FragmentType) -> str:
    """The C type of a fragment, which no lane has alone."""
    if type.use is Use.SUM:
        return f"poot_sum_{type.dtype}"
    return f"poot_{factor_kind(type)}"


def factor_kind(type: FragmentType) -> str:
    """What a factor's functions are named after."""
    return "bytes" if type.dtype is DType.I8 else "halves"


def fragment_text(name: str) -> str:
    """The functions of a family."""
    family = FAMILIES[name]
    products = {"f16": family.f16, "bf16": family.bf16, "i8": family.i8}
    return "".join(
        [
            _filled(_LANE, {"halves": SIDE // family.parts}),
            _factor(family, "halves", SIDE, 2),
            _factor(family, "bytes", family.byte_depth, 4),
            *(
                _filled(_SUM, {"type": type, "values": family.values, "row": family.row, "fma": fma})
                for type, fma in _FMA.items()
            ),
            _filled(_PRODUCTS, products),
        ]
    )


def _factor(family: Family, kind: str, depth: int, per: int) -> str:
    """Loads of factors of so many elements a word. Where lanes share no row each has all of the depth."""
    own = depth // family.parts
    first = f"{own} * (lane >> 4)" if family.parts > 1 else "0"
    bits = 32 // per
    places = {"kind": kind, "words": own // per, "per": per, "bits": bits, "mask": f"{(1 << bits) - 1:#x}u"}
    return _filled(_FACTOR, {**places, "first": first})


def _filled(text: str, places: Mapping[str, object]) -> str:
    for place, value in places.items():
        text = text.replace(f"${place}", str(value))
    return text
