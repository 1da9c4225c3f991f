"""Buffers of kernel devices at any byte: what is beside a piece keeps its value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.inputs import Rng
from poot_executor.device import BufferKind
from poot_executor.kernel_device import KernelDevice


class ByteConformance:
    """Pieces of odd offsets and sizes, arrays of any dtype, and what is refused."""

    @pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 7, 64, 101])
    @pytest.mark.parametrize("kind", [BufferKind.INPUT, BufferKind.STATE], ids=lambda k: k.value)
    def test_pieces_at_any_byte_leave_their_neighbours_alone(
        self, device: KernelDevice, rng: Rng, kind: BufferKind, nbytes: int
    ) -> None:
        """Every offset and size of a small buffer, against a numpy array."""
        buffer = device.allocate(kind, nbytes)
        model = np.zeros(nbytes, np.uint8)
        for _ in range(20):
            start, stop = sorted(rng.integers(0, nbytes + 1, 2).tolist())
            piece = rng.integers(0, 256, stop - start).astype(np.uint8)
            device.write(buffer, piece.tobytes() if rng.random() < 0.5 else piece, start)
            model[start:stop] = piece
            low, high = sorted(rng.integers(0, nbytes + 1, 2).tolist())
            out = np.full(high - low, 0xAA, np.uint8)
            device.read(buffer, out, low)
            np.testing.assert_array_equal(out, model[low:high])
        whole = np.zeros(nbytes, np.uint8)
        device.read(buffer, whole.data)
        np.testing.assert_array_equal(whole, model)
        device.free(buffer)

    @pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, np.uint8])
    def test_arrays_of_any_dtype_go_in_and_out(self, device: KernelDevice, rng: Rng, dtype: Any) -> None:
        """Also one that is not contiguous: its values count."""
        given = rng.integers(0, 2, (5, 7)).astype(dtype)
        buffer = device.allocate(BufferKind.STATE, given.nbytes)
        device.write(buffer, given.T)
        out = np.zeros((7, 5), dtype)
        device.read(buffer, out)
        np.testing.assert_array_equal(out, given.T)
        device.free(buffer)

    def test_bytes_outside_a_buffer_are_refused(self, device: KernelDevice) -> None:
        """By their places; so is a target that is not in one piece, and a buffer that was freed."""
        buffer = device.allocate(BufferKind.CONSTANT, 16)
        with pytest.raises(ValueError, match="bytes 8 to 20 leave a constant buffer of 16 bytes"):
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
