"""The twelve scenarios: what may go wrong on a GPU, each with its typed error, and what merely looks so."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from poot_eval.hsa import FakeRuntime, Injection
from poot_executor.device import BufferKind
from poot_executor.errors import DeviceLost, DeviceTimeout, KernelFault, Poisoned
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.errors import HsaError
from poot_rocm_device.hsa_types import BARRIER_AT

pytestmark = pytest.mark.slow

Child = Callable[..., subprocess.CompletedProcess[str]]
BARRIER = np.uint32(1 << BARRIER_AT)


@pytest.fixture
def step(device: RocmDevice, interpreting: ModuleType) -> Any:
    """A step that has run."""
    made = interpreting.Step(device)
    places = np.arange(interpreting.N)
    assert np.array_equal(made.run(places), interpreting.expected(places))
    return made


def assert_poisoned(fake: FakeRuntime, device: RocmDevice, step: Any) -> None:
    """Every call is refused, and the runtime hears of none of them."""
    rung = fake.count("doorbells")
    for call in (
        lambda: step.run(np.arange(64)), step.read, device.synchronize, device.memory, device.device_time,
        lambda: device.replay(step.recording), lambda: device.allocate(BufferKind.STATE, 4),
        lambda: device.free(step.x), lambda: device.record([], None), lambda: device.release(step.recording),
    ):  # fmt: skip
        with pytest.raises(Poisoned, match="open it again in a new process"):
            call()
    device.close()
    device.close()
    assert fake.count("doorbells") == rung


def test_steps_replay_while_the_ring_wraps(
    fake: FakeRuntime, device: RocmDevice, step: Any, interpreting: ModuleType, rng: np.random.Generator
) -> None:
    """1: 500 steps of three packets in a ring of 64. The same packets every time, and every input its own result."""
    dispatches = fake.count("dispatches")
    for _ in range(500):
        places = rng.permutation(interpreting.N)
        assert np.array_equal(step.run(places), interpreting.expected(places))
    assert fake.count("dispatches") == dispatches + 1500
    step.close()


def test_a_missing_barrier_bit_shows(
    fake: FakeRuntime, device: RocmDevice, step: Any, interpreting: ModuleType
) -> None:
    """2: without the bits the runtime may run the packets in another order, and does."""
    reordered, dispatches = fake.count("reordered"), fake.count("dispatches")
    step.recording.packets[1:, 0] &= ~BARRIER
    places = np.arange(interpreting.N)[::-1]
    assert not np.array_equal(step.run(places), interpreting.expected(places))
    # The last packet's signal was no end of the others: they may still run, over buffers that are about to go.
    while fake.count("dispatches") < dispatches + 3 or fake.count("running"):
        time.sleep(1e-3)
    assert fake.count("reordered") == reordered + 3


def test_waits_that_return_early_are_no_completions(
    fake: FakeRuntime, device: RocmDevice, step: Any, interpreting: ModuleType, rng: np.random.Generator
) -> None:
    """3: every second wait returns at once."""
    fake.behave(spurious=2)
    for _ in range(20):
        places = rng.permutation(interpreting.N)
        assert np.array_equal(step.run(places), interpreting.expected(places))
    assert fake.count("spurious") >= 10


def test_a_failed_check_traps_and_names_kernel_and_code(fake: FakeRuntime, device: RocmDevice, step: Any) -> None:
    """4: the word that the kernel left, and behind it what the queue reported."""
    bad = np.arange(64)
    bad[7] = 64
    with pytest.raises(KernelFault) as raised:
        step.run(bad)
    assert (raised.value.kernel, raised.value.code) == ("checked", 17)
    assert isinstance(raised.value.__cause__, DeviceLost)
    assert "0x1016 (a wave trapped or was aborted)" in str(raised.value.__cause__)
    assert_poisoned(fake, device, step)


@pytest.mark.parametrize(
    ("status", "words"),
    [(0x1016, "a wave trapped"), (42, "illegal instruction"), (41, "left its aperture"), (0x1001, "simulated status")],
)
def test_a_queue_error_is_a_lost_device(
    fake: FakeRuntime, device: RocmDevice, step: Any, status: int, words: str
) -> None:
    """5: whoever waits is released at once, although no signal is ever counted down."""
    fake.inject(Injection.QUEUE_ERROR, status, after=1)
    start = time.monotonic()
    with pytest.raises(DeviceLost, match=f"status {status:#x} .*{words}"):
        step.run(np.arange(64))
    assert time.monotonic() - start < 50
    assert_poisoned(fake, device, step)


def test_a_memory_fault_is_a_lost_device_and_the_process_lives(child: Child) -> None:
    """6: the handler of system events alone hears of it."""
    done = child("memory_fault")
    assert done.returncode == 0, done.stderr
    lost, poisoned, closed = done.stdout.splitlines()
    assert lost.startswith("DeviceLost the GPU faulted at address 0xdead000 (the page is not there)")
    assert poisoned.startswith("Poisoned") and closed == "closed" and not done.stderr


def test_a_memory_fault_without_a_handler_ends_the_process(child: Child) -> None:
    """That is what the simulated runtime does, as ROCr does."""
    done = child("unhandled")
    assert done.returncode == -signal.SIGABRT and done.stdout == "submitting\n"


def test_a_reset_is_a_lost_device(child: Child) -> None:
    done = child("reset")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("DeviceLost the GPU hung and was reset")


def test_a_hang_is_a_timeout(
    fake: FakeRuntime, open_device: Callable[..., RocmDevice], interpreting: ModuleType
) -> None:
    """7: the wait ends within its bound, and what may still run is left alone."""
    device = open_device(timeout=0.3)
    step = interpreting.Step(device)
    fake.inject(Injection.HANG, after=1)
    start = time.monotonic()
    with pytest.raises(DeviceTimeout, match=r"replay did not finish within 0\.3 s"):
        step.run(np.arange(64))
    assert 0.3 <= time.monotonic() - start < 50
    assert_poisoned(fake, device, step)


def test_a_lost_signal_is_a_timeout(
    fake: FakeRuntime, open_device: Callable[..., RocmDevice], interpreting: ModuleType
) -> None:
    """8: everything ran, and nobody says so."""
    device = open_device(timeout=0.3)
    step = interpreting.Step(device)
    fake.inject(Injection.LOST_SIGNAL, after=2)
    dispatches = fake.count("dispatches")
    with pytest.raises(DeviceTimeout, match="replay did not finish"):
        step.run(np.arange(64))
    # The wait may be over before the last of them is, where the machine is busy.
    while fake.count("dispatches") < dispatches + 3:
        time.sleep(1e-3)
    assert fake.count("dispatches") == dispatches + 3
    assert_poisoned(fake, device, step)


def test_slow_kernels_are_waited_for(
    fake: FakeRuntime, device: RocmDevice, step: Any, interpreting: ModuleType
) -> None:
    """9: 30 ms each, longer than a wait keeps its processor."""
    fake.inject(Injection.DELAY, 30)
    places = np.arange(interpreting.N)
    assert np.array_equal(step.run(places), interpreting.expected(places))
    assert device.device_time() >= 0.09


def test_code_for_another_gpu_is_refused(
    fake: FakeRuntime, device: RocmDevice, step: Any, interpreting: ModuleType
) -> None:
    """10: when it is loaded, by the runtime; the device goes on."""
    kernel = interpreting.checked("late")
    compiled = device.compile(kernel)
    fake.gpu("gfx942", 0x4C)
    with pytest.raises(HsaError, match="0x100f"):
        device.load(kernel, compiled)
    assert fake.error == "a code object for machine 0x41 on gfx942, which is 0x4c"
    fake.gpu("gfx1100", 0x41)
    assert np.array_equal(step.run(np.arange(64)), interpreting.expected(np.arange(64)))


def test_arguments_that_are_not_aligned_are_a_queue_error(fake: FakeRuntime, device: RocmDevice, step: Any) -> None:
    """11: the packet processor sees it."""
    step.recording.packets.view(np.uint64)[1, 5] += np.uint64(8)
    with pytest.raises(DeviceLost, match=r"status 0x29 .*left its aperture"):
        step.run(np.arange(64))
    assert fake.error == "the arguments are not aligned to 16 bytes"
    assert_poisoned(fake, device, step)


def test_the_host_never_touches_the_gpus_memory(child: Child) -> None:
    """12: where it does, the simulated runtime ends the process; none of the other tests does."""
    done = child("touched")
    assert done.returncode == -signal.SIGSEGV and done.stdout == "touching\n"


@pytest.mark.parametrize("scenario", ["left_open", "left_hanging", "left_lost"])
def test_the_interpreter_ends_cleanly(child: Child, scenario: str) -> None:
    """Whatever the device is doing."""
    done = child(scenario)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.endswith("leaving\n")
