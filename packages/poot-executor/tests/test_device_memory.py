"""The bookkeeping of a device's buffers, over a runtime that is a bytearray for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_executor.device import Buffer, BufferKind, BufferSlice
from poot_executor.device_memory import DeviceMemory, host_bytes, host_target, whole_units

UNIT = 16


class ByteArrays(DeviceMemory):
    """Buffers of whole units of 16 bytes. `returned` is what was given back, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.returned: list[bytearray] = []

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """A buffer, which cannot fail."""
        size = whole_units(nbytes, UNIT)
        return self._keep(kind, nbytes, bytearray(size), size)

    def _give_back(self, handle: Any) -> None:
        self.returned.append(handle)


def test_buffers_count_with_what_was_taken_for_them() -> None:
    memory = ByteArrays()
    buffers = [memory.allocate(kind, 17) for kind in (BufferKind.STATE, BufferKind.STATE, BufferKind.INPUT)]
    assert memory.used[BufferKind.STATE] == 64
    assert memory.used[BufferKind.INPUT] == 32
    assert set(memory.used) == set(BufferKind)
    before = memory.used
    for buffer in buffers:
        memory.free(buffer)
    assert not any(memory.used.values())
    assert before[BufferKind.STATE] == 64, "what was asked for is as it was then"


def test_a_buffer_goes_back_once() -> None:
    memory = ByteArrays()
    first, second = (memory.allocate(BufferKind.ARENA, 8) for _ in range(2))
    handle = first.handle
    assert memory.holds(first)
    for _ in range(2):
        memory.free(first)
    assert not memory.holds(first)
    assert first.handle is None
    assert memory.holds(second)
    memory.free_all()
    memory.free_all()
    assert len(memory.returned) == 2
    assert memory.returned[0] is handle


def test_what_a_lost_device_has_is_not_given_back() -> None:
    memory = ByteArrays()
    buffer = memory.allocate(BufferKind.WEIGHT, 100)
    memory.forget()
    memory.free(buffer)
    memory.free_all()
    assert not memory.returned
    assert buffer.handle is not None
    assert memory.used[BufferKind.WEIGHT] == 112


def test_another_devices_buffer_is_refused() -> None:
    memory, other = ByteArrays(), ByteArrays()
    foreign = other.allocate(BufferKind.OUTPUT, 4)
    with pytest.raises(ValueError, match="a output buffer is not one of this device's, or was freed"):
        memory.check(BufferSlice(foreign, 0, 4))
    memory.free(foreign)
    assert other.holds(foreign)
    assert not memory.returned


@given(nbytes=st.integers(0, 64), offset=st.integers(-70, 70), length=st.integers(-70, 70))
def test_a_slice_lies_in_its_buffer(nbytes: int, offset: int, length: int) -> None:
    """In its own bytes: not in those that were taken beside them."""
    memory = ByteArrays()
    piece = BufferSlice(memory.allocate(BufferKind.CONSTANT, nbytes), offset, length)
    places = range(nbytes + 1)
    if length >= 0 and offset in places and offset + length in places:
        memory.check(piece)
    else:
        with pytest.raises(ValueError, match=f"bytes {offset} to {offset + length} leave a constant buffer"):
            memory.check(piece)


@given(nbytes=st.integers(0, 1 << 50), unit=st.sampled_from([4, 16, 256]))
def test_whole_units(nbytes: int, unit: int) -> None:
    found = whole_units(nbytes, unit)
    assert found % unit == 0
    assert found >= max(nbytes, 1)
    assert found - unit < max(nbytes, 1)


def test_host_data_is_taken_without_a_copy_where_it_lies_in_one_piece() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.shares_memory(host_bytes(array), array)
    np.testing.assert_array_equal(host_bytes(array.T).view(np.float32), array.T.ravel())
    for given_data in (array.tobytes(), memoryview(array.tobytes())):
        np.testing.assert_array_equal(host_bytes(given_data), array.view(np.uint8).ravel())


def test_what_cannot_be_written_in_one_piece_is_no_target() -> None:
    array = np.zeros((2, 4), np.uint16)
    host_target(array)[:] = 255
    host_target(memoryview(array))[:2] = 0
    assert array.ravel().tolist() == [0] + [0xFFFF] * 7
    for bad in (array.T, array[:, ::2], memoryview(b"fixed")):
        with pytest.raises(ValueError, match="contiguous, writeable"):
            host_target(bad)
