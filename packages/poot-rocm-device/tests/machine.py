"""Kernels under the simulated runtime as machine code of gfx1100, interpreted: what a compiler made of emitted text."""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_eval.gfx11.disassembly import objdump
from poot_eval.gfx11.executor import MachineCode
from poot_eval.hip_host.library import HostKernel, Outcome, build, entry_of
from poot_eval.hsa import FakeRuntime, Launch
from poot_eval.hsa.runtime import SUCCESS
from poot_eval.kernel_ir import run_kernel
from poot_executor.compile.target import Target
from poot_executor.device import Compiled
from poot_executor.dtype import DType
from poot_executor.errors import DeviceNotFound
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.settings import DeviceSettings, read_settings
from poot_rocm_device.agents import gpus
from poot_rocm_device.architecture import architecture_named
from poot_rocm_device.compilers import KernelCompiler, find_compiler
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.emit import emit
from poot_rocm_device.kernarg import Kernarg
from poot_rocm_device.opening import open_gpu
from poot_rocm_device.runtime import Runtime

WAVE = 32
ROUNDED = frozenset("exp log rsqrt sin cos tanh erf pow subgroup_sum".split())
"""Operations of floats for which a target has an error of its own, or an order."""


def compiler_or_skip() -> KernelCompiler:
    """A compiler for gfx1100 on a machine that has a disassembler too; else the test is skipped, or fails where
    POOT_REQUIRE_DEVICE names "hsa".
    """
    reason = "llvm-objdump that knows gfx11 is not installed: apt-get install clang-19 lld-19 llvm-19"
    if objdump() is not None:
        try:
            return find_compiler(architecture_named("gfx1100"))
        except DeviceNotFound as error:
            reason = str(error)
    if "hsa" in read_settings().require_devices:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Machine:
    """A compiler that keeps what it compiled, and the interpreter of machine code as executor."""

    def __init__(self, compiler: KernelCompiler, fake: FakeRuntime, **options: Any) -> None:
        self._compiler = compiler
        self._compiled: dict[bytes, Compiled] = {}
        self.identity = compiler.identity
        self.kernels: dict[bytes, Kernel] = {}
        self.target: Target | None = None
        self.code = MachineCode(fake.visible, **options)

    def __call__(self, kernel: Kernel, target: Target) -> Compiled:
        """A kernel's code object."""
        digest = kernel.digest()
        if digest not in self._compiled:
            self._compiled[digest] = self._compiler(kernel, target)
        self.target = target
        self.kernels[self._compiled[digest].code] = kernel
        return self._compiled[digest]

    def execute(self, launch: Launch) -> int:
        """Interpret a dispatch."""
        return self.code(launch)


class Compared(Machine):
    """Every dispatch runs three times over equal memory: as machine code, as the text that it was compiled from on this
    processor, and where all its operations are exact in the interpreter of kernel IR. Its buffers have the same bytes
    afterwards. Only what it may write is put back between the runs: the host writes the next step's inputs meanwhile.
    """

    def __init__(self, compiler: KernelCompiler, fake: FakeRuntime, folder: Path, **options: Any) -> None:
        super().__init__(compiler, fake, **options)
        self._folder = folder
        self._hosted: dict[bytes, HostKernel] = {}
        self.compared: Counter[str] = Counter()

    def execute(self, launch: Launch) -> int:
        """Run a dispatch each way. What machine code left is what stays."""
        kernel = self.kernels[launch.code_object]
        kernarg = Kernarg(len(kernel.params), kernel.checks)
        arguments = ctypes.string_at(launch.kernarg, kernarg.nbytes)
        addresses = np.frombuffer(arguments, np.uint64, kernarg.buffers).tolist()
        counts = np.frombuffer(arguments, np.uint32, kernarg.buffers, kernarg.counts).tolist()
        buffers = [
            np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address)).view(param.dtype.numpy)
            for param, address, count in zip(kernel.params, addresses, counts, strict=True)
        ]
        written = [param.access is Access.READ_WRITE for param in kernel.params]
        regions = [buffer.view(np.uint8) for buffer, is_written in zip(buffers, written, strict=True) if is_written]
        before = [region.copy() for region in regions]
        status = self.code(launch)
        if status != SUCCESS:
            return status
        after = [region.copy() for region in regions]
        self._restore(regions, before)
        assert self._host(kernel).run(arguments, launch.groups, launch.group_size[0]) is Outcome.DONE
        self._agree(kernel, "on this processor", regions, after)
        if not ROUNDED & {op.kind for op in kernel.body.walk() if _of_floats(op)}:
            self._restore(regions, before)
            assert not run_kernel(kernel, buffers, launch.groups, subgroup_width=WAVE, counts=counts)
            self._agree(kernel, "in the interpreter of kernel IR", regions, after)
        self._restore(regions, after)
        return status

    def _host(self, kernel: Kernel) -> HostKernel:
        digest = kernel.digest()
        if digest not in self._hosted:
            assert self.target is not None
            text = emit(kernel, self.target.caps)
            self._hosted[digest] = HostKernel(build(text, entry_of(text), self._folder))
        return self._hosted[digest]

    @staticmethod
    def _restore(regions: list[np.ndarray], bytes_: list[np.ndarray]) -> None:
        for region, kept in zip(regions, bytes_, strict=True):
            region[:] = kept

    def _agree(self, kernel: Kernel, how: str, regions: list[np.ndarray], after: list[np.ndarray]) -> None:
        for place, (region, kept) in enumerate(zip(regions, after, strict=True)):
            different = np.flatnonzero(region != kept)
            if different.size:
                what = f"byte {different[0]} of what it writes in place {place}, {different.size} in all"
                raise AssertionError(f"{kernel.name} differs {how}: {what}")
        self.compared[how] += 1


def _of_floats(op: Any) -> bool:
    return any(value.type.dtype is DType.F32 for value in op.operands)


def open_machine(
    fake: FakeRuntime, runtime: Runtime, machine: Machine, *, packets: int = 256, **settings: Any
) -> RocmDevice:
    """A device whose kernels are machine code."""
    fake.execute(machine.execute)
    (gpu,) = gpus(runtime.hsa)
    return open_gpu(runtime, gpu, machine, DeviceSettings(**{"timeout": 300.0, **settings}), packets=packets)
