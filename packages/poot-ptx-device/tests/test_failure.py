"""What the device does with what the driver reports: nothing half made, nothing touched once the context is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Compiled, Copy, Dispatch, Recording
from poot_executor.dtype import DType
from poot_executor.errors import DeviceError, DeviceLost, DeviceTimeout, KernelFault, OutOfMemory, Poisoned
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_ptx_device.device import PtxDevice
from poot_ptx_device.errors import CudaError

I32 = DType.I32
N = 64


def checked(name: str = "checked", code: int = 17) -> Kernel:
    """y[i] = x[i], with a check that it is a place of the buffer."""
    b = KernelBuilder(name, N)
    x, y = b.buffer("x", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    i = b.thread_id()
    b.check((x[i] >= 0) & (x[i] < N), code)
    y[i] = x[i]
    return b.finish()


def whole(buffer: Buffer) -> BufferSlice:
    return BufferSlice(buffer, 0, buffer.nbytes)


class Step:
    """An input block, an output block and a recording between them."""

    def __init__(self, device: PtxDevice, kernel: Kernel | None = None) -> None:
        self.device = device
        self.x, self.y = device.allocate(BufferKind.INPUT, 4 * N), device.allocate(BufferKind.OUTPUT, 4 * N)
        args = tuple(BoundArg(whole(buffer), N) for buffer in (self.x, self.y))
        self.dispatch = Dispatch(device.loaded(kernel or checked()), args, (1, 1, 1), 1)
        self.recording = device.record([self.dispatch], whole(self.y))

    def submit(self, places: np.ndarray) -> None:
        self.device.write(self.x, places.astype(np.int32))
        self.device.replay(self.recording)

    def read(self) -> np.ndarray:
        out = np.empty(N, np.int32)
        self.device.read(self.y, out)
        return out

    def close(self) -> None:
        self.device.release(self.recording)
        self.device.free(self.x)
        self.device.free(self.y)


def calls(device: PtxDevice, step: Step) -> dict[str, Callable[[], Any]]:
    """Every call of a device but close and what touches no hardware."""
    return {
        "allocate": lambda: device.allocate(BufferKind.ARENA, 16),
        "free": lambda: device.free(step.y),
        "write": lambda: device.write(step.y, np.zeros(N, np.int32)),
        "write of an input block": lambda: device.write(step.x, np.zeros(N, np.int32)),
        "read": step.read,
        "record": lambda: device.record([step.dispatch], None),
        "load": lambda: device.load(checked(), Compiled("checked", b"", "poot_kernel")),
        "release": lambda: device.release(step.recording),
        "replay": lambda: device.replay(step.recording),
        "synchronize": device.synchronize,
        "memory": device.memory,
        "device_time": device.device_time,
    }


def assert_poisoned(driver: Any, device: PtxDevice, step: Step) -> None:
    """Every call is refused, and the driver hears of none of them."""
    heard = len(driver.calls)
    for name, call in calls(device, step).items():
        with pytest.raises(Poisoned, match="open it again in a new process"):
            call()
        assert len(driver.calls) == heard, name
    device.close()
    device.close()
    assert len(driver.calls) == heard


def test_steps_in_flight_over_two_lanes(device: PtxDevice, driver: Any, rng: np.random.Generator) -> None:
    """The oldest is waited for first; its outputs are served from the host while the next one runs."""
    lanes = [Step(device), Step(device, checked("other"))]
    for _ in range(3):
        places = [rng.permutation(N) for _ in lanes]
        for lane, given in zip(lanes, places, strict=True):
            lane.submit(given)
        for lane, given in zip(lanes, places, strict=True):
            device.synchronize()
            copied = driver.calls.count("cuMemcpyDtoHAsync")
            assert np.array_equal(lane.read(), given)
            assert driver.calls.count("cuMemcpyDtoHAsync") == copied
            assert device.device_time() == 1e-3
    for lane in lanes:
        lane.close()


def test_a_step_costs_one_launch(device: PtxDevice, driver: Any) -> None:
    """Upload and download are nodes of the graph: nothing else is submitted, and nothing allocated."""
    step = Step(device)
    step.submit(np.arange(N))
    device.synchronize()
    del driver.calls[:]
    step.submit(np.arange(N)[::-1].copy())
    device.synchronize()
    assert np.array_equal(step.read(), np.arange(N)[::-1])
    work = [name for name in driver.calls if name not in ("cuCtxSetCurrent", "cuEventQuery")]
    assert work == ["cuEventRecord", "cuGraphLaunch", "cuEventRecord", "cuEventElapsedTime"]
    step.close()


def test_an_input_block_is_not_written_while_a_replay_may_upload_it(device: PtxDevice, driver: Any) -> None:
    """The write waits for the replay that reads the block; its own bytes are for the next one."""
    step = Step(device)
    step.submit(np.arange(N))
    step.submit(np.roll(np.arange(N), 1))
    assert driver.done == driver.submitted - 1
    device.synchronize()
    device.synchronize()
    assert np.array_equal(step.read(), np.roll(np.arange(N), 1))
    step.close()


def test_an_input_block_that_a_command_writes_is_the_devices_own(device: PtxDevice, rng: np.random.Generator) -> None:
    step = Step(device)
    values = rng.integers(0, 1000, N).astype(np.int32)
    other = device.allocate(BufferKind.ARENA, 4 * N)
    device.write(step.x, np.arange(N, dtype=np.int32))
    device.write(other, values)
    recording = device.record([Copy(whole(other), whole(step.x))], None)
    out = np.empty(N, np.int32)
    device.read(step.x, out)
    assert np.array_equal(out, np.arange(N))
    device.replay(recording)
    device.synchronize()
    device.read(step.x, out)
    assert np.array_equal(out, values)
    device.write(step.x, values[::-1].copy())
    device.read(step.x, out)
    assert np.array_equal(out, values[::-1])
    device.release(recording)
    device.free(other)
    step.close()


def test_a_failed_check_is_a_fault_and_then_poison(device: PtxDevice, driver: Any, rng: np.random.Generator) -> None:
    step, other = Step(device), Step(device, checked("other", 5))
    step.submit(rng.permutation(N))
    device.synchronize()
    bad = rng.permutation(N)
    bad[7] = N
    step.submit(bad)
    other.submit(bad)
    with pytest.raises(KernelFault) as raised:
        device.synchronize()
    assert (raised.value.kernel, raised.value.code) == ("checked", 17)
    assert isinstance(raised.value.__cause__, DeviceLost)
    assert_poisoned(driver, device, step)


@pytest.mark.parametrize(
    "call", ["cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuGraphLaunch", "cuEventQuery", "cuStreamBeginCapture"]
)
def test_whatever_call_observes_a_lost_context(
    device: PtxDevice, driver: Any, simulated: ModuleType, call: str
) -> None:
    step = Step(device)
    step.submit(np.arange(N))
    driver.fail(call, simulated.ILLEGAL_ADDRESS)
    actions = calls(device, step)
    name = {
        "cuMemAlloc": "allocate", "cuMemFree": "free", "cuMemGetInfo": "memory", "cuGraphLaunch": "replay",
        "cuEventQuery": "synchronize", "cuStreamBeginCapture": "record",
    }[call]  # fmt: skip
    with pytest.raises(DeviceLost, match="ILLEGAL_ADDRESS"):
        actions[name]()
    assert_poisoned(driver, device, step)


def test_a_wait_that_outlasts_its_bound(driver: Any, open_simulated: Callable[..., PtxDevice]) -> None:
    device = open_simulated(driver, timeout=0.05)
    step = Step(device)
    device.synchronize()
    driver.held = True
    step.submit(np.arange(N))
    start = time.monotonic()
    with pytest.raises(DeviceTimeout, match=r"replay did not finish within 0\.05 s"):
        device.synchronize()
    assert 0.05 <= time.monotonic() - start < 50
    assert_poisoned(driver, device, step)


@pytest.mark.parametrize("name", ["free", "write of an input block", "read", "release"])
def test_no_call_waits_without_bound(driver: Any, open_simulated: Callable[..., PtxDevice], name: str) -> None:
    """The driver's own waits have none: the simulated one fails the test that makes one while it hangs."""
    device = open_simulated(driver, timeout=0.05)
    step = Step(device)
    device.write(step.y, np.zeros(N, np.int32))
    driver.held = True
    step.submit(np.arange(N))
    with pytest.raises(DeviceTimeout):
        calls(device, step)[name]()
    assert_poisoned(driver, device, step)


def test_closing_a_device_that_hangs_leaks_and_returns(driver: Any, open_simulated: Callable[..., PtxDevice]) -> None:
    device = open_simulated(driver, timeout=0.05)
    step = Step(device)
    driver.held = True
    step.submit(np.arange(N))
    with pytest.raises(DeviceTimeout):
        device.close()
    assert_poisoned(driver, device, step)


def test_closing_while_work_is_pending(driver: Any, open_simulated: Callable[..., PtxDevice]) -> None:
    device = open_simulated(driver)
    step = Step(device)
    for _ in range(3):
        device.replay(step.recording)
    device.close()
    assert driver.done == driver.submitted and not driver.leaks
    with pytest.raises(Poisoned, match="it was closed"):
        device.synchronize()


def test_out_of_memory_names_what_was_asked_and_leaves_the_device(device: PtxDevice, simulated: ModuleType) -> None:
    with pytest.raises(OutOfMemory) as raised:
        device.allocate(BufferKind.WEIGHT, simulated.LIMIT + 1)
    assert (raised.value.asked, raised.value.limit) == (simulated.LIMIT + 1, simulated.LIMIT)
    assert raised.value.free is not None and 0 < raised.value.free <= simulated.LIMIT
    step = Step(device)
    step.submit(np.arange(N))
    device.synchronize()
    assert np.array_equal(step.read(), np.arange(N))
    step.close()


@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cuMemsetD8Async"])
def test_an_allocation_is_all_or_nothing(device: PtxDevice, driver: Any, simulated: ModuleType, call: str) -> None:
    before = dict(driver.leaks), device.memory().used
    driver.fail(call, simulated.OUT_OF_MEMORY)
    with pytest.raises(OutOfMemory, match="input"):
        device.allocate(BufferKind.INPUT, 64)
    assert (dict(driver.leaks), device.memory().used) == before


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("cuMemHostAlloc", OutOfMemory), ("cuMemcpyHtoDAsync", CudaError), ("cuLaunchKernel", CudaError),
        ("cuMemcpyDtoHAsync", CudaError), ("cuGraphInstantiate", OutOfMemory), ("cuGraphUpload", OutOfMemory),
    ],
)  # fmt: skip
def test_a_recording_is_all_or_nothing(
    device: PtxDevice, driver: Any, simulated: ModuleType, call: str, error: type
) -> None:
    """Wherever it breaks off, no capture stays open and nothing is left behind; the next one is as good as any."""
    step = Step(device)
    before = dict(driver.leaks)
    driver.fail(call, simulated.OUT_OF_MEMORY if error is OutOfMemory else simulated.INVALID_VALUE)
    with pytest.raises(error):
        device.record([step.dispatch], whole(step.y))
    assert dict(driver.leaks) == before and driver.capture is None
    device.release(device.record([step.dispatch], whole(step.y)))
    step.close()


def test_a_kernel_that_the_assembler_refuses(device: PtxDevice, driver: Any) -> None:
    """Its messages go along, and the device goes on."""
    compiled = device.compile(checked("refused"))
    del driver.kernels[compiled.code]
    with pytest.raises(CudaError, match="INVALID_PTX") as raised:
        device.load(checked("refused"), compiled)
    assert raised.value.__notes__ == ["ptxas fatal: unknown kernel"]
    Step(device).close()


def test_what_does_not_fit_is_refused_before_the_driver_hears_of_it(device: PtxDevice, driver: Any) -> None:
    step = Step(device)
    heard = driver.calls.count("cuStreamBeginCapture")
    short = BoundArg(BufferSlice(step.x, 0, 8), N)
    (x, y) = step.dispatch.args
    for bad, error, message in (
        ((x,), DeviceError, "has 2 parameters and was given 1"),
        ((short, y), ValueError, "64 elements in 8 bytes"),
        ((BoundArg(BufferSlice(step.x, 4 * N, 4), 1), y), ValueError, "leave a input buffer"),
    ):
        with pytest.raises(error, match=message):
            device.record([Dispatch(step.dispatch.kernel, bad, (1, 1, 1), 1)], None)
    freed = device.allocate(BufferKind.ARENA, 16)
    device.free(freed)
    for call in (lambda: device.read(freed, np.empty(4, np.uint8)), lambda: device.write(freed, b"1234")):
        with pytest.raises(ValueError, match="was freed"):
            call()
    with pytest.raises(ValueError, match="contiguous, writeable"):
        device.read(step.y, np.empty((N, 2), np.int32)[:, 0])
    assert driver.calls.count("cuStreamBeginCapture") == heard
    step.close()


def test_a_released_recording_is_not_replayed(device: PtxDevice) -> None:
    step = Step(device)
    step.submit(np.arange(N))
    step.submit(np.arange(N))
    device.release(step.recording)
    device.release(step.recording)
    with pytest.raises(ValueError, match="released"):
        device.replay(step.recording)
    device.synchronize()
    device.free(step.x)
    device.free(step.y)


def test_large_transfers_go_in_pieces(device: PtxDevice, rng: np.random.Generator) -> None:
    """Over several turns of the page-locked memory, at offsets that are no multiples of anything."""
    nbytes = (13 << 20) + 7
    buffer = device.allocate(BufferKind.WEIGHT, nbytes + 40)
    data = rng.integers(0, 256, nbytes, dtype=np.uint8)
    device.write(buffer, data, 33)
    out = np.empty(nbytes, np.uint8)
    device.read(buffer, out, 33)
    assert np.array_equal(out, data)
    device.free(buffer)


def test_dependent_launches_only_follow_kernels(driver: Any, open_simulated: Callable[..., PtxDevice]) -> None:
    """Behind a copy or an upload a kernel is launched as ever."""
    device = open_simulated(driver, options=frozenset({"dependent_launch"}))
    step = Step(device)
    del driver.calls[:]
    copy = Copy(whole(step.y), whole(device.allocate(BufferKind.ARENA, 4 * N)))
    recording: Recording = device.record([step.dispatch, step.dispatch, copy, step.dispatch, step.dispatch], None)
    launches = [name for name in driver.calls if name.startswith(("cuLaunch", "cuMemcpyDtoD"))]
    assert launches == ["cuLaunchKernel", "cuLaunchKernelEx", "cuMemcpyDtoDAsync", "cuLaunchKernel", "cuLaunchKernelEx"]
    device.write(step.x, np.arange(N, dtype=np.int32))
    device.replay(recording)
    device.synchronize()
    device.close()
    assert not driver.leaks
