"""Code that takes what it did not wait for is refused, on every path; code that waits is not."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.gfx11.faults import WaitFault

START = "s_load_b128 s[4:7], s[0:1], 0x0\nv_lshlrev_b32 v1, 2, v0\n"
LOADED = START + "s_waitcnt lgkmcnt(0)\n"
STORE = "\nglobal_store_b32 v1, v2, s[6:7]"

WRONG = {
    "a scalar load": (START + "v_mov_b32 v2, s4" + STORE, "s4"),
    "the address of a vector load": (START + "global_load_b32 v2, v1, s[4:5]", "s4"),
    "a vector load": (LOADED + "global_load_b32 v2, v1, s[4:5]\nv_add_nc_u32 v2, v2, v2" + STORE, "v2"),
    "the data of a store": (LOADED + "global_load_b32 v2, v1, s[4:5]" + STORE, "v2"),
    "a result that is overwritten": (LOADED + "global_load_b32 v2, v1, s[4:5]\nv_mov_b32 v2, 0" + STORE, "v2"),
    "half of a wide load": (
        LOADED + "v_mov_b32 v1, 0\nglobal_load_b128 v[8:11], v1, s[4:5]\nv_mov_b32 v2, v11" + STORE, "v11"
    ),
    "too short a wait": (
        LOADED + "global_load_b32 v3, v1, s[4:5]\nglobal_load_b32 v2, v1, s[4:5]\ns_waitcnt vmcnt(1)" + STORE, "v2"
    ),
    "the other counter": (LOADED + "global_load_b32 v2, v1, s[4:5]\ns_waitcnt lgkmcnt(0)" + STORE, "v2"),
    "one path": (
        LOADED + "global_load_b32 v2, v1, s[4:5]\ns_cmp_eq_u32 s2, 0\ns_cbranch_scc1 1f\n"
        "s_waitcnt vmcnt(0)\n1:" + STORE,
        "v2"
    ),
    "the next round": (
        LOADED + "v_mov_b32 v2, 0\ns_mov_b32 s8, 3\n1:\nv_add_nc_u32 v3, v2, v2\nglobal_load_b32 v2, v1, s[4:5]\n"
        "s_sub_u32 s8, s8, 1\ns_cmp_lg_u32 s8, 0\ns_cbranch_scc1 1b\ns_waitcnt vmcnt(0)" + STORE, "v2"
    ),
    "local memory": (LOADED + "ds_store_b32 v1, v0\nds_load_b32 v2, v1\nv_add_nc_u32 v2, v2, v2" + STORE, "v2"),
    "a permutation": (LOADED + "ds_bpermute_b32 v2, v1, v0" + STORE, "v2"),
    "an old value": (LOADED + "global_atomic_add_u32 v2, v1, v0, s[6:7] glc\nv_mov_b32 v3, v2" + STORE, "v2"),
    "scalar loads, which come in any order": (
        LOADED + "s_load_b32 s8, s[4:5], 0x0\ns_load_b32 s9, s[4:5], 0x4\ns_waitcnt lgkmcnt(1)\n"
        "v_mov_b32 v2, s8" + STORE,
        "s8"
    ),
    "local memory before a barrier": (LOADED + "ds_store_b32 v1, v0\ns_barrier\nv_mov_b32 v2, 0" + STORE,
    "local memory"),
    "the second half of a pair": (
        LOADED + "global_load_b32 v2, v1, s[4:5]\nv_dual_mov_b32 v4, v1 :: v_dual_mov_b32 v3, v2\n"
        "s_waitcnt vmcnt(0)" + STORE,
        "v2",
    ),
    "a flat load, which needs both counters": (
        LOADED + "v_mov_b32 v4, s4\nv_mov_b32 v5, s5\nflat_load_b32 v2, v[4:5]\ns_waitcnt vmcnt(0)" + STORE, "v2"
    ),
}  # fmt: skip

RIGHT = {
    "a wait": LOADED + "global_load_b32 v2, v1, s[4:5]\ns_waitcnt vmcnt(0)" + STORE,
    "the older of two": LOADED
    + "global_load_b32 v2, v1, s[4:5]\nglobal_load_b32 v3, v1, s[4:5]\ns_waitcnt vmcnt(1)"
    + STORE,
    "two loads into one register": LOADED
    + "v_mov_b32 v2, 0\nglobal_load_d16_b16 v2, v1, s[4:5]\nglobal_load_d16_hi_b16 v2, v1, s[4:5]\ns_waitcnt vmcnt(0)"
    + STORE,
    "local memory in order": LOADED
    + "ds_store_b32 v1, v0\nds_load_b32 v2, v1\nds_load_b32 v3, v1\ns_waitcnt lgkmcnt(1)"
    + STORE,
    "a barrier": LOADED + "ds_store_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\nv_mov_b32 v2, 0" + STORE,
    "nobody takes it": LOADED + "v_mov_b32 v2, 0\nglobal_load_b32 v3, v1, s[4:5]" + STORE,
}


@pytest.fixture(scope="module")
def wrong(assembly):
    return assembly(*(text for text, _ in WRONG.values()), local=128)


@pytest.fixture(scope="module")
def right(assembly):
    return assembly(*RIGHT.values(), local=128)


@pytest.mark.parametrize("name", WRONG)
def test_what_nothing_waited_for(wrong, name):
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    kernel = f"k{list(WRONG).index(name)}"
    with pytest.raises(WaitFault) as caught:
        wrong.run(kernel, [x, y])
    assert caught.value.register == WRONG[name][1]
    assert not y.any()
    # It is a check of the code alone: without it the same code runs.
    wrong.run(kernel, [x, y], waits=False)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_waited_for(right, name):
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    right.run(f"k{list(RIGHT).index(name)}", [x, y])
