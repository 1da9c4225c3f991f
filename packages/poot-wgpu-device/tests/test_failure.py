"""Faults for real: failing checks, hung kernels, a lost device, refused code. Nothing takes the process along."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from poot_eval.conformance.device_faults import Faulty, N, assert_poisoned, busy, gather
from poot_eval.conformance.launching import written
from poot_executor.device import Buffer, BufferKind, BufferSlice, Compiled, Recording
from poot_executor.dtype import DType
from poot_executor.errors import DeviceLost, KernelFault
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access
from poot_executor.known_answers import UNBOUNDED_LOOPS
from poot_wgpu_device.device import WgpuDevice
from poot_wgpu_device.errors import WgpuError

pytestmark = pytest.mark.device("wgpu")

I32 = DType.I32


def test_a_while_that_the_device_ends_early_is_a_fault(device: WgpuDevice) -> None:
    if UNBOUNDED_LOOPS in device.target.caps.features:
        pytest.skip("this device ends no loop early")
    b = KernelBuilder("endless", 8)
    y = b.buffer("y", I32, Access.READ_WRITE)
    count = b.var(0)
    with b.while_(lambda: count.get() >= 0):
        count.set((count.get() + 1) & 0xFFFF)
    y[b.thread_id()] = count.get()
    with pytest.raises(KernelFault, match="kernel endless"):
        written(device, b.finish(), [np.zeros(8, np.int32)], 1)


def test_a_lost_device_is_told_once_and_refuses_from_then_on(open_device: Callable[..., WgpuDevice]) -> None:
    """The library's own destroy stands for what a driver does: the device is gone under our feet."""
    observers: list[Callable[[WgpuDevice, Recording, Buffer], object]] = [
        lambda device, recording, buffer: device.replay(recording),
        lambda device, recording, buffer: device.read(buffer, np.zeros(4, np.uint8)),
        lambda device, recording, buffer: device.write(buffer, bytes(4)),
        lambda device, recording, buffer: device.allocate(BufferKind.STATE, 64),
        lambda device, recording, buffer: device.record([], BufferSlice(buffer, 0, 128)),
    ]
    for observe in observers:
        device = open_device()
        recording, _ = busy(device, 1)
        buffer = device.allocate(BufferKind.STATE, 128)
        device.replay(recording)
        device.synchronize()
        device._native.destroy()
        with pytest.raises(DeviceLost, match="open it again in a new process"):
            observe(device, recording, buffer)
        assert_poisoned(device, recording, buffer)


def test_a_device_lost_while_it_works(open_device: Callable[..., WgpuDevice]) -> None:
    device = open_device()
    recording, buffer = busy(device, 50)
    device.replay(recording)
    device._native.destroy()
    with pytest.raises(DeviceLost):
        device.synchronize()
    assert_poisoned(device, recording, buffer)


def test_code_that_the_library_refuses_is_an_error_and_no_more(device: WgpuDevice) -> None:
    faulty = Faulty(device, gather())
    kernel = gather("refused")
    for code, what in ((b"fn main( {", "shader module"), (b"@compute @workgroup_size(1) fn other() {}", "pipeline")):
        with pytest.raises(WgpuError, match=f"{what} of kernel refused: validation error"):
            device.load(kernel, Compiled("refused", code, "main"))
    faulty.run(np.arange(N))
    faulty.close()
