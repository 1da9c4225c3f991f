"""Element types in memory: sizes, rounding to bf16, and bytes there and back."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_executor.dtype import BF16, BOOL, F16, F32, DType, from_bytes, round_bf16, to_bytes

SIZES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "i8": 1, "u8": 1, "bool": 4}


def bf16_by_hand(bits):
    """The nearest bf16 of a finite float32's bits, ties to even, in exact integer arithmetic."""
    low, high = bits & 0xFFFF, bits >> 16
    if low > 0x8000 or (low == 0x8000 and high & 1):
        high += 1
    return high << 16


def test_sizes_and_names():
    assert {str(d): d.size for d in DType} == SIZES
    assert [d for d in DType if d.is_float] == [F32, F16, BF16]
    assert {d.value for d in DType if d.is_int} == {"i32", "u32", "i8", "u8"}
    assert repr(BF16) == "bf16"


@given(st.integers(0, 2**32 - 1).filter(lambda bits: (bits >> 23) & 0xFF != 0xFF))
def test_rounding_to_bf16_is_to_nearest_even(bits):
    value = np.array([bits], np.uint32).view(np.float32)
    assert round_bf16(value).view(np.uint32)[0] == bf16_by_hand(bits)


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0xFF80FFFF])
def test_nan_stays_nan_in_bf16(bits):
    value = np.array([bits], np.uint32).view(np.float32)
    rounded = round_bf16(value)
    assert np.isnan(rounded).all()
    assert rounded.view(np.uint32)[0] & 0xFFFF == 0
    assert rounded.view(np.uint32)[0] >> 31 == bits >> 31


def test_infinities_and_overflow_in_bf16():
    values = np.array([np.inf, -np.inf, np.finfo(np.float32).max], np.float32)
    np.testing.assert_array_equal(round_bf16(values), [np.inf, -np.inf, np.inf])


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 3)])
def test_bytes_there_and_back(dtype, shape):
    rng = np.random.default_rng(7)
    held = rng.integers(-100, 100, shape)
    array = (held % 2 if dtype is BOOL else held).astype(dtype.numpy)
    data = to_bytes(array, dtype)
    assert len(data) == array.size * dtype.size
    if array.size == 0:
        return
    back = from_bytes(data, dtype, shape)
    assert back.dtype == dtype.numpy
    np.testing.assert_array_equal(back, array)


def test_bytes_are_little_endian_words():
    assert to_bytes(np.array([1.5], np.float32), F32) == struct.pack("<f", 1.5)
    assert to_bytes(np.array([1.5], np.float32), BF16) == struct.pack("<f", 1.5)[2:]
    assert to_bytes(np.array([1.5], np.float16), F16) == struct.pack("<e", 1.5)
    assert to_bytes(np.array([True, False]), BOOL) == struct.pack("<II", 1, 0)
    assert from_bytes(struct.pack("<II", 7, 0), BOOL, (2,)).tolist() == [True, False]


def test_transposed_arrays_are_written_in_c_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert to_bytes(array, DType.I32) == struct.pack("<6i", 0, 3, 1, 4, 2, 5)


@pytest.mark.parametrize("dtype", list(DType))
def test_a_wrong_byte_count_is_refused(dtype):
    with pytest.raises(ValueError):  # noqa: PT011 - numpy's own messages differ between versions
        from_bytes(bytes(3 * dtype.size), dtype, (2,))
