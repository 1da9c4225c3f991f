"""Lanes that see each other, in assembly: permutations, rows, reads of one lane, two instructions at once."""

from __future__ import annotations

import numpy as np
import pytest

HEAD = """
s_load_b128 s[4:7], s[0:1], 0x0
v_lshlrev_b32 v1, 2, v0
s_waitcnt lgkmcnt(0)
global_load_b32 v2, v1, s[4:5]
s_waitcnt vmcnt(0)
v_mov_b32 v3, -1
"""
TAIL = "global_store_b32 v1, v3, s[6:7]"

LANE = np.arange(32)
ROW, AT = LANE // 16 * 16, LANE % 16
EVERYWHERE = np.ones(32, bool)
NONE = np.uint32(0xFFFFFFFF)


def exchanged(assembly, rng, *texts, wave=32):
    """Random values in v2, and what each text leaves in v3. After "odd:" only odd lanes are active."""

    def whole(text):
        odd, words = text.startswith("odd:"), ("exec_lo", "exec_hi")[: wave // 32]
        narrow = "".join(f"s_mov_b32 {word}, 0xaaaaaaaa\n" for word in words) if odd else ""
        widen = "".join(f"s_mov_b32 {word}, -1\n" for word in words)
        return HEAD + narrow + text.removeprefix("odd:") + "\n" + widen + TAIL

    kernels = assembly(*map(whole, texts), wave=wave)
    x = rng.integers(0, 2**32, wave, np.uint32)
    results = []
    for i in range(len(texts)):
        results.append(np.zeros(wave, np.uint32))
        kernels.run(f"k{i}", [x, results[-1]], items=(wave, 1, 1))
    return x, *results


DPP = {
    "quad_perm:[3,2,0,1]": (LANE // 4 * 4 + np.array([3, 2, 0, 1])[LANE % 4], EVERYWHERE),
    "row_shl:3": (LANE + 3, AT + 3 < 16), "row_shr:5": (LANE - 5, AT >= 5),
    "row_ror:4": (ROW + (AT - 4) % 16, EVERYWHERE),
    "row_mirror": (ROW + 15 - AT, EVERYWHERE), "row_half_mirror": (LANE // 8 * 8 + 7 - LANE % 8, EVERYWHERE),
    "row_share:9": (ROW + 9, EVERYWHERE), "row_xmask:6": (LANE ^ 6, EVERYWHERE),
}  # fmt: skip


def test_rows(assembly, rng):
    move = "v_mov_b32_dpp v3, v2 {} row_mask:0xf bank_mask:0xf"
    masked = "v_add_nc_u32_dpp v3, v2, v2 {} row_mask:0x2 bank_mask:0x5 bound_ctrl:1"
    forms = (move, move + " bound_ctrl:1", masked, "odd:" + move, "odd:" + move + " fi:1")
    x, *results = exchanged(assembly, rng, *(form.format(control) for control in DPP for form in forms))
    odd, written = LANE % 2 == 1, (ROW == 16) & np.isin(AT // 4, (0, 2))
    for place, (control, (source, valid)) in enumerate(DPP.items()):
        given = x[np.where(valid, source, 0)]
        active = odd[np.where(valid, source, 0)]
        expected = (
            np.where(valid, given, NONE),
            np.where(valid, given, 0),
            np.where(written, np.where(valid, given, 0) + x, NONE),
            # A lane that is not active is not read, unless the instruction fetches it anyway.
            np.where(odd & valid & active, given, NONE),
            np.where(odd & valid, given, NONE),
        )
        for i, right in enumerate(expected):
            np.testing.assert_array_equal(results[len(forms) * place + i], right, f"{control}: {forms[i]}")


def test_eights(assembly, rng):
    order = np.array([7, 0, 3, 3, 1, 6, 2, 5])
    x, y = exchanged(assembly, rng, "v_mov_b32_dpp v3, v2 dpp8:[7,0,3,3,1,6,2,5]")
    np.testing.assert_array_equal(y, x[LANE // 8 * 8 + order[LANE % 8]])


def test_permutations_of_rows(assembly, rng):
    nibbles = rng.integers(0, 16, 16)
    low, high = (sum(int(n) << 4 * i for i, n in enumerate(half)) for half in (nibbles[:8], nibbles[8:]))
    for name, flip in (("v_permlane16_b32", 0), ("v_permlanex16_b32", 16)):
        text = f"s_mov_b32 s8, {low:#x}\ns_mov_b32 s9, {high:#x}\n{name} v3, v2, s8, s9"
        x, y, odd, fetched = exchanged(assembly, rng, text, "odd:" + text, "odd:" + text + " op_sel:[1,0]")
        source = (ROW ^ flip) + nibbles[AT]
        np.testing.assert_array_equal(y, x[source])
        np.testing.assert_array_equal(odd, np.where((LANE % 2 == 1) & (source % 2 == 1), x[source], NONE))
        np.testing.assert_array_equal(fetched, np.where(LANE % 2 == 1, x[source], NONE))


@pytest.mark.parametrize("wave", [32, 64])
def test_the_crossbar(assembly, rng, wave):
    lane = np.arange(wave)
    half = lane // 32 * 32
    text = "v_xor_b32 v4, 0x2c, v1\nds_bpermute_b32 v3, v4, v2 offset:8\ns_waitcnt lgkmcnt(0)"
    source = half + (((lane * 4 ^ 0x2C) + 8) // 4) % 32
    push = text.replace("bpermute", "permute")
    x, y, odd, pushed = exchanged(assembly, rng, text, "odd:" + text, push, wave=wave)
    np.testing.assert_array_equal(y, x[source])
    np.testing.assert_array_equal(odd, np.where(lane % 2 == 1, np.where(source % 2 == 1, x[source], 0), NONE))
    expected = np.zeros(wave, np.uint32)
    expected[source] = x
    np.testing.assert_array_equal(pushed, expected)
    patterns = (
        ('BITMASK_PERM, "0p1i0"', half + ((lane & 0b01010 | 0b00100) ^ 0b00010)),
        ("QUAD_PERM, 2, 2, 0, 1", lane // 4 * 4 + np.array([2, 2, 0, 1])[lane % 4]),
        ("SWAP, 16", lane ^ 16), ("BROADCAST, 8, 3", lane // 8 * 8 + 3), ("REVERSE, 4", lane // 4 * 4 + 3 - lane % 4),
    )  # fmt: skip
    texts = [f"ds_swizzle_b32 v3, v2 offset:swizzle({pattern})\ns_waitcnt lgkmcnt(0)" for pattern, _ in patterns]
    x, *results = exchanged(assembly, rng, *texts, wave=wave)
    for (pattern, source), y in zip(patterns, results, strict=True):
        np.testing.assert_array_equal(y, x[source], pattern)


def test_single_lanes(assembly, rng):
    x, one, first, below = exchanged(
        assembly,
        rng,
        "v_readlane_b32 s8, v2, 7\nv_mov_b32 v3, s8\ns_movk_i32 s9, 0x123\nv_writelane_b32 v3, s9, 4",
        "odd:v_readfirstlane_b32 s8, v2\nv_mov_b32 v3, s8",
        "v_mbcnt_lo_u32_b32 v3, 0x0f0f0f0f, v0",
    )
    np.testing.assert_array_equal(one, np.where(LANE == 4, 0x123, x[7]))
    np.testing.assert_array_equal(first, np.where(LANE % 2 == 1, x[1], NONE))
    np.testing.assert_array_equal(below, [(0x0F0F0F0F & ((1 << i) - 1)).bit_count() + i for i in range(32)])


def test_the_halves_of_64_lanes(assembly, rng):
    count = "v_mbcnt_lo_u32_b32 v3, -1, 0\nv_mbcnt_hi_u32_b32 v3, -1, v3"
    x, swapped, counted = exchanged(assembly, rng, "v_permlane64_b32 v3, v2", count, wave=64)
    np.testing.assert_array_equal(swapped, np.roll(x, 32))
    np.testing.assert_array_equal(counted, np.arange(64))


def test_two_at_once_read_before_they_write(assembly, rng):
    # The halves exchange two registers, which one after the other could not.
    swap = "v_mov_b32 v3, v0\nv_dual_mov_b32 v2, v3 :: v_dual_mov_b32 v3, v2"
    square = "v_cvt_f32_u32 v4, v0\nv_mov_b32 v5, 1.0\n"
    square += (
        "v_dual_fmac_f32 v5, v4, v4 :: v_dual_lshlrev_b32 v6, 4, v1\nv_cvt_u32_f32 v5, v5\nv_add_nc_u32 v3, v5, v6"
    )
    x, swapped, also, squared = exchanged(assembly, rng, swap, "v_mov_b32 v3, v0\nv_swap_b32 v2, v3", square)
    np.testing.assert_array_equal(swapped, x)
    np.testing.assert_array_equal(also, x)
    np.testing.assert_array_equal(squared, LANE * LANE + 1 + LANE * 64)
