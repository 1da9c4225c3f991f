"""What every kernel's text begins with: types and functions over compiler builtins alone.

No header and no device library is needed, so that hiprtc, ROCm's clang and any other clang compile the same text. Where
POOT_HOST names a header the text is plain C++ over what that one defines, for running kernels on a processor.
"""

from __future__ import annotations

TYPES = """\
#define POOT_APART 0
#define POOT_TOGETHER 1
#pragma clang fp contract(off)
typedef float f32;
typedef int i32;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef _Float16 f16;
typedef f32 f32x2 __attribute__((ext_vector_type(2)));
typedef f32 f32x4 __attribute__((ext_vector_type(4)));
typedef i32 i32x2 __attribute__((ext_vector_type(2)));
typedef i32 i32x4 __attribute__((ext_vector_type(4)));
typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
"""

DEVICE = """\
#ifdef POOT_HOST
#include POOT_HOST
#else
#define POOT_INLINE __attribute__((device, unused, always_inline)) static inline
#define POOT_KERNEL(threads, together, shared_bytes) \\
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#define POOT_SHARED(type, name, count, offset) __attribute__((shared, aligned(16))) type name[count]
#define POOT_ROUND()
template <class To, class From> POOT_INLINE To poot_bits(From value) { return __builtin_bit_cast(To, value); }
POOT_INLINE i32 poot_thread() { return (i32)__builtin_amdgcn_workitem_id_x(); }
template <int axis> POOT_INLINE i32 poot_group() {
    return (i32)(axis == 0 ? __builtin_amdgcn_workgroup_id_x()
               : axis == 1 ? __builtin_amdgcn_workgroup_id_y() : __builtin_amdgcn_workgroup_id_z());
}
POOT_INLINE void poot_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <class T> POOT_INLINE T poot_shuffle(T value, i32 lane) {
    return poot_bits<T>(__builtin_amdgcn_ds_bpermute(lane << 2, poot_bits<i32>(value)));
}
template <class T> POOT_INLINE T poot_broadcast(T value, i32 lane) {
    return poot_bits<T>(__builtin_amdgcn_readlane(poot_bits<i32>(value), lane));
}
template <int control, class T> POOT_INLINE T poot_dpp(T value) {
    return poot_bits<T>(__builtin_amdgcn_mov_dpp(poot_bits<i32>(value), control, 0xf, 0xf, true));
}
/* Of a row of 16 lanes each takes another's value; of the other row in the second function. */
#if POOT_WAVE == 32
template <int mask, class T> POOT_INLINE T poot_row_xor(T value) { return poot_dpp<0x160 | mask>(value); }
constexpr u32 poot_picks(u32 first, u32 mask) {
    u32 picks = 0;
    for (u32 lane = 0; lane < 8; ++lane) picks |= ((first + lane) ^ mask) << 4 * lane;
    return picks;
}
template <int mask, class T> POOT_INLINE T poot_rows_xor(T value) {
    const u32 bits = poot_bits<u32>(value);
    constexpr u32 low = poot_picks(0, mask & 15), high = poot_picks(8, mask & 15);
    u32 taken = __builtin_amdgcn_permlanex16(bits, bits, low, high, false, false);
    /* Clang moves the instruction to where its result is used, under a condition that not all lanes meet. */
    asm volatile("" : "+v"(taken));
    return poot_bits<T>(taken);
}
#else
template <int mask, class T> POOT_INLINE T poot_row_xor(T value) {
    return poot_bits<T>(__builtin_amdgcn_ds_swizzle(poot_bits<i32>(value), mask << 10 | 0x1f));
}
template <int mask, class T> POOT_INLINE T poot_rows_xor(T value) { return poot_row_xor<mask>(value); }
#endif
template <int mask, class T> POOT_INLINE T poot_shuffle_xor(T value) {
    if constexpr (mask < 4) return poot_dpp<(mask ^ 3) << 6 | (mask ^ 2) << 4 | (mask ^ 1) << 2 | mask>(value);
    else if constexpr (mask < 16) return poot_row_xor<mask>(value);
    else if constexpr (mask < 32) return poot_rows_xor<mask>(value);
    else return poot_shuffle(value, (poot_thread() & (POOT_WAVE - 1)) ^ mask);
}
/* Each step joins what the last one made equal in the lanes of a pair, a quad, half a row and a row of 16. */
template <class Join, int size, class T> POOT_INLINE T poot_reduce(T value) {
    if constexpr (size >= 2) value = Join::of(value, poot_dpp<0xb1>(value));
    if constexpr (size >= 4) value = Join::of(value, poot_dpp<0x4e>(value));
    if constexpr (size >= 8) value = Join::of(value, poot_dpp<0x141>(value));
    if constexpr (size >= 16) value = Join::of(value, poot_dpp<0x140>(value));
    if constexpr (size < 32) return value;
    T joined = Join::of(poot_broadcast(value, 0), poot_broadcast(value, 16));
    if constexpr (size == 64) joined = Join::of(joined, Join::of(poot_broadcast(value, 32), poot_broadcast(value, 48)));
    return joined;
}
template <class Join, class T> POOT_INLINE T poot_reduce_some(T value, i32 lanes) {
    T joined = poot_broadcast(value, 0);
    lanes = __builtin_amdgcn_readfirstlane(lanes);
    for (i32 lane = 1; lane < lanes; ++lane) joined = Join::of(joined, poot_broadcast(value, lane));
    return joined;
}
#define POOT_ATOMIC(name) \\
    template <class T> POOT_INLINE T poot_atomic_##name(T *at, T value) { \\
        return __hip_atomic_fetch_##name(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); \\
    }
POOT_ATOMIC(add)
POOT_ATOMIC(min)
POOT_ATOMIC(max)
POOT_ATOMIC(or)
POOT_INLINE void poot_fail(u32 *fault, u32 word) {
    __hip_atomic_store(fault, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
    __builtin_trap();
}
/* The unit's root is off by one unit at most, and not for small numbers: the residues of its neighbours decide. */
POOT_INLINE f32 poot_sqrt(f32 value) {
    const bool small = value < 0x1p-96f;
    const f32 scaled = small ? value * 0x1p32f : value;
    const f32 root = __builtin_amdgcn_sqrtf(scaled);
    const f32 below = poot_bits<f32>(poot_bits<u32>(root) - 1u), above = poot_bits<f32>(poot_bits<u32>(root) + 1u);
    f32 found = __builtin_fmaf(-below, root, scaled) <= 0.0f ? below : root;
    found = __builtin_fmaf(-above, root, scaled) > 0.0f ? above : found;
    found = small ? found * 0x1p-16f : found;
    return value == 0.0f || value == __builtin_inff() ? value : found;
}
#ifdef POOT_MIXED_DOT
POOT_INLINE i32 poot_dot4(u32 a, u32 b, i32 c) {
    return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, c, false);
}
#else
POOT_INLINE i32 poot_dot4(u32 a, u32 b, i32 c) { return __builtin_amdgcn_sdot4((i32)a, (i32)b, c, false); }
#endif
#endif
"""

FUNCTIONS = """\
struct poot_add { template <class T> POOT_INLINE T of(T a, T b) { return a + b; } };
struct poot_max {
    template <class T> POOT_INLINE T of(T a, T b) { return a < b ? b : a; }
    POOT_INLINE f32 of(f32 a, f32 b) { return __builtin_fmaxf(a, b); }
};
struct poot_min {
    template <class T> POOT_INLINE T of(T a, T b) { return b < a ? b : a; }
    POOT_INLINE f32 of(f32 a, f32 b) { return __builtin_fminf(a, b); }
};
template <class T> POOT_INLINE T *poot_at(T *start, u32 index) { return (T *)((char *)start + (index << 2)); }
template <class T> POOT_INLINE const T *poot_at(const T *start, u32 index) {
    return (const T *)((const char *)start + (index << 2));
}
POOT_INLINE u32 poot_near(i32 index, u32 last) { return (u32)index < last ? (u32)index : last; }
/* The index of the last whole vector; an allocation is never shorter than one. */
POOT_INLINE u32 poot_last(u32 count, u32 width) {
    const u32 end = count & (0u - width);
    return (end < width ? width : end) - width;
}
/* What C leaves undefined may not happen, not even where nobody takes the result. */
POOT_INLINE i32 poot_div(i32 a, i32 b) { return b == -1 ? 0 - a : a / (b == 0 ? 1 : b); }
POOT_INLINE u32 poot_div(u32 a, u32 b) { return a / (b == 0u ? 1u : b); }
POOT_INLINE i32 poot_rem(i32 a, i32 b) { return b == -1 ? 0 : a % (b == 0 ? 1 : b); }
POOT_INLINE u32 poot_rem(u32 a, u32 b) { return a % (b == 0u ? 1u : b); }
POOT_INLINE f32 poot_half(u32 word) { return (f32)poot_bits<f16>((u16)word); }
POOT_INLINE u32 poot_to_half(f32 value) { return (u32)poot_bits<u16>((f16)value); }
"""


def prelude(wave: int, *, mixed_dot: bool) -> str:
    """The head of a kernel's text for waves of that many lanes."""
    defines = f"#define POOT_WAVE {wave}\n" + ("#define POOT_MIXED_DOT\n" if mixed_dot else "")
    return defines + TYPES + DEVICE + FUNCTIONS
