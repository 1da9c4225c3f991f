"""Buffers: zeroed, counted, read and written at any byte."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from poot_executor.device import BufferKind
from poot_executor.errors import OutOfMemory
from poot_wgpu_device import device as device_module

pytestmark = pytest.mark.device("wgpu")


def test_long_transfers_go_in_pieces(device: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "UNSENT_BYTES", 1 << 12)
    monkeypatch.setattr(device_module, "READ_BYTES", 1 << 11)
    given = rng.integers(0, 256, 50_001).astype(np.uint8)
    buffer = device.allocate(BufferKind.WEIGHT, given.nbytes + 3)
    device.write(buffer, given, 3)
    out = np.zeros(given.nbytes, np.uint8)
    device.read(buffer, out, 3)
    np.testing.assert_array_equal(out, given)
    device.free(buffer)


def test_memory_counts_what_is_allocated(device: Any) -> None:
    before = device.memory()
    assert (before.free, before.limit) == (None, None)
    buffers = [device.allocate(kind, 1000) for kind in BufferKind]
    used = device.memory().used
    assert all(used[kind] == before.used[kind] + 1000 for kind in BufferKind)
    for buffer in buffers:
        device.free(buffer)
        device.free(buffer)
    assert device.memory().used == before.used


def test_more_than_the_largest_buffer_is_out_of_memory(device: Any) -> None:
    limit = device.target.caps.max_buffer_bytes
    with pytest.raises(OutOfMemory, match="of weight") as caught:
        device.allocate(BufferKind.WEIGHT, limit + 1)
    assert (caught.value.asked, caught.value.limit) == (limit + 1, limit)
    device.free(device.allocate(BufferKind.WEIGHT, 1024))


STARVED = """
import resource
import numpy as np
from poot_executor.device import BufferKind
from poot_executor.errors import OutOfMemory
from poot_executor.settings import DeviceSettings
from poot_wgpu_device.driver import WgpuDriver
device = WgpuDriver().open("", DeviceSettings(timeout=60.0))
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), resource.RLIM_INFINITY))
used = device.memory().used
try:
    device.allocate(BufferKind.STATE, 1 << 30)
except OutOfMemory as error:
    print(error)
assert device.memory().used == used
small = device.allocate(BufferKind.STATE, 1 << 20)
device.write(small, np.arange(1 << 18, dtype=np.int32))
out = np.zeros(1 << 18, np.int32)
device.read(small, out)
assert (out == np.arange(1 << 18)).all()
device.close()
print("usable")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_an_allocation_that_the_driver_refuses_leaves_the_device_usable(device: Any) -> None:
    """A process with little address space left: llvmpipe's own allocation fails."""
    if not device.target.caps.max_buffer_bytes > 1 << 30:
        pytest.skip("this adapter's limit comes first")
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused, usable = done.stdout.splitlines()
    assert refused.startswith("out of device memory: asked for 1,073,741,824 bytes of state")
    assert usable == "usable"
