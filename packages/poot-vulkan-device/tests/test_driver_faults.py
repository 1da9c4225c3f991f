"""What the driver answers, replaced by a Vulkan layer below the loader: lost devices, hung submissions, no memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.device_faults import Faulty, N, assert_poisoned, busy, gather
from poot_eval.conformance.stepping import TABLE, MemoryStore, Stepper, step_graph
from poot_eval.conformance.vulkan_layer import (
    DEVICE_LOST,
    INITIALIZATION_FAILED,
    OUT_OF_DEVICE_MEMORY,
    OUT_OF_HOST_MEMORY,
    FaultLayer,
)
from poot_executor.compile import Target, compile
from poot_executor.compile.program import Program
from poot_executor.device import BufferKind
from poot_executor.engine import Engine
from poot_executor.errors import (
    DeviceError,
    DeviceLost,
    DeviceNotFound,
    DeviceTimeout,
    OutOfMemory,
    Poisoned,
)  # fmt: skip
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.errors import VulkanError

pytestmark = pytest.mark.device("vulkan")

Open = Callable[..., VulkanDevice]

CALLS = (
    "vkCreateBuffer vkAllocateMemory vkMapMemory vkBindBufferMemory vkAllocateCommandBuffers vkBeginCommandBuffer "
    "vkEndCommandBuffer vkCreateShaderModule vkCreateComputePipelines vkCreateDescriptorSetLayout "
    "vkCreatePipelineLayout vkCreateDescriptorPool vkAllocateDescriptorSets vkCreateQueryPool vkQueueSubmit "
    "vkWaitForFences vkResetFences"
).split()


def walk(device: VulkanDevice) -> None:
    """Every method once, over a device that may be lost anywhere."""
    buffer = device.allocate(BufferKind.STATE, 64)
    device.write(buffer, bytes(64))
    large = device.allocate(BufferKind.WEIGHT, 40 << 20)  # a block of its own
    faulty = Faulty(device, gather())
    faulty.run(np.arange(N))
    device.read(buffer, np.zeros(64, np.uint8))
    device.memory()
    device.device_time()
    faulty.close()
    device.free(buffer)
    device.free(large)


@pytest.mark.parametrize("call", CALLS)
def test_a_device_lost_in_any_call_is_told_once_and_refuses_from_then_on(
    open_faulty: Open, faults: FaultLayer, call: str
) -> None:
    """Each time the call is made, until the walk ends without it."""
    seen = 0
    for place in range(12):
        faults.clear()
        device = open_faulty(staged=True)
        recording, held = busy(device, 1)
        faults.arm(call, place, DEVICE_LOST)
        try:
            walk(device)
        except DeviceLost as error:
            told = str(error)
        else:
            faults.clear()
            device.close()
            break
        calls = faults.all_calls
        assert_poisoned(device, recording, held)
        assert faults.all_calls == calls, "the device was touched"
        assert "again in a new process" in told
        seen += 1
    # Layouts are there already.
    assert seen or call in ("vkCreateDescriptorSetLayout", "vkCreatePipelineLayout")


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
@pytest.mark.parametrize("result", [OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY, INITIALIZATION_FAILED])
def test_any_failure_of_a_submission_or_a_wait_poisons(
    open_faulty: Open, faults: FaultLayer, call: str, result: int
) -> None:
    device = open_faulty()
    recording, buffer = busy(device, 1)
    faults.arm(call, 0, result)
    with pytest.raises(DeviceLost, match=f"{call} gave VK_ERROR_"):
        step(device, recording)
    assert_poisoned(device, recording, buffer)


def step(device: VulkanDevice, recording: Any) -> None:
    device.replay(recording)
    device.synchronize()


def test_a_device_lost_while_it_opens(open_faulty: Open, faults: FaultLayer) -> None:
    """At each submission of the known answers."""
    for place in range(40):
        faults.clear()
        faults.arm("vkQueueSubmit", place, DEVICE_LOST)
        try:
            device = open_faulty()
        except DeviceLost:
            continue
        device.close()
        assert place > 5
        return
    pytest.fail("it never opened")


# An engine at work, lost or hung at each submission and each wait


@pytest.fixture(scope="module")
def program() -> Callable[[Target], Program]:
    """The program of the scene, compiled once for a target."""
    return cache(lambda target: compile(step_graph(), target))


class Scene:
    """An engine through its phases over one device: upload, recording, steps, one ahead, reset, unload."""

    def __init__(self, device: VulkanDevice, program: Callable[[Target], Program]) -> None:
        self.device, self.program = device, program
        self.phase = "load"
        self.pending: list[Any] = []

    def play(self) -> None:
        """All of it. Raises what the device raises, with `phase` and `pending` as they were."""
        self.engine = engine = Engine(self.device)
        table = np.arange(40, dtype=np.float32).reshape(8, 5)
        self.executable = engine.load_weights(MemoryStore({"table": table}), {TABLE: "table"})
        self.phase = "add_entry"
        self.entry = engine.add_entry(self.executable, self.program(self.device.target))
        self.phase = "first step"
        engine.step(self.executable, self.entry, self.inputs())
        self.phase = "submit"
        self.pending.append(engine.submit(self.executable, self.entry, self.inputs()))
        self.phase = "submit ahead"
        self.pending.append(engine.submit(self.executable, self.entry, self.inputs()))
        self.phase = "collect"
        engine.collect(self.pending.pop(0))
        self.phase = "collect the one ahead"
        engine.collect(self.pending.pop(0))
        self.phase = "reset_state"
        engine.reset_state(self.executable)
        self.phase = "step after a reset"
        engine.step(self.executable, self.entry, self.inputs())
        self.phase = "unload"
        engine.unload(self.executable)
        self.phase = "close"
        engine.close()

    def inputs(self) -> Any:
        """A step's inputs."""
        return Stepper.inputs(None, [1, 2, 3], 4)  # type: ignore[arg-type]

    def after(self) -> None:
        """Every waiter gets a typed error, every later call is refused, and closing works."""
        for waiting in self.pending:
            with pytest.raises(DeviceError):
                self.engine.collect(waiting)
        if hasattr(self, "entry"):
            with pytest.raises(Poisoned):
                self.engine.step(self.executable, self.entry, self.inputs())
            with pytest.raises(Poisoned):
                self.engine.reset_state(self.executable)
        self.engine.stats()
        self.engine.close()
        self.engine.close()
        with pytest.raises(Poisoned):
            self.device.allocate(BufferKind.STATE, 4)
        self.device.close()


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
@pytest.mark.parametrize("staged", [False, True], ids=["direct", "staged"])
def test_an_engine_whose_device_is_lost_at_each_call(
    open_faulty: Open, faults: FaultLayer, program: Callable[[Target], Program], call: str, staged: bool
) -> None:
    """Submit k or wait k for every k, until the engine comes to its end: which phases saw it is asserted."""
    phases = []
    for place in range(80):
        faults.clear()
        device = open_faulty(staged=staged)
        device.set_budget(1)  # every command is a submission of its own
        faults.arm(call, place, DEVICE_LOST)
        scene = Scene(device, program)
        try:
            scene.play()
        except DeviceLost:
            phases.append(scene.phase)
            calls = faults.all_calls
            scene.after()
            assert faults.all_calls == calls, "the device was touched"
        else:
            faults.clear()
            device.close()
            break
    expected = {"add_entry", "first step", "submit", "submit ahead", "reset_state", "step after a reset"}
    if call == "vkWaitForFences":
        expected |= {"collect", "collect the one ahead"}
    # What the host sees is zeroed by the host.
    expected -= set() if staged else {"reset_state", "add_entry"}
    assert expected <= set(phases)
    assert len(phases) < 80


def test_an_engine_whose_device_hangs_at_each_submission(
    open_faulty: Open, faults: FaultLayer, program: Callable[[Target], Program]
) -> None:
    """The submission is taken and never runs: its fence is never signalled. Within the bound, whatever waits."""
    phases = []
    for place in range(0, 80, 3):
        faults.clear()
        device = open_faulty(staged=True)
        device.set_timeout(0.05)
        device.set_budget(1)
        faults.hang(place)
        scene = Scene(device, program)
        began = time.monotonic()
        try:
            scene.play()
        except DeviceTimeout:
            phases.append(scene.phase)
            took = time.monotonic() - began
            calls = faults.all_calls
            scene.after()
            assert faults.all_calls == calls, "the device was touched"
            assert took < 50
        else:
            device.close()
            break
    assert len(set(phases)) > 3


WAITS: dict[str, Callable[[VulkanDevice, Faulty], object]] = {
    "synchronize": lambda device, faulty: device.synchronize(),
    "read": lambda device, faulty: device.read(faulty.y, np.zeros(4, np.uint8)),
    "write": lambda device, faulty: device.write(faulty.x, bytes(4)),
    "release": lambda device, faulty: device.release(faulty.recording),
    "a staged write": lambda device, faulty: device.write(device.allocate(BufferKind.STATE, 64), bytes(4)),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_fence_that_is_never_signalled(open_faulty: Open, faults: FaultLayer, name: str) -> None:
    """DeviceTimeout within the bound, then Poisoned, whichever call waits for it."""
    device = open_faulty(staged=True)
    faulty = Faulty(device, gather())
    device.set_timeout(0.1)
    faults.hang(0)
    device.replay(faulty.recording)
    start = time.monotonic()
    with pytest.raises(DeviceTimeout, match=r"did not finish within 0\.1 s"):
        WAITS[name](device, faulty)
    assert 0.1 <= time.monotonic() - start < 50
    calls = faults.all_calls
    assert_poisoned(device, faulty.recording, faulty.y)
    assert faults.all_calls == calls, "the device was touched"


def test_a_segment_that_hangs_is_bounded_within_replay(open_faulty: Open, faults: FaultLayer) -> None:
    device = open_faulty()
    faulty = Faulty(device, gather())
    device.set_budget(1)
    recording = device.record([faulty.dispatch, faulty.dispatch], faulty.block)
    device.set_timeout(0.1)
    faults.hang(0)
    with pytest.raises(DeviceTimeout):
        device.replay(recording)
    assert_poisoned(device, recording, faulty.y)


def test_close_is_bounded_too_and_leaks_then(open_faulty: Open, faults: FaultLayer) -> None:
    device = open_faulty()
    faulty = Faulty(device, gather())
    device.set_timeout(0.1)
    faults.hang(0)
    device.replay(faulty.recording)
    device.close()
    assert_poisoned(device, faulty.recording, faulty.y)


# Errors that are not the end


@pytest.mark.parametrize("result", [OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY])
@pytest.mark.parametrize("call", ["vkAllocateMemory", "vkMapMemory", "vkCreateBuffer", "vkBindBufferMemory"])
def test_memory_that_the_driver_refuses_leaves_the_device_usable(
    open_faulty: Open, faults: FaultLayer, call: str, result: int
) -> None:
    """Nothing of what was made on the way stays, and the next allocation works."""
    with open_faulty() as device:
        used, blocks = device.memory().used, device.blocks
        # Twice: where there is no memory empty blocks are given back, and it is asked again.
        faults.arm(call, 0, result, times=2)
        with pytest.raises(OutOfMemory, match="asked for 100,000,000 bytes of weight"):
            device.allocate(BufferKind.WEIGHT, 100_000_000)
        assert device.memory().used == used
        assert device.blocks <= blocks
        faults.clear()
        device.free(device.allocate(BufferKind.WEIGHT, 100_000_000))
        assert Faulty(device, gather()).run(np.arange(N)).size == N


def test_a_block_that_cannot_be_mapped_is_given_back(new_table: Any, open_device: Open) -> None:
    """Its memory is freed, as the library is told."""
    table = new_table()
    with open_device(functions=table) as device:
        table.answers["vkMapMemory"] = [-5] * 2
        before = table.calls["vkAllocateMemory"] - table.calls["vkFreeMemory"]
        with pytest.raises(OutOfMemory):
            device.allocate(BufferKind.OUTPUT, 100_000_000)
        assert table.calls["vkAllocateMemory"] - table.calls["vkFreeMemory"] <= before
        table.answers.clear()
        device.free(device.allocate(BufferKind.OUTPUT, 100_000_000))


def test_code_that_the_driver_refuses_is_an_error_and_no_more(open_faulty: Open, faults: FaultLayer) -> None:
    with open_faulty() as device:
        faulty = Faulty(device, gather())
        kernel = gather("refused")
        compiled = device.compile(kernel)
        for call in ("vkCreateShaderModule", "vkCreateComputePipelines"):
            faults.arm(call, 0, INITIALIZATION_FAILED)
            with pytest.raises(VulkanError, match=f"{call} of kernel refused gave VK_ERROR_INITIALIZATION_FAILED"):
                device.load(kernel, compiled)
        faulty.run(np.arange(N))


RECORDING = (
    "vkCreateDescriptorPool vkAllocateDescriptorSets vkCreateQueryPool vkAllocateCommandBuffers vkBeginCommandBuffer "
    "vkEndCommandBuffer"
).split()


@pytest.mark.parametrize("call", RECORDING)
def test_a_recording_that_the_driver_refuses_leaves_nothing(open_faulty: Open, faults: FaultLayer, call: str) -> None:
    with open_faulty() as device:
        faulty = Faulty(device, gather())
        used = device.memory().used
        faults.arm(call, 0, OUT_OF_HOST_MEMORY)
        with pytest.raises(DeviceError, match=call):
            device.record([faulty.dispatch], faulty.block)
        assert device.memory().used == used
        faulty.run(np.arange(N))


def test_a_device_without_robust_access_is_refused(open_faulty: Open, faults: FaultLayer, device: Any) -> None:
    from poot_executor.settings import DeviceSettings
    from poot_vulkan_device.driver import VulkanDriver

    faults.refuse_robust_access()
    with (
        faults.enabled(),
        pytest.raises(DeviceNotFound, match="no robust buffer access, so a kernel's stray index could hit any memory"),
    ):
        VulkanDriver().open("0", DeviceSettings())
