"""Matrix fragments as HIP text: the layouts of AMD's matrix instructions, behind functions that hide them.

A product is 16 rows by 16 columns by a depth of 16. A lane has all its words of one row of `a`, or one column of `b`:
lane l has number l mod 16, and where the others have a part of the depth each, they are the quotient. Any order of the
depth gives the same product as long as it is the same in both factors. Of a sum a lane has elements of column l mod 16,
and which rows differs between generations ("AMD matrix cores", and the instruction set guides of RDNA3 and RDNA4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Family:
    """How one generation's instructions hold a product: `words` of a factor and `values` of a sum a lane, the row of
    value i, the first element of the depth that a lane has, and the instructions for f16 and bf16."""

    words: int
    values: int
    row: str
    first: str
    f16: str
    bf16: str


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "mfma": Family(
            2,
            4,
            "4 * (lane >> 4) + i",
            "4 * (lane >> 4)",
            "__builtin_amdgcn_mfma_f32_16x16x16f16({a}, {b}, c, 0, 0, 0)",
            "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k({a}, {b}, c, 0, 0, 0)",
        ),
        "wmma": Family(
            8,
            8,
            "2 * i + (lane >> 4)",
            "0",
            "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32({a}, {b}, c)",
            "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32({a}, {b}, c)",
        ),
        "wmma12": Family(
            4,
            8,
            "8 * (lane >> 4) + i",
            "8 * (lane >> 4)",
            "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12({a}, {b}, c)",
            "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12({a}, {b}, c)",
        ),
    }
)
"""By the name that architectures give: CDNA's, RDNA3's and RDNA4's instructions."""

_TEXT = """\
#ifndef POOT_HOST
typedef u32 poot_factor __attribute__((ext_vector_type($words)));
typedef f32 poot_sum __attribute__((ext_vector_type($values)));
typedef f16 poot_halves __attribute__((ext_vector_type($halves)));
typedef short poot_shorts __attribute__((ext_vector_type($halves)));
#define POOT_LANE const i32 lane = poot_thread() & (POOT_WAVE - 1), own = lane & 15
POOT_INLINE poot_sum poot_zero() { return (poot_sum)(0.0f); }
template <int stride> POOT_INLINE poot_factor poot_load_lines(const u32 *at) {
    POOT_LANE;
    const u32 *line = at + own * stride + ($first) / 2;
    poot_factor found;
#pragma unroll
    for (i32 i = 0; i < $words; ++i) found[i] = line[i];
    return found;
}
template <int stride> POOT_INLINE poot_factor poot_load_across(const u32 *at) {
    POOT_LANE;
    const u32 *word = at + ($first) * stride + (own >> 1);
    const u32 shift = 16 * (own & 1);
    poot_factor found;
#pragma unroll
    for (i32 i = 0; i < $words; ++i)
        found[i] = (word[2 * i * stride] >> shift & 0xffffu) | word[(2 * i + 1) * stride] >> shift << 16;
    return found;
}
template <int stride, bool rows> POOT_INLINE poot_sum poot_load_sum(const f32 *at) {
    POOT_LANE;
    poot_sum found;
#pragma unroll
    for (i32 i = 0; i < $values; ++i) found[i] = at[rows ? ($row) * stride + own : own * stride + ($row)];
    return found;
}
template <int stride, bool rows> POOT_INLINE void poot_store_sum(f32 *at, poot_sum value) {
    POOT_LANE;
#pragma unroll
    for (i32 i = 0; i < $values; ++i) at[rows ? ($row) * stride + own : own * stride + ($row)] = value[i];
}
POOT_INLINE poot_sum poot_mma_f16(poot_factor a, poot_factor b, poot_sum c) {
    return $f16;
}
POOT_INLINE poot_sum poot_mma_bf16(poot_factor a, poot_factor b, poot_sum c) {
    return $bf16;
}
POOT_INLINE poot_sum poot_fma(poot_sum a, poot_sum b, poot_sum c) {
#pragma unroll
    for (i32 i = 0; i < $values; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
#endif
"""


def fragment_text(name: str) -> str:
    """The functions of a family."""
    family = FAMILIES[name]
    f16, bf16 = (
        call.format(a=f"poot_bits<{type}>(a)", b=f"poot_bits<{type}>(b)")
        for call, type in ((family.f16, "poot_halves"), (family.bf16, "poot_shorts"))
    )
    places = {
        "$words": str(family.words), "$values": str(family.values), "$halves": str(2 * family.words),
        "$first": family.first, "$row": family.row, "$f16": f16, "$bf16": bf16,
    }  # fmt: skip
    text = _TEXT
    for place, value in places.items():
        text = text.replace(place, value)
    return text
