"""Scalar instructions in assembly against Python's whole numbers: result and condition."""

from __future__ import annotations

import numpy as np
import pytest

GROUPS = 96
HEAD = """
s_load_b128 s[4:7], s[0:1], 0x0
s_lshl_b32 s3, s2, 4
s_mul_i32 s16, s2, 12
s_waitcnt lgkmcnt(0)
s_load_b128 s[8:11], s[4:5], s3
s_mov_b64 s[12:13], 0
s_waitcnt lgkmcnt(0)
s_cmp_lg_u32 0, 0
"""
TAIL = """
s_cselect_b32 s14, 1, 0
v_mov_b32 v1, s16
v_mov_b32 v2, s12
v_mov_b32 v3, s13
v_mov_b32 v4, s14
global_store_b96 v1, v[2:4], s[6:7]
"""
LOW = 2**32 - 1
ALL = 2**64 - 1


def signed(x, bits=32):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def some(x):
    """A result that sets the condition where it is not 0."""
    return x, int(x != 0)


def added(a, b):
    return (a + b) & LOW, int(a + b > LOW)


def overflowing(total):
    return total & LOW, int(not -(2**31) <= total < 2**31)


def field(x, where, bits, sign):
    offset, count = where & (bits - 1), (where >> 16) & 0x7F
    value = (x >> offset if not sign else signed(x, bits) >> offset) & ((1 << min(count, bits)) - 1)
    if sign and count and count < bits and value >> (count - 1):
        value -= 1 << count
    return some(value & ((1 << bits) - 1))


def leading(x, bits):
    return bits - x.bit_length() if x else -1


def trailing(x):
    return (x & -x).bit_length() - 1


def quads(x, bits):
    return sum(0xF << i for i in range(0, bits, 4) if x >> i & 0xF)


# Of operands a and b (32 or 64 bits wide) to the result and the condition; alone, a result leaves the condition at 0.
NARROW = {
    "s_add_u32": added, "s_sub_u32": lambda a, b: ((a - b) & LOW, int(b > a)),
    "s_add_i32": lambda a, b: overflowing(signed(a) + signed(b)),
    "s_sub_i32": lambda a, b: overflowing(signed(a) - signed(b)),
    "s_mul_i32": lambda a, b: (a * b & LOW, 0), "s_mul_hi_u32": lambda a, b: (a * b >> 32, 0),
    "s_mul_hi_i32": lambda a, b: (signed(a) * signed(b) >> 32 & LOW, 0),
    "s_min_u32": lambda a, b: (min(a, b), int(a < b)), "s_max_u32": lambda a, b: (max(a, b), int(a >= b)),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)) & LOW, int(signed(a) < signed(b))),
    "s_max_i32": lambda a, b: (max(signed(a), signed(b)) & LOW, int(signed(a) >= signed(b))),
    "s_and_b32": lambda a, b: some(a & b), "s_or_b32": lambda a, b: some(a | b), "s_xor_b32": lambda a, b: some(a ^ b),
    "s_and_not1_b32": lambda a, b: some(a & ~b & LOW), "s_or_not1_b32": lambda a, b: some((a | ~b) & LOW),
    "s_nand_b32": lambda a, b: some(~(a & b) & LOW), "s_nor_b32": lambda a, b: some(~(a | b) & LOW),
    "s_xnor_b32": lambda a, b: some(~(a ^ b) & LOW),
    "s_lshl_b32": lambda a, b: some(a << (b & 31) & LOW), "s_lshr_b32": lambda a, b: some(a >> (b & 31)),
    "s_ashr_i32": lambda a, b: some(signed(a) >> (b & 31) & LOW),
    "s_bfm_b32": lambda a, b: (((1 << (a & 31)) - 1) << (b & 31) & LOW, 0),
    "s_bfe_u32": lambda a, b: field(a, b, 32, False), "s_bfe_i32": lambda a, b: field(a, b, 32, True),
    "s_absdiff_i32": lambda a, b: some(abs(signed((signed(a) - signed(b)) & LOW)) & LOW),
    "s_lshl1_add_u32": lambda a, b: ((a << 1) + b & LOW, int((a << 1) + b > LOW)),
    "s_lshl4_add_u32": lambda a, b: ((a << 4) + b & LOW, int((a << 4) + b > LOW)),
    "s_pack_ll_b32_b16": lambda a, b: ((a & 0xFFFF) | (b & 0xFFFF) << 16, 0),
    "s_pack_lh_b32_b16": lambda a, b: ((a & 0xFFFF) | b & 0xFFFF0000, 0),
    "s_pack_hh_b32_b16": lambda a, b: (a >> 16 | b & 0xFFFF0000, 0),
}  # fmt: skip

WIDE = {
    "s_and_b64": lambda a, b: some(a & b), "s_or_b64": lambda a, b: some(a | b), "s_xor_b64": lambda a, b: some(a ^ b),
    "s_and_not1_b64": lambda a, b: some(a & ~b & ALL), "s_xnor_b64": lambda a, b: some(~(a ^ b) & ALL),
}  # fmt: skip

SHIFTS = {
    "s_lshl_b64": lambda a, b: some(a << (b & 63) & ALL), "s_lshr_b64": lambda a, b: some(a >> (b & 63)),
    "s_ashr_i64": lambda a, b: some(signed(a, 64) >> (b & 63) & ALL),
    "s_bfe_u64": lambda a, b: field(a, b, 64, False), "s_bfe_i64": lambda a, b: field(a, b, 64, True),
}  # fmt: skip

ALONE = {
    "s_not_b32": lambda a: some(~a & LOW), "s_abs_i32": lambda a: some(abs(signed(a)) & LOW),
    "s_brev_b32": lambda a: (int(f"{a:032b}"[::-1], 2), 0), "s_bcnt1_i32_b32": lambda a: some(a.bit_count()),
    "s_bcnt0_i32_b32": lambda a: some(32 - a.bit_count()), "s_ctz_i32_b32": lambda a: (trailing(a) & LOW, 0),
    "s_clz_i32_u32": lambda a: (leading(a, 32) & LOW, 0),
    "s_cls_i32": lambda a: (leading(a ^ LOW if a >> 31 else a, 32) & LOW, 0),
    "s_sext_i32_i8": lambda a: (signed(a, 8) & LOW, 0), "s_sext_i32_i16": lambda a: (signed(a, 16) & LOW, 0),
    "s_wqm_b32": lambda a: some(quads(a, 32)), "s_mov_b32": lambda a: (a, 0),
}  # fmt: skip

ALONE_WIDE = {
    "s_not_b64": lambda a: some(~a & ALL), "s_mov_b64": lambda a: (a, 0), "s_wqm_b64": lambda a: some(quads(a, 64)),
}  # fmt: skip

TO_NARROW = {
    "s_bcnt1_i32_b64": lambda a: some(a.bit_count()), "s_ctz_i32_b64": lambda a: (trailing(a) & LOW, 0),
    "s_clz_i32_u64": lambda a: (leading(a, 64) & LOW, 0),
}  # fmt: skip

COMPARED = {
    f"s_cmp_{how}_{kind}32": lambda a, b, rule=rule, see=see: rule(see(a), see(b))
    for kind, see in (("i", signed), ("u", int))
    for how, rule in {
        "eq": int.__eq__, "lg": int.__ne__, "gt": int.__gt__, "ge": int.__ge__, "lt": int.__lt__, "le": int.__le__,
    }.items()
}  # fmt: skip

LOOP = "s_and_b32 s15, s8, 7\n1:\ns_add_u32 s12, s12, s10\ns_sub_u32 s15, s15, 1\ns_cbranch_scc0 1b\ns_cmp_lg_u32 0, 0"

CASES = {
    **{name: (f"{name} s12, s8, s10", rule, 32, 32) for name, rule in NARROW.items()},
    **{name: (f"{name} s[12:13], s[8:9], s[10:11]", rule, 64, 64) for name, rule in WIDE.items()},
    **{name: (f"{name} s[12:13], s[8:9], s10", rule, 64, 32) for name, rule in SHIFTS.items()},
    **{name: (f"{name} s12, s8", lambda a, b, rule=rule: rule(a), 32, 32) for name, rule in ALONE.items()},
    **{
        name: (f"{name} s[12:13], s[8:9]", lambda a, b, rule=rule: rule(a), 64, 64) for name, rule in ALONE_WIDE.items()
    },
    **{name: (f"{name} s12, s[8:9]", lambda a, b, rule=rule: rule(a), 64, 64) for name, rule in TO_NARROW.items()},
    **{
        name: (f"{name} s8, s10", lambda a, b, rule=rule: (0, int(rule(a, b))), 32, 32)
        for name, rule in COMPARED.items()
    },
    "addc": ("s_add_u32 s12, s8, s10\ns_addc_u32 s13, s9, s11", lambda a, b: (a + b & ALL, int(a + b > ALL)), 64, 64),
    "subb": ("s_sub_u32 s12, s8, s10\ns_subb_u32 s13, s9, s11", lambda a, b: (a - b & ALL, int(b > a)), 64, 64),
    "addk": ("s_mov_b32 s12, s8\ns_addk_i32 s12, 0xfffe", lambda a, b: overflowing(signed(a) - 2), 32, 32),
    "mulk": ("s_mov_b32 s12, s8\ns_mulk_i32 s12, 0x1234", lambda a, b: (a * 0x1234 & LOW, 0), 32, 32),
    "movk": ("s_movk_i32 s12, 0x8001", lambda a, b: (0xFFFF8001, 0), 32, 32),
    "cmpk": ("s_cmpk_lt_i32 s8, 0xfff0", lambda a, b: (0, int(signed(a) < -16)), 32, 32),
    "bitcmp1": ("s_bitcmp1_b32 s8, s10", lambda a, b: (0, a >> (b & 31) & 1), 32, 32),
    "bitcmp0": ("s_bitcmp0_b64 s[8:9], s10", lambda a, b: (0, 1 - (a >> (b & 63) & 1)), 64, 32),
    "bitset": ("s_mov_b32 s12, s8\ns_bitset1_b32 s12, s10\ns_bitset0_b32 s12, 3",
               lambda a, b: ((a | 1 << (b & 31)) & ~8, 0), 32, 32),
    "cselect": ("s_cmp_lt_u32 s8, s10\ns_cselect_b64 s[12:13], s[8:9], s[10:11]\ns_cmp_lg_u32 0, 0",
                lambda a, b: (a if a & LOW < b & LOW else b, 0), 64, 64),
    "cmov": ("s_mov_b32 s12, s10\ns_cmp_lt_u32 s8, s10\ns_cmov_b32 s12, s8",
             lambda a, b: (min(a, b), int(a < b)), 32, 32),
    "literal": ("s_add_u32 s12, s8, 0x12345678", lambda a, b: added(a, 0x12345678), 32, 32),
    "inline": ("s_and_b64 s[12:13], s[8:9], -16", lambda a, b: some(a & ALL - 15), 64, 64),
    "float": ("s_xor_b32 s12, s8, 0.5", lambda a, b: some(a ^ 0x3F000000), 32, 32),
    "saveexec": ("s_mov_b32 s12, s8\ns_or_saveexec_b32 s13, s12\ns_mov_b32 s12, exec_lo\ns_mov_b32 exec_lo, 1",
                 lambda a, b: (a | 1 | 1 << 32, 1), 32, 32),
    "loop": (LOOP,
             lambda a, b: (((a & 7) + 1) * b & LOW, 0), 32, 32),
}  # fmt: skip
"""Text, rule, and the widths of the operands."""


@pytest.fixture(scope="module")
def kernels(assembly):
    return assembly(*(HEAD + text + TAIL for text, *_ in CASES.values()))


@pytest.mark.parametrize("name", CASES)
def test_scalar_instruction(kernels, rng, name):
    text, rule, first, second = CASES[name]
    x = rng.integers(0, 2**64, (GROUPS, 2), np.uint64)
    # Small numbers, equal ones, and the ends.
    x[::4] >>= rng.integers(0, 64, (GROUPS // 4, 2)).astype(np.uint64)
    x[1::8, 1] = x[1::8, 0]
    x[:4] = [[0, 0], [2**64 - 1, 1], [2**31, 2**31], [2**63, 2**16 + 5]]
    y = np.zeros((GROUPS, 3), np.uint32)
    kernels.run(f"k{list(CASES).index(name)}", [x, y], groups=(GROUPS, 1, 1), items=(1, 1, 1))
    for (a, b), (low, high, scc) in zip(x.tolist(), y.tolist(), strict=True):
        expected = rule(a & ((1 << first) - 1), b & ((1 << second) - 1))
        assert (low | high << 32, scc) == expected, (text, hex(a), hex(b))
