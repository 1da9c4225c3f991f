"""How faults are taken down: on any thread, the first one, and without ever raising into the runtime."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from poot_eval.hsa import FakeRuntime
from poot_executor.errors import DeviceError, DeviceLost
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.errors import HsaError, OutOfDeviceMemory
from poot_rocm_device.faults import Latch, describe_event, describe_queue_error
from poot_rocm_device.hsa_types import Event, MemoryFault, Status
from poot_rocm_device.runtime import Runtime


def event(type: int, agent: int = 0x20, address: int = 0, reason: int = 0) -> Event:
    return Event(type, MemoryFault(agent, address, reason))


def test_the_first_fault_counts_and_whoever_waits_is_released() -> None:
    released = []
    latch = Latch(lambda: released.append(True))
    latch.check()
    latch.trip("the first")
    latch.trip("the second")
    assert latch.reason == "the first" and released
    with pytest.raises(DeviceLost, match="the first: the context is lost"):
        latch.check()


def test_of_many_threads_one_is_first() -> None:
    """And it stays the first."""
    for _ in range(20):
        latch, seen, gate = Latch(lambda: None), [], threading.Barrier(4)

        def trip(name: str, latch: Latch = latch, seen: list[str] = seen, gate: threading.Barrier = gate) -> None:
            gate.wait()
            latch.trip(name)
            seen.append(latch.reason)

        threads = [threading.Thread(target=trip, args=(str(k),)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(seen) == {latch.reason} and len(seen) == 4


def test_a_release_that_raises_is_no_ones_but_the_fault_stays() -> None:
    def release() -> None:
        raise OSError("gone")

    latch = Latch(release)
    latch.trip("the fault")
    assert latch.reason == "the fault"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (event(0, address=0x1000, reason=1), "the GPU faulted at address 0x1000 (the page is not there)"),
        (event(0, address=0x2000, reason=0b11), "at address 0x2000 (the page is not there, it is read only)"),
        (event(0, address=0x3000, reason=1 << 30), "at address 0x3000 (reason 0x40000000)"),
        (event(1), "the GPU hung and was reset"),
        (event(2), "an error of its memory"),
        (event(9), "the GPU reported event 9"),
    ],
)
def test_events_in_words(told: Event, words: str) -> None:
    assert words in describe_event(told)


def test_queue_errors_in_words() -> None:
    assert describe_queue_error(0x1016, "theirs") == "the queue reported status 0x1016 (a wave trapped or was aborted)"
    assert describe_queue_error(0x1005, "theirs") == "the queue reported status 0x1005 (theirs)"


def test_the_handler_says_success_whatever_it_is_told(runtime: Runtime) -> None:
    """With anything else the runtime ends the process."""
    latch = Latch(lambda: None)
    runtime.watch(0x20, latch)
    assert runtime._on_event(None, None) == Status.SUCCESS
    assert runtime._on_event(ctypes.pointer(event(0, agent=0x20)), None) == Status.SUCCESS
    assert latch.reason


def test_the_end_of_the_runtime_is_no_fault(runtime: Runtime) -> None:
    latch = Latch(lambda: None)
    runtime.watch(0x20, latch)
    assert runtime._on_event(ctypes.pointer(event(3, agent=0)), None) == Status.SUCCESS
    assert not latch.reason


def test_an_event_is_told_to_whom_it_concerns(runtime: Runtime) -> None:
    """And to everybody where that is nobody."""
    latches = {agent: Latch(lambda: None) for agent in (0x20, 0x30)}
    for agent, latch in latches.items():
        runtime.watch(agent, latch)
    runtime._on_event(ctypes.pointer(event(0, agent=0x30)), None)
    assert not latches[0x20].reason and latches[0x30].reason
    runtime._on_event(ctypes.pointer(event(0, agent=0x77)), None)
    assert latches[0x20].reason


def test_a_device_that_nobody_holds_is_held(
    fake: FakeRuntime, runtime: Runtime, open_device: Callable[..., RocmDevice]
) -> None:
    """The runtime may call back into it until its queue is gone; then it goes."""
    device = open_device()
    held = weakref.ref(device)
    del device
    gc.collect()
    assert held() is not None and fake.count("queues") == 1
    runtime._end()
    gc.collect()
    assert held() is None
    assert not any(fake.count(what) for what in ("allocations", "live signals", "queues", "references"))


def test_statuses_are_told_apart(runtime: Runtime) -> None:
    """No memory, a wrong call, and everything else: what is not known to be harmless is a lost device."""
    hsa = runtime.hsa
    assert isinstance(hsa.error("hsa_call", 0x1008), OutOfDeviceMemory)
    harmless = hsa.error("hsa_call", 0x1001)
    assert isinstance(harmless, HsaError) and isinstance(harmless, DeviceError)
    assert (harmless.call, harmless.status) == ("hsa_call", 0x1001)
    for status in (0x1000, 0x1016, 0x1026, 41, 42, 43, 0x7777):
        assert isinstance(hsa.error("hsa_call", status), DeviceLost), status
    with pytest.raises(HsaError, match="hsa_amd_memory_pool_free"):
        hsa.free(np.zeros(16).ctypes.data)
