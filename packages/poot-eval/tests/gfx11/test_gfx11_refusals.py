"""What is refused, by name and place; and what a kernel's descriptor says."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.gfx11.building import build_hip
from poot_eval.gfx11.code_object import read_code_object
from poot_eval.gfx11.faults import CodeObjectError, InstructionRefused
from poot_eval.gfx11.launch import Dispatch
from poot_eval.gfx11.memory import AddressSpace, Region
from poot_eval.gfx11.program import Program
from poot_executor.errors import DeviceTimeout, KernelError, Unsupported

TEXT = """
KERNEL(64) shaped(const int* x, int* y, int scale) {
  __shared__ int kept[96]; int t = __builtin_amdgcn_workitem_id_x() + 4 * __builtin_amdgcn_workitem_id_y()
    + 8 * __builtin_amdgcn_workitem_id_z();
  int g = __builtin_amdgcn_workgroup_id_x() + 2 * __builtin_amdgcn_workgroup_id_y()
    + 6 * __builtin_amdgcn_workgroup_id_z();
  kept[t] = x[t]; barrier(); y[g * 64 + t] = kept[63 - t] * scale + g;
}
"""


def test_what_a_descriptor_says(hip):
    kernel = hip(TEXT).program.code_object.kernel("shaped")
    assert kernel.lds == 96 * 4
    # The compiler keeps what lies on the way to the next kernel's arguments.
    assert 20 <= kernel.kernarg < 36
    assert kernel.private == 0
    assert kernel.wave == 32
    assert kernel.inputs == ("kernarg",)
    assert kernel.group_ids == (True, True, True)
    assert kernel.item_ids == 2
    assert kernel.mode >> 4 & 15 == 15  # denormals are kept
    assert hip(TEXT, wave=64).program.code_object.kernel("shaped").wave == 64


def test_three_axes(hip, rng):
    x, y = rng.integers(0, 100, 64, np.int32), np.zeros(12 * 64, np.int32)
    hip(TEXT).run("shaped", [x, y, 3], groups=(2, 3, 2), items=(4, 2, 8), races=True)
    np.testing.assert_array_equal(y.reshape(12, 64), x[::-1] * 3 + np.arange(12)[:, None])


def test_what_is_no_code_object(hip):
    text = 'extern "C" __attribute__((global)) void k(int* p) { *p = 1; }'
    blob = build_hip(text)
    assert read_code_object(blob).architecture == "gfx1100"
    for bad in (b"", b"\x7fELF", blob[:60], b"MZ" + blob[2:]):
        with pytest.raises(CodeObjectError):
            read_code_object(bad)
    with pytest.raises(CodeObjectError, match="only gfx11"):
        read_code_object(
            build_hip('extern "C" __attribute__((global)) void k(int* p) { *p = 1; }', architecture="gfx1030")
        )
    with pytest.raises(CodeObjectError, match="no kernel 'other' in the code object, which has k"):
        Program(blob).code("other")


def test_text_that_does_not_compile(hip):
    with pytest.raises(Unsupported, match="unknown_thing"):
        hip("KERNEL(32) k(int* p) { unknown_thing; }")


def test_an_unknown_instruction_is_refused_before_anything_runs(assembly):
    store = "s_load_b64 s[4:5], s[0:1], 0x0\nv_mov_b32 v1, 0\ns_waitcnt lgkmcnt(0)\nglobal_store_b32 v1, v0, s[4:5]\n"
    kernels = assembly(store + "s_setpc_b64 s[4:5]", store + "s_branch 1f\ns_setpc_b64 s[4:5]\n1:")
    y = np.zeros(1, np.uint32)
    with pytest.raises(InstructionRefused, match="s_setpc_b64") as caught:
        kernels.run("k0", [y])
    assert caught.value.address == kernels.program.code_object.kernel("k0").entry + 24
    assert y[0] == 0
    # Where no wave can get to it, it does not matter.
    kernels.run("k1", [y])
    assert y[0] == 31


def test_a_kernel_that_does_not_end(assembly):
    with pytest.raises(DeviceTimeout):
        assembly("1:\ns_branch 1b").run("k0", [], timeout=0.2)


def test_grids_and_memory_that_cannot_be(hip):
    kernels = hip(TEXT)
    kernel = kernels.program.code_object.kernel("shaped")
    for groups, items in (((0, 1, 1), (64, 1, 1)), ((1, 1, 1), (1025, 1, 1))):
        with pytest.raises(KernelError):
            Dispatch(groups, items, 0).check(kernel)
    with pytest.raises(KernelError, match="local memory"):
        Dispatch((1, 1, 1), (64, 1, 1), 0, local=65536).check(kernel)
    data = np.zeros(64, np.uint8)
    with pytest.raises(KernelError, match="one and two overlap"):
        AddressSpace([Region("one", 4096, data), Region("two", 4150, data)])


def test_another_rounding_is_not_interpreted(assembly):
    kernels = assembly("s_nop 0", mode=".amdhsa_float_round_mode_32 1")
    with pytest.raises(Unsupported, match="rounding"):
        kernels.run("k0", [])
    with pytest.raises(InstructionRefused, match="s_round_mode"):
        assembly("s_round_mode 0x1").run("k0", [])
