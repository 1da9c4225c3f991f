"""Matrix instructions in gfx1100 machine code, interpreted: lanes hold what the instruction takes to be there."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from poot_eval.conformance.launching import launch
from poot_eval.hsa import FakeRuntime
from poot_executor.known_fragments import fragment_case
from poot_executor.settings import DeviceSettings
from poot_rocm_device.agents import gpus
from poot_rocm_device.architecture import architecture_named
from poot_rocm_device.caps import products
from poot_rocm_device.opening import open_gpu
from poot_rocm_device.runtime import Runtime


def test_products_of_machine_code_are_right(fake: FakeRuntime, runtime: Runtime, machine: ModuleType) -> None:
    """Both factors from shared memory, each in lines of its own kind; sums carried, scaled and stored."""
    kernels = machine.Machine(machine.compiler_or_skip(), fake)
    fake.execute(kernels.execute)
    (gpu,) = gpus(runtime.hsa)
    with open_gpu(
        runtime, gpu, kernels, DeviceSettings(timeout=300.0), fragments=products(architecture_named(gpu.name))
    ) as device:
        caps = device.target.caps
        stated = ["16x16x16 f16 to f32", "16x16x16 bf16 to f32", "16x16x16 i8 to i32"]
        assert [str(shape) for shape in caps.fragments] == stated
        for shape in caps.fragments:
            case = fragment_case(shape, caps.subgroup_width or 0)
            answer = np.zeros(case.given.size * case.per_thread, case.kernel.params[1].dtype.numpy)
            groups = case.given.size // case.kernel.group_size
            _, got = launch(device, case.kernel, [case.given, answer], (groups, 1, 1))
            assert case.wrong(case.given, got.view(np.uint32)) is None
    assert not fake.raised
