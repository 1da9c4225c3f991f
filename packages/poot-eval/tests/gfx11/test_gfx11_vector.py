"""Vector instructions in assembly against numpy: those that compilers seldom make of the other tests' text."""

from __future__ import annotations

import numpy as np
import pytest

HEAD = """
s_load_b128 s[4:7], s[0:1], 0x0
v_lshlrev_b32 v1, 5, v0
v_lshlrev_b32 v2, 3, v0
s_waitcnt lgkmcnt(0)
global_load_b128 v[4:7], v1, s[4:5]
global_load_b128 v[8:11], v1, s[4:5] offset:16
v_mov_b32 v12, 0
v_mov_b32 v13, 0
s_waitcnt vmcnt(0)
"""
TAIL = "\nglobal_store_b64 v2, v[12:13], s[6:7]"
LANES = 1024

U, S, F, H = np.uint32, np.int32, np.float32, np.float16


def number(bits, dtype):
    """Words as a type; of 16 bits the lower half."""
    return bits.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)


def middle(a, b, c):
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def of(dtype, rule):
    """A rule over the operands as a type."""
    return lambda *words: rule(*(number(w, dtype) for w in words))


def narrowed(x):
    """Signed words in the range of 16 bits."""
    return np.clip(x.view(S), -(2**15), 2**15 - 1).astype(U)


def low24(x):
    return x.astype(np.uint64) & np.uint64(0xFFFFFF)


def high24(x):
    return (x.view(S) << S(8) >> S(8)).astype(np.int64)


def permuted(a, b, s):
    both = a.astype(np.uint64) << np.uint64(32) | b
    out = np.zeros_like(a)
    for i in range(4):
        byte = s >> U(8 * i) & U(0xFF)
        out |= (both >> ((byte & U(7)).astype(np.uint64) * np.uint64(8)) & np.uint64(0xFF)).astype(U) << U(8 * i)
    return out


def extracted(x, offset, width):
    """A signed field, in Python's numbers."""
    out = []
    for value, at, count in zip(x.view(S).tolist(), offset.tolist(), width.tolist(), strict=True):
        kept = (value >> (at & 31)) & ((1 << (count & 31)) - 1)
        sign = count & 31 and kept >> (count & 31) - 1
        out.append(kept - (1 << (count & 31)) if sign else kept)
    return np.array(out, np.int64).astype(S)


def classes(x, wanted):
    """Whether x is of a wanted class."""
    quiet = (x.view(U) >> U(22) & U(1)).astype(bool)
    small, sign = np.abs(x) < np.finfo(F).tiny, np.signbit(x)
    kinds = [
        np.isnan(x) & ~quiet, np.isnan(x) & quiet, np.isneginf(x),
        np.isfinite(x) & ~small & sign, small & (x != 0) & sign, (x == 0) & sign,
        (x == 0) & ~sign, small & (x != 0) & ~sign, np.isfinite(x) & ~small & ~sign, np.isposinf(x),
    ]  # fmt: skip
    return sum((kind & (wanted >> U(i) & U(1)).astype(bool)).astype(U) for i, kind in enumerate(kinds))


# Operands are v4, v5, v6 (words a, b, c) and v8 and v9 (floats x, y); results are in v12.
CASES = {
    "v_med3_i32 v12, v4, v5, v6": lambda a, b, c, x, y: of(S, middle)(a, b, c),
    "v_med3_u32 v12, v4, v5, v6": lambda a, b, c, x, y: middle(a, b, c),
    "v_med3_f32 v12, v8, v9, 0.5": lambda a, b, c, x, y: middle(x, y, F(0.5)),
    "v_max3_i32 v12, v4, v5, v6": lambda a, b, c, x, y: of(S, lambda *v: np.maximum.reduce(v))(a, b, c),
    "v_min3_u32 v12, v4, v5, v6": lambda a, b, c, x, y: np.minimum.reduce((a, b, c)),
    "v_maxmin_u32 v12, v4, v5, v6": lambda a, b, c, x, y: np.minimum(np.maximum(a, b), c),
    "v_minmax_f32 v12, v8, v9, 1.0": lambda a, b, c, x, y: np.maximum(np.minimum(x, y), F(1)),
    "v_max3_f32 v12, |v8|, -v9, 2.0": lambda a, b, c, x, y: np.maximum.reduce([np.abs(x), -y, np.full_like(x, 2)]),
    "v_add_f32_e64 v12, -|v8|, v9": lambda a, b, c, x, y: -np.abs(x) + y,
    "v_mul_f32_e64 v12, v8, v9 clamp": lambda a, b, c, x, y: np.clip(x * y, F(0), F(1)) + F(0),
    "v_mul_f32_e64 v12, v8, v9 mul:4": lambda a, b, c, x, y: x * y * F(4),
    "v_add_f32_e64 v12, v8, v9 div:2": lambda a, b, c, x, y: (x + y) * F(0.5),
    "v_subrev_f32 v12, v8, v9": lambda a, b, c, x, y: y - x,
    "v_fract_f32 v12, v8": lambda a, b, c, x, y: np.minimum(x - np.floor(x), np.nextafter(F(1), F(0))),
    "v_ldexp_f32 v12, v8, v10": lambda a, b, c, x, y: None,
    "v_frexp_mant_f32 v12, v8": lambda a, b, c, x, y: np.frexp(x)[0],
    "v_frexp_exp_i32_f32 v12, v8": lambda a, b, c, x, y: np.frexp(x)[1].astype(S),
    "v_fma_f32 v12, v8, v9, -v8": lambda a, b, c, x, y: (x.astype("f8") * y - x).astype(F),
    "v_fmaak_f32 v12, v8, v9, 0x40400000": lambda a, b, c, x, y: (x.astype("f8") * y + 3).astype(F),
    "v_fmamk_f32 v12, v8, 0x40400000, v9": lambda a, b, c, x, y: (x.astype("f8") * 3 + y).astype(F),
    "v_cndmask_b32_e64 v12, v8, -v9, s8": lambda a, b, c, x, y: np.where(np.arange(LANES) % 2, -y, x),
    "v_cvt_f32_ubyte2 v12, v4": lambda a, b, c, x, y: (a >> U(16) & U(0xFF)).astype(F),
    "v_cvt_floor_i32_f32 v12, v8": lambda a, b, c, x, y: np.floor(x).astype(S),
    "v_cvt_nearest_i32_f32 v12, v8": lambda a, b, c, x, y: np.floor(x.astype("f8") + 0.5).astype(S),
    "v_cvt_pk_i16_i32 v12, v4, v5": lambda a, b, c, x, y: (
        narrowed(a) & U(0xFFFF) | narrowed(b) << U(16)
    ),
    "v_cvt_pk_rtz_f16_f32 v12, v8, v9": lambda a, b, c, x, y: None,
    "v_pack_b32_f16 v12, v4, v5 op_sel:[1,0,0]": lambda a, b, c, x, y: a >> U(16) | b << U(16),
    "v_add3_u32 v12, v4, v5, v6": lambda a, b, c, x, y: a + b + c,
    "v_lshl_add_u32 v12, v4, 5, v6": lambda a, b, c, x, y: (a << U(5)) + c,
    "v_add_lshl_u32 v12, v4, v5, v6": lambda a, b, c, x, y: (a + b) << (c & U(31)),
    "v_xad_u32 v12, v4, v5, v6": lambda a, b, c, x, y: (a ^ b) + c,
    "v_and_or_b32 v12, v4, v5, v6": lambda a, b, c, x, y: (a & b) | c,
    "v_or3_b32 v12, v4, v5, v6": lambda a, b, c, x, y: a | b | c,
    "v_xor3_b32 v12, v4, v5, v6": lambda a, b, c, x, y: a ^ b ^ c,
    "v_bfi_b32 v12, v4, v5, v6": lambda a, b, c, x, y: (a & b) | (~a & c),
    "v_bfe_i32 v12, v4, v5, v6": lambda a, b, c, x, y: extracted(a, b, c),
    "v_bfm_b32 v12, v4, v5": lambda a, b, c, x, y: ((U(1) << (a & U(31))) - U(1)) << (b & U(31)),
    "v_alignbit_b32 v12, v4, v5, v6": lambda a, b, c, x, y: (
        (a.astype("u8") << np.uint64(32) | b) >> (c & U(31)).astype("u8")
    ).astype(U),
    "v_alignbyte_b32 v12, v4, v5, 3": lambda a, b, c, x, y: a << U(8) | b >> U(24),
    "v_perm_b32 v12, v4, v5, v7": lambda a, b, c, x, y: None,
    "v_mul_u32_u24 v12, v4, v5": lambda a, b, c, x, y: (low24(a) * low24(b)).astype(U),
    "v_mul_hi_u32_u24 v12, v4, v5": lambda a, b, c, x, y: (low24(a) * low24(b) >> np.uint64(32)).astype(U),
    "v_mad_i32_i24 v12, v4, v5, v6": lambda a, b, c, x, y: (high24(a) * high24(b) + c).astype(U),
    "v_mul_hi_i32_i24 v12, v4, v5": lambda a, b, c, x, y: (high24(a) * high24(b) >> 32).astype(U),
    "v_mad_u32_u16 v12, v4, v5, v6": lambda a, b, c, x, y: (a & U(0xFFFF)) * (b & U(0xFFFF)) + c,
    "v_mad_i32_i16 v12, v4, v5, v6 op_sel:[1,0,0,0]": lambda a, b, c, x, y: (
        (a.view(S) >> S(16)) * number(b, "i2").astype(S) + c.view(S)
    ),
    "v_sad_u8 v12, v4, v5, v6": lambda a, b, c, x, y: (
        np.abs(a.view("u1").astype(S) - b.view("u1")).reshape(-1, 4).sum(axis=1) + c
    ).astype(U),
    "v_mul_lo_u16 v12, v4, v5": lambda a, b, c, x, y: (a * b) & U(0xFFFF),
    "v_add_nc_u16 v12, v4, v5 clamp": lambda a, b, c, x, y: np.minimum((a & U(0xFFFF)) + (b & U(0xFFFF)), U(0xFFFF)),
    "v_sub_nc_i32 v12, v4, v5 clamp": lambda a, b, c, x, y: np.clip(
        a.view(S).astype("i8") - b.view(S), -(2**31), 2**31 - 1
    ).astype(S),
    "v_lshrrev_b16 v12, v4, v5": lambda a, b, c, x, y: (b & U(0xFFFF)) >> (a & U(15)),
    "v_ashrrev_i16 v12, v4, v5": lambda a, b, c, x, y: (
        (number(b, "i2") >> (a & U(15)).astype("i2")).view("u2").astype(U)
    ),
    "v_pk_add_u16 v12, v4, v5": lambda a, b, c, x, y: (a + b & U(0xFFFF)) | ((a >> U(16)) + (b >> U(16))) << U(16),
    "v_pk_mul_lo_u16 v12, v4, v5 op_sel_hi:[0,1]": lambda a, b, c, x, y: (
        (a * b & U(0xFFFF)) | a * (b >> U(16)) << U(16)
    ),
    "v_pk_mad_u16 v12, v4, v5, v6": lambda a, b, c, x, y: (a * b + c & U(0xFFFF))
    | ((a >> U(16)) * (b >> U(16)) + (c >> U(16))) << U(16),
    "v_pk_lshlrev_b16 v12, 3, v4 op_sel_hi:[0,1]": lambda a, b, c, x, y: (
        (a << U(3) & U(0xFFF8)) | (a >> U(16)) << U(19)
    ),
    "v_clz_i32_u32 v12, v4": lambda a, b, c, x, y: np.array([32 - int(v).bit_length() if v else -1 for v in a], S),
    "v_cls_i32 v12, v4": lambda a, b, c, x, y: np.array(
        [32 - int(v).bit_length() if v else -1 for v in np.where(a.view(S) < 0, ~a, a)], S
    ),
    "v_bcnt_u32_b32 v12, v4, v5": lambda a, b, c, x, y: np.array([int(v).bit_count() for v in a], U) + b,
    "v_mad_u64_u32 v[12:13], s8, v4, v5, v[6:7]": lambda a, b, c, x, y: None,
    "v_cmp_class_f32 s9, v8, 0x3ff\nv_cndmask_b32 v12, 0, 1, s9": lambda a, b, c, x, y: np.ones(LANES, U),
    "v_cmp_class_f32 s9, v9, v4\nv_cndmask_b32 v12, 0, 1, s9": lambda a, b, c, x, y: classes(y, a),
    "v_cmp_nlt_f32 vcc_lo, v8, v9\nv_cndmask_b32 v12, 0, 1, vcc_lo": lambda a, b, c, x, y: (~(x < y)).astype(U),
    "v_cmp_lg_f32 vcc_lo, v8, v9\nv_cndmask_b32 v12, 0, 1, vcc_lo": lambda a, b, c, x, y: (x != y).astype(U),
    "v_cmpx_gt_u32 v4, v5\nv_mov_b32 v12, 7\ns_mov_b32 exec_lo, -1": lambda a, b, c, x, y: np.where(a > b, U(7), U(0)),
    "v_cmp_t_u32 s9, v4, v5\nv_mov_b32 v12, s9": lambda a, b, c, x, y: np.full(LANES, 2**32 - 1, U),
    "s_mov_b32 m0, 5\nv_mov_b32 v12, m0": lambda a, b, c, x, y: np.full(LANES, 5, U),
    "s_denorm_mode 0\nv_mul_f32 v12, 1.0, v10": lambda a, b, c, x, y: None,
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\nv_mul_f32 v12, v10, 1.0": lambda a, b, c, x, y: None,
    "s_getreg_b32 s9, hwreg(HW_REG_MODE, 4, 2)\nv_mov_b32 v12, s9": lambda a, b, c, x, y: np.full(LANES, 3, U),
}  # fmt: skip


def rest(name, words):
    """What the cases with operands of their own leave."""
    x, y, tiny = (words[:, 4 + i].copy() for i in range(3))
    a, b, c, selector = (words[:, i].copy() for i in range(4))
    match name.split()[0]:
        case "v_ldexp_f32":
            return np.ldexp(x.view(F), np.clip(tiny.view(S), -5000, 5000)).astype(F)
        case "v_cvt_pk_rtz_f16_f32":
            low, high = (_toward_zero(v.view(F)) for v in (x, y))
            return low | high << U(16)
        case "v_perm_b32":
            return permuted(a, b, selector)
        case "v_mad_u64_u32":
            return a.astype("u8") * b + (c.astype("u8") | selector.astype("u8") << np.uint64(32))
    value = tiny.view(F)
    return np.where(np.abs(value) < np.finfo(F).tiny, np.copysign(F(0), value), value)


def _toward_zero(x):
    half = x.astype(H)
    past = np.abs(half.astype(F)) > np.abs(x)
    return (half.view("u2") - past.astype("u2")).astype(U)


@pytest.fixture(scope="module")
def kernels(assembly):
    return assembly(*(f"{HEAD}s_mov_b32 s8, 0xaaaaaaaa\n{text}{TAIL}" for text in CASES))


@pytest.mark.parametrize("name", CASES)
def test_vector_instruction(kernels, rng, name):
    words = rng.integers(0, 2**32, (LANES, 8), np.uint32)
    words[::3, :4] >>= U(20)
    words[::5, 1] = words[::5, 0]
    words[:, 3] &= U(0x07070707)  # bytes that a permutation picks
    words[:, 4:6] = (rng.standard_normal((LANES, 2)) * np.exp2(rng.integers(-8, 9, (LANES, 2)))).astype(F).view(U)
    words[:, 6] = rng.choice([rng.integers(1, 1 << 23), 5, 2**32 - 7, 0x80000001, 0x3F800000], LANES).astype(U)
    if name.startswith("v_cmp_class"):
        special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -1e-40, 2.0, -2.0], F)
        words[:, 5] = rng.choice(special, LANES).view(U)
    y = np.zeros((LANES, 2), U)
    kernels.run(f"k{list(CASES).index(name)}", [words, y], items=(LANES, 1, 1))
    a, b, c = (words[:, i].copy() for i in range(3))
    with np.errstate(all="ignore"):
        expected = CASES[name](a, b, c, words[:, 4].copy().view(F), words[:, 5].copy().view(F))
        expected = rest(name, words) if expected is None else expected
    got = y[:, 0] if expected.dtype.itemsize == 4 else y.reshape(-1).view(np.uint64)
    np.testing.assert_array_equal(got, expected.view(got.dtype))


UNITS = {
    "v_exp_f32": np.exp2, "v_log_f32": np.log2, "v_rcp_f32": np.reciprocal, "v_sqrt_f32": np.sqrt,
    "v_rsq_f32": lambda x: 1 / np.sqrt(x), "v_sin_f32": lambda x: np.sin(2 * np.pi * x),
    "v_cos_f32": lambda x: np.cos(2 * np.pi * x),
}  # fmt: skip


def test_units_round_the_real_value_and_know_no_denormals(assembly, rng):
    kernels = assembly(*(f"{HEAD}{unit} v12, v8\n{unit} v13, v9{TAIL}" for unit in UNITS))
    words = np.zeros((LANES, 8), U)
    x = rng.uniform(0.01, 20, LANES).astype(F)
    words[:, 4] = x.view(U)
    words[:, 5] = np.float32(1e-40).view(U)
    for place, (unit, rule) in enumerate(UNITS.items()):
        y = np.zeros((LANES, 2), U)
        kernels.run(f"k{place}", [words, y], items=(LANES, 1, 1))
        with np.errstate(all="ignore"):
            np.testing.assert_array_max_ulp(y[:, 0].copy().view(F), rule(x.astype(np.float64)).astype(F), 1)
            at_zero = rule(np.zeros(1)).astype(F)
        assert (y[:, 1].copy().view(F) == at_zero).all(), unit
