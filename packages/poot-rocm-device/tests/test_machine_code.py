"""The device contract over the simulated runtime, on gfx1100 machine code.

A few recordings run always; every operation and every graph are sweeps: compiling is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from poot_eval.conformance import DeviceConformance, KernelDeviceConformance
from poot_eval.conformance.launching import launch
from poot_eval.conformance.sample_kernels import scaled_sum, silu, sweep, tile_max
from poot_eval.gfx11.program import Program
from poot_eval.gfx11.run import Order
from poot_eval.gfx11.waits import check_waits
from poot_eval.hsa import FakeRuntime
from poot_executor.dtype import I32
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_rocm_device.architecture import architecture_named
from poot_rocm_device.caps import caps_of
from poot_rocm_device.compilers import find_compiler
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.emit import emit_module
from poot_rocm_device.emitter import entry_name
from poot_rocm_device.runtime import Runtime


@pytest.fixture(scope="module")
def open_device(module_library: Path, machine: ModuleType) -> Callable[..., RocmDevice]:
    """`open_device(timeout=300.0)`: one more device of one GPU."""
    fake, runtime = FakeRuntime(module_library), Runtime(str(module_library))
    kernels = machine.Machine(machine.compiler_or_skip(), fake, races=True)
    return lambda **settings: machine.open_machine(fake, runtime, kernels, **settings)


@pytest.fixture(scope="module")
def device(open_device: Callable[..., RocmDevice]) -> Iterator[RocmDevice]:
    with open_device() as opened:
        yield opened


@pytest.mark.sweep
class TestRocmMachineCode(DeviceConformance):
    """Inherits every contract test; overrides none."""


@pytest.mark.sweep
class TestRocmMachineCodeKernels(KernelDeviceConformance):
    """Inherits every test of devices that run kernels; overrides none."""


def kept_by_one() -> Kernel:
    """Exchanges whose result one lane keeps: a compiler must not move one to where the others do not take part."""
    b = KernelBuilder("kept_by_one", 64)
    x, y = b.buffer("x", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    total = x[b.thread_id()]
    for mask in (1, 2, 4, 8, 16):
        total = total * 3 + b.subgroup_shuffle_xor(total, mask)
    with b.if_(b.lane_id() == 0):
        y[b.group_id() * 2 + b.subgroup_id()] = total
    return b.finish()


def test_machine_code_does_what_its_text_says(
    fake: FakeRuntime, runtime: Runtime, machine: ModuleType, rng: np.random.Generator, tmp_path: Path
) -> None:
    compared = machine.Compared(machine.compiler_or_skip(), fake, tmp_path, races=True)
    device = machine.open_machine(fake, runtime, compared)
    for make in (scaled_sum, silu, sweep, tile_max, kept_by_one):
        kernel = make()
        for order in Order:
            compared.code.order = order
            arrays = [rng.integers(0, 64, 4096).astype(param.dtype.numpy) for param in kernel.params]
            launch(device, kernel, arrays, (2, 1, 1))
    device.close()
    assert not fake.raised
    assert compared.compared["on this processor"] == 5 * len(Order)
    assert compared.compared["in the interpreter of kernel IR"] == 4 * len(Order)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gfx1100", pytest.param("gfx1151", marks=pytest.mark.sweep)])
def test_every_kernel_of_the_library_waits_for_what_it_loads(
    name: str, machine: ModuleType, library_kernels: ModuleType
) -> None:
    """All that a kernel can reach is known to the interpreter, and no path takes what is still on its way."""
    machine.compiler_or_skip()
    architecture = architecture_named(name)
    kernels = library_kernels.library(architecture)
    code = find_compiler(architecture).compiler.compile(emit_module(kernels, caps_of(architecture)), architecture)
    program = Program(code)
    for kernel in kernels:
        entry = entry_name(kernel)
        check_waits(entry, program.code(entry).instructions, program.code_object.kernel(entry).entry)
