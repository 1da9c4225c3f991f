"""Kernels written by hand, compiled to gfx11 machine code and interpreted, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.gfx11.faults import MemoryFault, TrapFault
from poot_eval.gfx11.run import Order

TEXT = """
KERNEL(256) vadd(const float* a, const float* b, float* c, int n) {
  int i = GID * 256 + TID; if (i < n) c[i] = a[i] + b[i]; }
KERNEL(256) total(const int* x, int* out, int n) {
  __shared__ int part[256];
  int s = 0; for (int i = TID; i < n; i += 256) s += x[i];
  part[TID] = s; barrier();
  for (int half = 128; half > 0; half >>= 1) { if (TID < half) part[TID] += part[TID + half]; barrier(); }
  if (TID == 0) out[GID] = part[0];
}
KERNEL(64) check(const int* slot, int* out, int limit) {
  int v = slot[0]; if (v < 0 || v >= limit) __builtin_trap(); if (TID == 0) out[0] = v * 2;
}
"""


@pytest.fixture(scope="module")
def kernels(hip):
    return hip(TEXT)


@pytest.fixture(scope="module")
def kernels64(hip):
    return hip(TEXT, wave=64)


@pytest.mark.parametrize("n", [1, 31, 256, 1000])
def test_addition(kernels, rng, n):
    a, b = rng.standard_normal((2, n)).astype(np.float32)
    c = np.zeros(n, np.float32)
    kernels.run("vadd", [a, b, c, n], groups=(-(-n // 256), 1, 1), items=(256, 1, 1), read_only=(0, 1))
    np.testing.assert_array_equal(c, a + b)


@pytest.mark.parametrize("order", Order)
def test_a_sum_through_local_memory(kernels, rng, order):
    x = rng.integers(-(2**31), 2**31, 1000, np.int32)
    out = np.zeros(3, np.int32)
    kernels.run("total", [x, out, x.size], groups=(3, 1, 1), items=(256, 1, 1), order=order, races=True)
    np.testing.assert_array_equal(out, x.sum(dtype=np.int32))


def test_waves_of_64_lanes(kernels64, rng):
    x = rng.integers(-(2**31), 2**31, 1000, np.int32)
    out = np.zeros(1, np.int32)
    kernels64.run("total", [x, out, x.size], items=(256, 1, 1), races=True)
    assert out[0] == x.sum(dtype=np.int32)
    a, b = rng.standard_normal((2, 300)).astype(np.float32)
    c = np.zeros(300, np.float32)
    kernels64.run("vadd", [a, b, c, 300], groups=(2, 1, 1), items=(256, 1, 1))
    np.testing.assert_array_equal(c, a + b)


def test_a_trap_names_kernel_and_group(kernels):
    slot, out = np.array([3], np.int32), np.zeros(1, np.int32)
    kernels.run("check", [slot, out, 10], items=(64, 1, 1))
    assert out[0] == 6
    slot[0] = 10
    with pytest.raises(TrapFault, match="check") as caught:
        kernels.run("check", [slot, out, 10], items=(64, 1, 1))
    assert caught.value.number == 2
    assert caught.value.group == 0


def test_an_access_past_a_buffer_is_refused(kernels):
    a = np.zeros(64, np.float32)
    with pytest.raises(MemoryFault) as caught:
        kernels.run("vadd", [a, a.copy(), np.zeros(32, np.float32), 64], items=(256, 1, 1))
    assert caught.value.access == "store"
    with pytest.raises(MemoryFault, match="read only"):
        kernels.run("vadd", [a, a.copy(), np.zeros(64, np.float32), 64], items=(256, 1, 1), read_only=(2,))
