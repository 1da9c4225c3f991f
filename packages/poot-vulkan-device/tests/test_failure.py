"""Faults for real: failing checks, hung kernels, refused code; and what the library answers, replaced below poot's
code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from poot_executor.compile import compile
from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Compiled, Dispatch, Recording
from poot_executor.dtype import DType
from poot_executor.engine import Engine
from poot_executor.errors import (
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    KernelFault,
    NeedsReset,
    OutOfMemory,
    Poisoned,
    WeightError,
)  # fmt: skip
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.weights import StoredTensor
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.emit import CUT_SHORT
from poot_vulkan_device.errors import VulkanError
from poot_vulkan_device.features import UNBOUNDED_LOOPS

pytestmark = pytest.mark.device("vulkan")

F32, I32, U32 = DType.F32, DType.I32, DType.U32
N, GROUP = 256, 64
LOST, NO_HOST_MEMORY, NO_DEVICE_MEMORY, FAILED_INITIALIZATION = -4, -1, -2, -3


class NoWeights:
    """A checkpoint that holds nothing."""

    def names(self) -> tuple[str, ...]:
        return ()

    def tensor(self, name: str) -> StoredTensor:
        raise WeightError(name)


def gather(name: str = "gather", code: int = 17) -> Kernel:
    """y[i] = i where x[i] is in range; the index is clamped and checked."""
    b = KernelBuilder(name, GROUP)
    x, y = b.buffer("x", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    i = b.group_id() * GROUP + b.thread_id()
    at = x[i]
    b.check((at >= 0) & (at < y.length()), code)
    y[b.max(b.min(at, y.length() - 1), 0)] = i
    return b.finish()


def spin(rounds: int) -> Kernel:
    """Work that no compiler foresees, for as long as `rounds` times the grid says."""
    b = KernelBuilder("spin", 32)
    y = b.buffer("y", U32, Access.READ_WRITE)
    value = b.var(y[b.thread_id()])
    with b.range(rounds):
        mixed = value.get()
        for _ in range(8):
            mixed = (mixed ^ (mixed >> 7)) * 2654435761 + y[b.cast(mixed & 31, I32)]
        value.set(mixed)
    y[b.thread_id()] = value.get()
    return b.finish()


class Faulty:
    """A device with a checking kernel recorded over an input and an output."""

    def __init__(self, device: VulkanDevice, kernel: Kernel) -> None:
        self.device = device
        self.x, self.y = device.allocate(BufferKind.INPUT, 4 * N), device.allocate(BufferKind.OUTPUT, 4 * N)
        self.block = BufferSlice(self.y, 0, 4 * N)
        self.recording = device.record([self.dispatch(kernel)], self.block)

    def dispatch(self, kernel: Kernel) -> Dispatch:
        args = (BoundArg(BufferSlice(self.x, 0, 4 * N), N), BoundArg(self.block, N))
        return Dispatch(self.device.loaded(kernel), args, (N // GROUP, 1, 1), 1)

    def run(self, indices: np.ndarray) -> np.ndarray:
        self.device.write(self.x, indices.astype(np.int32))
        self.device.replay(self.recording)
        self.device.synchronize()
        out = np.empty(N, np.int32)
        self.device.read(self.y, out)
        return out

    def close(self) -> None:
        self.device.release(self.recording)
        self.device.free(self.x)
        self.device.free(self.y)


@pytest.fixture
def faulty(device: VulkanDevice) -> Iterator[Faulty]:
    made = Faulty(device, gather())
    yield made
    made.close()


# Checks of kernels


def test_a_failing_check_names_kernel_and_code_and_the_device_goes_on(faulty: Faulty, rng: np.random.Generator) -> None:
    good = rng.permutation(N)
    bad = good.copy()
    bad[200] = N
    for _ in range(3):
        np.testing.assert_array_equal(faulty.run(good)[good], np.arange(N))
        with pytest.raises(KernelFault, match="kernel gather failed its check 17") as caught:
            faulty.run(bad)
        assert (caught.value.kernel, caught.value.code) == ("gather", 17)
    np.testing.assert_array_equal(faulty.run(good)[good], np.arange(N))


def test_each_replay_has_its_own_fault(device: VulkanDevice, faulty: Faulty) -> None:
    """Of two steps in flight only the bad one faults, whichever comes first."""
    other = Faulty(device, gather("other", 9))
    for first, second in ((faulty, other), (other, faulty)):
        device.write(first.x, np.full(N, -1, np.int32))
        device.write(second.x, np.arange(N, dtype=np.int32))
        device.replay(first.recording)
        device.replay(second.recording)
        with pytest.raises(KernelFault):
            device.synchronize()
        device.synchronize()
        device.replay(second.recording)
        device.replay(first.recording)
        device.synchronize()
        with pytest.raises(KernelFault):
            device.synchronize()
    other.close()


def test_reading_early_does_not_swallow_the_fault(device: VulkanDevice, faulty: Faulty) -> None:
    device.write(faulty.x, np.full(N, N, np.int32))
    device.replay(faulty.recording)
    device.read(faulty.y, np.empty(N, np.int32))
    with pytest.raises(KernelFault):
        device.synchronize()
    device.synchronize()


def looping(name: str) -> Kernel:
    b = KernelBuilder(name, 8)
    bound, y = b.buffer("bound", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    count = b.var(0)
    if name == "counted":
        with b.range(bound[0]):
            count.set(count.get() + 1)
    else:
        with b.while_(lambda: count.get() < bound[0]):
            count.set(count.get() + 1)
    y[b.thread_id()] = count.get()
    return b.finish()


@pytest.mark.parametrize("name", ["counted", "conditional"])
def test_a_loop_that_the_device_ends_early_is_a_fault(device: VulkanDevice, run: Any, name: str) -> None:
    """llvmpipe stops after 65,535 rounds; elsewhere the loop runs to its end."""
    kernel, zeros = looping(name), np.zeros(8, np.int32)
    for rounds in (0, 1000, 65_000):
        (got,) = run(kernel, [np.array([rounds], np.int32), zeros], 1)
        assert (got == rounds).all()
    long = [np.array([200_000], np.int32), zeros]
    if UNBOUNDED_LOOPS in device.target.caps.features:
        assert (run(kernel, long, 1)[0] == 200_000).all()
        return
    with pytest.raises(KernelFault, match=f"kernel {name}") as caught:
        run(kernel, long, 1)
    assert caught.value.code == CUT_SHORT
    assert "ends all loops" in caught.value.__notes__[0]


def test_a_nested_loop_that_the_device_ends_early_is_a_fault(device: VulkanDevice, run: Any) -> None:
    if UNBOUNDED_LOOPS in device.target.caps.features:
        pytest.skip("this device ends no loop early")
    b = KernelBuilder("nested", 8)
    bound, y = b.buffer("bound", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    count = b.var(0)
    with b.range(bound[0]), b.range(bound[0]):
        count.set(count.get() + 1)
    y[b.thread_id()] = count.get()
    kernel = b.finish()
    (got,) = run(kernel, [np.array([250], np.int32), np.zeros(8, np.int32)], 1)
    assert (got == 62_500).all()
    with pytest.raises(KernelFault, match="kernel nested"):
        run(kernel, [np.array([1000], np.int32), np.zeros(8, np.int32)], 1)


# Waits


def busy(device: VulkanDevice, groups: int) -> tuple[Recording, Buffer]:
    buffer = device.allocate(BufferKind.OUTPUT, 128)
    dispatch = Dispatch(device.loaded(spin(60_000)), (BoundArg(BufferSlice(buffer, 0, 128), 32),), (groups, 1, 1), 1)
    return device.record([dispatch], BufferSlice(buffer, 0, 128)), buffer


def refused(device: VulkanDevice, recording: Recording, buffer: Buffer) -> None:
    """Every method but close refuses, at once."""
    out = np.zeros(4, np.uint8)
    calls: list[Callable[[], object]] = [
        lambda: device.allocate(BufferKind.STATE, 4),
        lambda: device.free(buffer),
        lambda: device.replay(recording),
        device.synchronize,
        lambda: device.write(buffer, bytes(4)),
        lambda: device.read(buffer, out),
        device.memory,
        device.device_time,
        lambda: device.release(recording),
        lambda: device.record([], None),
        lambda: device.loaded(gather("late")),
    ]
    start = time.monotonic()
    for call in calls:
        with pytest.raises(Poisoned, match="open it again"):
            call()
    assert time.monotonic() - start < 5


WAITS: dict[str, Callable[[VulkanDevice, Recording, Buffer], object]] = {
    "synchronize": lambda device, recording, buffer: device.synchronize(),
    "read": lambda device, recording, buffer: device.read(buffer, np.zeros(4, np.uint8)),
    "write": lambda device, recording, buffer: device.write(buffer, bytes(4)),
    "release": lambda device, recording, buffer: device.release(recording),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_hung_device_times_out_and_is_poisoned(
    open_device: Callable[..., VulkanDevice], name: str, new_table: Any
) -> None:
    table = new_table()
    device = open_device(functions=table)
    recording, buffer = busy(device, 80)
    device.set_timeout(0.1)
    device.replay(recording)
    start = time.monotonic()
    with pytest.raises(DeviceTimeout, match=r"did not finish within 0\.1 s"):
        WAITS[name](device, recording, buffer)
    assert 0.1 <= time.monotonic() - start < 10
    calls = table.calls.total()
    refused(device, recording, buffer)
    device.close()
    device.close()
    assert table.calls.total() == calls, "the device was touched"


def test_close_is_bounded_too_and_leaks_then(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    table = new_table()
    device = open_device(functions=table)
    recording, buffer = busy(device, 80)
    device.set_timeout(0.1)
    device.replay(recording)
    device.close()
    refused(device, recording, buffer)
    assert not table.calls["vkDestroyDevice"]


def test_a_segment_that_hangs_is_bounded_within_replay(open_device: Callable[..., VulkanDevice]) -> None:
    device = open_device()
    _, buffer = busy(device, 80)
    kernel = device.loaded(spin(60_000))
    dispatch = Dispatch(kernel, (BoundArg(BufferSlice(buffer, 0, 128), 32),), (80, 1, 1), 10)
    device.set_budget(10)
    recording = device.record([dispatch, dispatch], BufferSlice(buffer, 0, 128))
    device.set_timeout(0.1)
    with pytest.raises(DeviceTimeout):
        device.replay(recording)
    refused(device, recording, buffer)


# What the library answers


def step(device: VulkanDevice, recording: Recording) -> None:
    device.replay(recording)
    device.synchronize()


def walk(device: VulkanDevice) -> None:
    """Every method once, over a device that may be lost anywhere."""
    buffer = device.allocate(BufferKind.STATE, 64)
    device.write(buffer, bytes(64))
    faulty = Faulty(device, gather())
    faulty.run(np.arange(N))
    device.read(buffer, np.zeros(64, np.uint8))
    device.memory()
    device.device_time()
    faulty.close()
    device.free(buffer)


CALLS = (
    "vkCreateBuffer vkAllocateMemory vkMapMemory vkBindBufferMemory vkAllocateCommandBuffers vkBeginCommandBuffer "
    "vkEndCommandBuffer vkCreateShaderModule vkCreateComputePipelines vkCreateDescriptorSetLayout "
    "vkCreatePipelineLayout vkCreateDescriptorPool vkAllocateDescriptorSets vkCreateQueryPool vkQueueSubmit "
    "vkWaitForFences vkResetFences"
).split()


@pytest.mark.parametrize("call", CALLS)
def test_a_device_lost_in_any_call_is_told_once_and_refuses_from_then_on(
    open_device: Callable[..., VulkanDevice], call: str, new_table: Any
) -> None:
    """Each time the call is made, until the walk ends without it."""
    seen = 0
    for place in range(10):
        table = new_table()
        device = open_device(functions=table, staged=True)
        recording, held = busy(device, 1)
        table.answers[call] = [None] * place + [LOST]
        lost: DeviceLost | None = None
        try:
            walk(device)
        except DeviceLost as error:
            lost = error
        if lost is None:
            table.answers.clear()
            device.close()
            break
        assert "again in a new process" in str(lost)
        calls = table.calls.total()
        refused(device, recording, held)
        device.close()
        assert table.calls.total() == calls, "the device was touched"
        seen += 1
    # Blocks and layouts are there already.
    assert seen or call in ("vkAllocateMemory", "vkMapMemory", "vkCreateDescriptorSetLayout", "vkCreatePipelineLayout")


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
@pytest.mark.parametrize("result", [NO_HOST_MEMORY, NO_DEVICE_MEMORY, FAILED_INITIALIZATION])
def test_any_failure_of_a_submission_or_a_wait_poisons(
    open_device: Callable[..., VulkanDevice], call: str, result: int, new_table: Any
) -> None:
    table = new_table()
    device = open_device(functions=table)
    recording, buffer = busy(device, 1)
    table.answers[call] = [result]
    with pytest.raises(DeviceLost, match=f"{call} gave VK_ERROR_"):
        step(device, recording)
    refused(device, recording, buffer)


@pytest.mark.parametrize("place", range(6))
def test_a_device_lost_while_it_opens(open_device: Callable[..., VulkanDevice], place: int, new_table: Any) -> None:
    table = new_table()
    table.answers["vkQueueSubmit"] = [None] * place + [LOST]
    with pytest.raises(DeviceLost):
        open_device(functions=table)
    assert not table.calls["vkDestroyDevice"], "what may be in use is leaked"


@pytest.mark.parametrize("result", [NO_HOST_MEMORY, NO_DEVICE_MEMORY])
def test_memory_that_the_driver_refuses_leaves_the_device_usable(
    open_device: Callable[..., VulkanDevice], result: int, new_table: Any
) -> None:
    table = new_table()
    with open_device(functions=table) as device:
        used = device.memory().used
        table.answers["vkAllocateMemory"] = [result] * 2
        with pytest.raises(OutOfMemory, match="asked for 100,000,000 bytes of weight"):
            device.allocate(BufferKind.WEIGHT, 100_000_000)
        assert device.memory().used == used
        assert not table.answers["vkAllocateMemory"][1:]
        table.answers.clear()
        device.free(device.allocate(BufferKind.WEIGHT, 100_000_000))


def test_code_that_the_driver_refuses_is_an_error_and_no_more(
    open_device: Callable[..., VulkanDevice], new_table: Any
) -> None:
    table = new_table()
    with open_device(functions=table) as device:
        faulty = Faulty(device, gather())
        kernel = gather("refused")
        compiled = device.compile(kernel)
        for call in ("vkCreateShaderModule", "vkCreateComputePipelines"):
            table.answers[call] = [FAILED_INITIALIZATION]
            with pytest.raises(VulkanError, match=f"{call} of kernel refused gave VK_ERROR_INITIALIZATION_FAILED"):
                device.load(kernel, compiled)
        assert isinstance(compiled, Compiled)
        faulty.run(np.arange(N))


def test_a_step_lost_between_submit_and_collect_reaches_every_waiter(
    open_device: Callable[..., VulkanDevice], new_table: Any
) -> None:
    """Two steps in flight in an engine: the first collection sees the loss, the second one and all later calls
    refuse.
    """
    table = new_table()
    device = open_device(functions=table)
    b = Builder("double")
    key = SlotKey(SlotKind.INPUT, "x")
    x = b.slot(key, TensorType((8,), F32))
    b.output("y", x + x)
    engine = Engine(device)
    executable = engine.load_weights(NoWeights(), {})
    entry = engine.add_entry(executable, compile(b.build(), device.target))
    inputs = {key: np.arange(8, dtype=np.float32)}
    np.testing.assert_array_equal(engine.step(executable, entry, inputs)["y"], 2 * inputs[key])
    first, second = (engine.submit(executable, entry, inputs) for _ in range(2))
    table.answers["vkWaitForFences"] = [LOST]
    with pytest.raises(DeviceLost):
        engine.collect(first)
    with pytest.raises((Poisoned, NeedsReset)):
        engine.collect(second)
    with pytest.raises(Poisoned):
        engine.step(executable, entry, inputs)
    engine.close()


# Devices that are refused


def test_a_device_without_robust_access_is_refused(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    table = new_table()

    def forget(_physical: Any, wanted: Any) -> None:
        wanted.features.robustBufferAccess = 0

    table.after["vkGetPhysicalDeviceFeatures2"] = forget
    instance_closed = table.calls
    with pytest.raises(DeviceNotFound, match="no robust buffer access, so a kernel's stray index could hit any memory"):
        open_unskipped(table)
    assert instance_closed["vkDestroyInstance"] == 1
    assert not instance_closed["vkCreateDevice"]


def test_an_old_device_is_refused(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    table = new_table()

    def age(_physical: Any, properties: Any) -> None:
        properties.apiVersion = 1 << 22

    table.after["vkGetPhysicalDeviceProperties"] = age
    with pytest.raises(DeviceNotFound, match=r"has Vulkan 1\.0, poot needs 1\.1"):
        open_unskipped(table)


def open_unskipped(table: Any) -> VulkanDevice:
    from poot_executor.settings import DeviceSettings
    from poot_vulkan_device.instance import Instance
    from poot_vulkan_device.opening import open_adapter

    return open_adapter(Instance(table), 0, DeviceSettings())


def test_a_closed_device_refuses_and_closes_again(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    table = new_table()
    device = open_device(functions=table)
    recording, buffer = busy(device, 1)
    device.replay(recording)
    device.close()
    made = (
        "Buffer PipelineLayout DescriptorSetLayout DescriptorPool CommandPool Fence QueryPool PipelineCache "
        "ShaderModule Device Instance"
    ).split()
    for name in made:
        assert table.calls[f"vkCreate{name}"] == table.calls[f"vkDestroy{name}"] > 0, name
    assert table.calls["vkCreateComputePipelines"] == table.calls["vkDestroyPipeline"]
    assert table.calls["vkAllocateMemory"] == table.calls["vkFreeMemory"]
    refused(device, recording, buffer)
    device.close()


def test_two_devices_do_not_share_anything(open_device: Callable[..., VulkanDevice]) -> None:
    with open_device() as first, open_device() as second:
        faults = Faulty(first, gather())
        works = Faulty(second, gather())
        with pytest.raises(KernelFault):
            faults.run(np.full(N, -1))
        works.run(np.arange(N))
        buffer = first.allocate(BufferKind.STATE, 64)
        with pytest.raises(ValueError, match="not one of this device's"):
            second.write(buffer, bytes(4))
