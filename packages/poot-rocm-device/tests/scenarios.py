"""Scenarios that may end their process: `scenarios.py NAME LIBRARY`. Each prints what it saw, a line at a time."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from pathlib import Path

import numpy as np
from interpreting import Interpreting, N, Step, expected, open_interpreting

from poot_eval.hsa import FakeRuntime, Injection
from poot_executor.device import BufferKind
from poot_executor.errors import DeviceLost, DeviceTimeout, Poisoned
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.hsa import Hsa
from poot_rocm_device.hsa_types import QueueCallback
from poot_rocm_device.memory import allocation_of
from poot_rocm_device.runtime import Runtime


def say(*words: object) -> None:
    """A line that is there even if the process ends."""
    print(*words, flush=True)


def opened(path: str, **settings: float) -> tuple[FakeRuntime, RocmDevice, Step]:
    """A device with a step that has run once."""
    fake = FakeRuntime(Path(path))
    device = open_interpreting(fake, Runtime(path), Interpreting(), **settings)
    step = Step(device)
    places = np.arange(N)
    assert (step.run(places) == expected(places)).all()
    return fake, device, step


def memory_fault(path: str) -> None:
    """The handler takes it: the process lives, and the device is lost."""
    fake, device, step = opened(path)
    fake.inject(Injection.MEMORY_FAULT, after=1)
    _lost(device, step)


def reset(path: str) -> None:
    """The GPU hangs and is reset."""
    fake, device, step = opened(path)
    fake.inject(Injection.RESET, after=1)
    _lost(device, step)


def _lost(device: RocmDevice, step: Step) -> None:
    for _ in range(2):
        try:
            step.run(np.arange(N))
        except (DeviceLost, Poisoned) as error:
            say(type(error).__name__, error)
    device.close()
    say("closed")


def unhandled(path: str) -> None:
    """A memory fault that no handler takes: what the runtime does without poot's handler."""
    fake = FakeRuntime(Path(path))
    hsa = Hsa(path)
    hsa.init()
    (gpu,) = (agent for agent in hsa.agents() if agent == 0x20)
    queue = hsa.create_queue(gpu, 64, QueueCallback(lambda *_: None))
    fake.inject(Injection.MEMORY_FAULT)
    from poot_eval.hsa import Descriptor, code_object

    code = code_object(Descriptor("empty", 0), 0x41)
    executable = hsa.load(gpu, code)
    from poot_rocm_device.hsa_types import DispatchPacket, Scope, SymbolInfo, header

    packet = DispatchPacket.from_address(queue.contents.base_address)
    ctypes.memset(ctypes.addressof(packet), 0, 64)
    packet.setup = 3
    packet.workgroup_size_x = packet.workgroup_size_y = packet.workgroup_size_z = 1
    packet.grid_size_x = packet.grid_size_y = packet.grid_size_z = 1
    packet.kernel_object = hsa.symbol_number(hsa.symbol(executable, gpu, "empty.kd"), SymbolInfo.KERNEL_OBJECT)
    packet.header = header(barrier=True, acquire=Scope.SYSTEM, release=Scope.SYSTEM)
    say("submitting")
    hsa.add_write_index(ctypes.cast(queue, ctypes.c_void_p), 1)
    hsa.store_signal(queue.contents.doorbell_signal, 0)
    threading.Event().wait(240)
    say("alive")


def touched(path: str) -> None:
    """The host stores into the GPU's memory, which it must not."""
    _, device, _ = opened(path)
    buffer = device.allocate(BufferKind.ARENA, 4096)
    place = ctypes.c_int.from_address(allocation_of(buffer).address)
    say("touching")
    # The simulated GPU may still be at what it was asked for before, and has the memory open meanwhile.
    for _ in range(60_000):
        place.value = 1
        time.sleep(1e-3)
    say("touched")


def left_open(path: str) -> None:
    """The interpreter ends while a device is open and a step is in flight."""
    _, _, step = opened(path)
    step.submit(np.arange(N))
    say("leaving")


def left_hanging(path: str) -> None:
    """The interpreter ends while the device hangs."""
    fake, _, step = opened(path, timeout=0.3)
    fake.inject(Injection.HANG)
    step.submit(np.arange(N))
    say("leaving")


def left_lost(path: str) -> None:
    """The interpreter ends after a hang that was noticed."""
    fake, _, step = opened(path, timeout=0.3)
    fake.inject(Injection.HANG)
    try:
        step.run(np.arange(N))
    except DeviceTimeout as error:
        say(type(error).__name__)
    say("leaving")


if __name__ == "__main__":
    {
        function.__name__: function
        for function in (memory_fault, reset, unhandled, touched, left_open, left_hanging, left_lost)
    }[sys.argv[1]](sys.argv[2])
