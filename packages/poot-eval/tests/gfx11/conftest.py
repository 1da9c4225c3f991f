"""Compiling small kernels for the interpreter, and running one over numpy arrays."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pytest

from poot_eval.gfx11.building import build_assembly, build_hip, clang
from poot_eval.gfx11.disassembly import objdump
from poot_eval.gfx11.launch import Dispatch
from poot_eval.gfx11.memory import AddressSpace
from poot_eval.gfx11.program import Program
from poot_eval.gfx11.run import run_dispatch
from poot_executor.settings import read_settings

PRELUDE = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define KERNEL(n) extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(n, n))) void
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef signed char i8; typedef short i16; typedef long long i64; typedef _Float16 f16;
typedef f16 f16x2 __attribute__((ext_vector_type(2)));
#define TID ((int)__builtin_amdgcn_workitem_id_x())
#define GID ((int)__builtin_amdgcn_workgroup_id_x())
__device__ static inline void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ static inline int lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
"""

_FORMS = {int: "<i", float: "<f"}


@dataclass(frozen=True)
class Kernels:
    """A program whose kernels run over arrays and numbers, packed as C lays out their parameters."""

    program: Program

    def run(self, name, arguments, *, groups=(1, 1, 1), items=(32, 1, 1), read_only=(), **options):
        space = AddressSpace()
        kernarg = bytearray()
        for i, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                address = space.add(f"argument {i}", argument, writable=i not in read_only)
                packed = struct.pack("<Q", address)
            elif isinstance(argument, np.generic):
                packed = argument.tobytes()
            else:
                packed = struct.pack(_FORMS[type(argument)], argument)
            kernarg += bytes(-len(kernarg) % len(packed)) + packed
        # Compilers load whole runs of scalar registers, past the last argument: the block is of multiples of 64 bytes.
        block = np.frombuffer(kernarg + bytes(-len(kernarg) % 64), np.uint8)
        at = space.add("kernarg", block, writable=False)
        code = np.frombuffer(bytearray(self.program.code_object.image), np.uint8)
        base = space.add("code object", code, writable=False, address=0x7000_0000_0000)
        dispatch = Dispatch(groups, items, at)
        return run_dispatch(self.program, name, dispatch, space, code=base, **({"timeout": 60.0} | options))


def _need_tools():
    if clang() is None or objdump() is None:
        reason = "there are no clang, lld and llvm-objdump that know gfx11: apt-get install clang-19 lld-19 llvm-19"
        if "hsa" in read_settings().require_devices:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def hip():
    """Kernels from HIP text after the prelude."""
    _need_tools()

    def build(text, **options):
        return Kernels(Program(build_hip(PRELUDE + text, **options)))

    return build


@pytest.fixture(scope="session")
def assembly():
    """Kernels k0, k1, … from their instructions: s[0:1] has the address of the arguments, s2 the group, v0 the item."""
    _need_tools()

    def build(*texts, wave=32, local=0, mode=""):
        descriptor = f"""
.amdhsa_user_sgpr_kernarg_segment_ptr 1
.amdhsa_user_sgpr_count 2
.amdhsa_system_sgpr_workgroup_id_x 1
.amdhsa_next_free_vgpr 64
.amdhsa_next_free_sgpr 64
.amdhsa_group_segment_fixed_size {local}
.amdhsa_wavefront_size32 {int(wave == 32)}
.amdhsa_float_denorm_mode_32 3
{mode}
"""
        whole = ""
        for i, text in enumerate(texts):
            whole += f".text\n.p2align 8\n.globl k{i}\n.type k{i},@function\nk{i}:\n{text}\ns_endpgm\n"
            whole += f".rodata\n.p2align 6\n.amdhsa_kernel k{i}\n{descriptor}.end_amdhsa_kernel\n"
        return Kernels(Program(build_assembly(whole, wave=wave)))

    return build
