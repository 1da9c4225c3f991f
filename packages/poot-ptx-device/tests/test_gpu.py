"""Faults and neighbours on a GPU, each in a process of its own: a context that faults is lost for the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poot_eval.conformance import open_or_skip

pytestmark = pytest.mark.device("ptx")

PROLOGUE = """
import numpy as np
from poot_executor.device import *
from poot_executor.dtype import DType
from poot_executor.errors import *
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access
from poot_executor.settings import DeviceSettings
from poot_ptx_device.driver import PtxDriver

I32, U32 = DType.I32, DType.U32
N, GROUP = 256, 64

def opened(**settings):
    return PtxDriver().open("", DeviceSettings(**settings))

def gather():
    b = KernelBuilder("gather", GROUP)
    x, y = b.buffer("x", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    i = b.group_id() * GROUP + b.thread_id()
    at = x[i]
    b.check((at >= 0) & (at < N), 17)
    y[b.max(b.min(at, N - 1), 0)] = i
    return b.finish()

def spin(rounds):
    b = KernelBuilder("spin", 32)
    y = b.buffer("y", U32, Access.READ_WRITE)
    value = b.var(y[b.thread_id()])
    with b.range(rounds):
        value.set((value.get() ^ (value.get() >> 7)) * 2654435761 + y[b.cast(value.get() & 31, I32)])
    y[b.thread_id()] = value.get()
    return b.finish()

def whole(buffer):
    return BufferSlice(buffer, 0, buffer.nbytes)

def recorded(device, kernel, *buffers, groups=(1, 1, 1)):
    args = tuple(BoundArg(whole(b), b.nbytes // 4) for b in buffers)
    return device.record([Dispatch(device.loaded(kernel), args, groups, 1)], whole(buffers[-1]))

def expect(error, action):
    try:
        action()
    except error as caught:
        return caught
    raise SystemExit(f"{error.__name__} was not raised")
"""


def run(body: str) -> str:
    """The output of a program of its own, which must succeed."""
    code = PROLOGUE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(autouse=True)
def _gpu() -> None:
    """Skip all of these where there is no GPU."""
    open_or_skip("ptx").close()


CHECK = """
device = opened()
x, y = device.allocate(BufferKind.INPUT, 4 * N), device.allocate(BufferKind.OUTPUT, 4 * N)
recording = recorded(device, gather(), x, y, groups=(N // GROUP, 1, 1))
good = np.random.default_rng().permutation(N).astype(np.int32)
device.write(x, good)
device.replay(recording)
device.synchronize()
out = np.empty(N, np.int32)
device.read(y, out)
assert np.array_equal(out[good], np.arange(N))
good[200] = N
device.write(x, good)
device.replay(recording)
fault = expect(KernelFault, device.synchronize)
assert (fault.kernel, fault.code) == ("gather", 17), fault
for call in (device.synchronize, device.memory, lambda: device.replay(recording), lambda: device.free(x)):
    expect(Poisoned, call)
device.close()
device.close()
print("poisoned")
"""


def test_a_failed_check_names_itself_and_poisons() -> None:
    """The trap is real: kernel and code are read from the host's memory, and no later call touches the driver."""
    assert "poisoned" in run(CHECK)


def test_an_illegal_access_is_a_lost_device() -> None:
    """A buffer's address that is none: guards keep kernels inside their buffers, and know nothing of addresses."""
    run("""
    device = opened()
    y, z = (device.allocate(BufferKind.OUTPUT, 4 * N) for _ in range(2))
    y.handle.address = 1 << 44
    args = (BoundArg(whole(y), N),)
    recording = device.record([Dispatch(device.loaded(spin(4)), args, (1, 1, 1), 1)], whole(z))
    device.replay(recording)
    lost = expect(DeviceLost, device.synchronize)
    assert "ILLEGAL_ADDRESS" in str(lost), lost
    expect(Poisoned, device.synchronize)
    device.close()
    """)


def test_a_wait_that_outlasts_its_bound() -> None:
    """The caller gets its error while the kernel still runs, and the process ends."""
    run("""
    import os, time
    device = opened(timeout=0.5)
    y = device.allocate(BufferKind.OUTPUT, 4 * N)
    recording = recorded(device, spin(2_000_000_000), y)
    device.replay(recording)
    start = time.monotonic()
    expect(DeviceTimeout, device.synchronize)
    assert 0.4 < time.monotonic() - start < 5
    expect(Poisoned, device.synchronize)
    device.close()
    os._exit(0)
    """)


def test_closing_while_work_is_pending() -> None:
    run("""
    device = opened()
    y = device.allocate(BufferKind.OUTPUT, 4 * N)
    recording = recorded(device, spin(200_000), y)
    for _ in range(3):
        device.replay(recording)
    device.close()
    device.close()
    expect(Poisoned, device.synchronize)
    with opened() as again:
        z = again.allocate(BufferKind.OUTPUT, 4 * N)
        again.replay(recorded(again, spin(100), z))
        again.synchronize()
    """)


def test_out_of_memory_leaves_everything_usable() -> None:
    """More than is free, asked of the driver itself."""
    run("""
    with opened() as device:
        free = device.memory().free
        refused = expect(OutOfMemory, lambda: device.allocate(BufferKind.WEIGHT, free + (1 << 30)))
        assert refused.asked == free + (1 << 30) and refused.free is not None and refused.limit is not None
        y = device.allocate(BufferKind.OUTPUT, 4 * N)
        device.replay(recorded(device, spin(100), y))
        device.synchronize()
    """)


def test_processes_share_a_gpu() -> None:
    """Four at once; one of them faults, and the others do not notice."""
    bodies = [CHECK] + [
        """
        for _ in range(3):
            with opened() as device:
                x, y = device.allocate(BufferKind.INPUT, 4 * N), device.allocate(BufferKind.OUTPUT, 4 * N)
                recording = recorded(device, gather(), x, y, groups=(N // GROUP, 1, 1))
                for _ in range(200):
                    places = np.random.default_rng().permutation(N).astype(np.int32)
                    device.write(x, places)
                    device.replay(recording)
                    device.synchronize()
                    out = np.empty(N, np.int32)
                    device.read(y, out)
                    assert np.array_equal(out[places], np.arange(N))
        """
    ] * 3
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, bodies))


def test_two_devices_in_one_process() -> None:
    """They share the primary context: closing one leaves the other."""
    run("""
    one, two = opened(), opened()
    buffers = [d.allocate(BufferKind.OUTPUT, 4 * N) for d in (one, two)]
    recordings = [recorded(d, spin(100), y) for d, y in zip((one, two), buffers)]
    one.replay(recordings[0]); two.replay(recordings[1])
    one.synchronize(); one.close()
    two.synchronize(); two.replay(recordings[1]); two.synchronize(); two.close()
    """)


def test_machine_code_is_kept(tmp_path: Path) -> None:
    """A second process takes text and machine code from disk."""
    body = f"""
    from pathlib import Path
    with opened(cache=Path({os.fspath(tmp_path)!r})) as device:
        y = device.allocate(BufferKind.OUTPUT, 4 * N)
        device.replay(recorded(device, spin(100), y))
        device.synchronize()
        stats = [cache.stats() for cache in (device._cache, device._loader._cache)]
        print([(s.hits, s.misses, s.warning) for s in stats])
    """
    assert run(body).split() == "[(0, 1, None), (0, 1, None)]".split()
    assert run(body).split() == "[(1, 0, None), (1, 0, None)]".split()


def test_the_assemblers_words_are_passed_on() -> None:
    run("""
    from poot_ptx_device.errors import CudaError
    kernel = spin(3)
    with opened() as device:
        good = device.compile(kernel)
        bad = Compiled(good.name, good.code.replace(b"add.s32", b"add.s33"), good.entry)
        caught = expect(CudaError, lambda: device.load(kernel, bad))
        assert "add" in " ".join(caught.__notes__), caught.__notes__
        device.load(kernel, good)
    """)


def test_dependent_launch_gives_the_same() -> None:
    """A chain of kernels, each over what the last one wrote, launched before the last one has ended."""
    run("""
    from poot_ptx_device.caps import DEPENDENT_LAUNCH
    from poot_ptx_device.native import Native
    from poot_ptx_device.opening import open_gpu
    from cuda.bindings import driver
    native = Native(driver)
    native.initialize()
    gpu = native.gpus()[0]
    if gpu.capability < (9, 0):
        raise SystemExit(0)
    b = KernelBuilder("mix", GROUP)
    x, y = b.buffer("x", U32, Access.READ_WRITE), b.buffer("y", U32, Access.READ_WRITE)
    i = b.group_id() * GROUP + b.thread_id()
    y[i] = x[(i * 769 + 13) % (N * 64)] * 2654435761 + b.cast(i, U32)
    kernel = b.finish()
    given = np.random.default_rng().integers(0, 1 << 32, N * 64, dtype=np.uint32)
    left = []
    for options in (frozenset(), frozenset({DEPENDENT_LAUNCH})):
        with open_gpu(native, gpu, DeviceSettings(), options=options) as device:
            one, two = (device.allocate(BufferKind.ARENA, 256 * N) for _ in range(2))
            device.write(one, given)
            args = [tuple(BoundArg(whole(p), 64 * N) for p in pair) for pair in ((one, two), (two, one))]
            chain = [Dispatch(device.loaded(kernel), args[k % 2], (N, 1, 1), 1) for k in range(200)]
            recording = device.record(chain, whole(one))
            for _ in range(20):
                device.replay(recording)
            for _ in range(20):
                device.synchronize()
            out = np.empty(64 * N, np.uint32)
            device.read(one, out)
            left.append(out)
    assert np.array_equal(*left)
    """)
