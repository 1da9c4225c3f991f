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


def test_a_new_buffer_is_zero(device: Any) -> None:
    first = device.allocate(BufferKind.STATE, 1 << 16)
    device.write(first, np.full(1 << 16, 0xFF, np.uint8))
    device.free(first)
    again = device.allocate(BufferKind.STATE, 1 << 16)
    out = np.full(1 << 16, 7, np.uint8)
    device.read(again, out)
    assert not out.any()
    device.free(again)


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 7, 64, 101])
def test_pieces_at_any_byte_leave_their_neighbours_alone(device: Any, rng: np.random.Generator, nbytes: int) -> None:
    """Every offset and size of a small buffer, against a numpy array."""
    buffer = device.allocate(BufferKind.INPUT, nbytes)
    model = np.zeros(nbytes, np.uint8)
    for _ in range(30):
        start, stop = sorted(rng.integers(0, nbytes + 1, 2).tolist())
        piece = rng.integers(0, 256, stop - start).astype(np.uint8)
        device.write(buffer, piece.tobytes() if rng.random() < 0.5 else piece, start)
        model[start:stop] = piece
        low, high = sorted(rng.integers(0, nbytes + 1, 2).tolist())
        out = np.full(high - low, 0xAA, np.uint8)
        device.read(buffer, out, low)
        np.testing.assert_array_equal(out, model[low:high])
    whole = np.zeros(nbytes, np.uint8)
    device.read(buffer, memoryview(whole))
    np.testing.assert_array_equal(whole, model)
    device.free(buffer)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, np.uint8])
def test_arrays_of_any_dtype_go_in_and_out(device: Any, rng: np.random.Generator, dtype: Any) -> None:
    given = rng.integers(0, 2, (5, 7)).astype(dtype)
    buffer = device.allocate(BufferKind.OUTPUT, given.nbytes)
    device.write(buffer, given.T)  # not contiguous: its values count
    out = np.zeros((7, 5), dtype)
    device.read(buffer, out)
    np.testing.assert_array_equal(out, given.T)
    device.free(buffer)


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


def test_bytes_outside_a_buffer_are_refused(device: Any) -> None:
    buffer = device.allocate(BufferKind.INPUT, 16)
    with pytest.raises(ValueError, match="bytes 8 to 20 leave a input buffer of 16 bytes"):
        device.write(buffer, bytes(12), 8)
    with pytest.raises(ValueError, match="leave"):
        device.read(buffer, np.zeros(4, np.uint8), 13)
    with pytest.raises(ValueError, match="leave"):
        device.write(buffer, bytes(4), -4)
    with pytest.raises(ValueError, match="contiguous, writeable"):
        device.read(buffer, np.zeros((4, 4), np.uint8).T[:2])
    device.free(buffer)
    with pytest.raises(ValueError, match="was freed"):
        device.write(buffer, bytes(4))
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
