"""Memory of every kind and width: global, constant, local and private; atomics; what is outside."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.faults import RaceError
from poot_eval.gfx11.faults import MemoryFault
from poot_eval.gfx11.run import Order

TEXT = """
#define COPY(name, T) \\
  KERNEL(64) copy_##name(const T* x, T* y) { y[GID * 64 + TID] = x[GID * 64 + TID]; } \\
  KERNEL(64) turn_##name(const T* x, T* y) { \\
    __shared__ T kept[64]; kept[TID] = x[GID * 64 + TID]; barrier(); y[GID * 64 + TID] = kept[63 - TID]; }
typedef u32 v2 __attribute__((ext_vector_type(2))); typedef u32 v4 __attribute__((ext_vector_type(4)));
struct v3 { u32 a, b, c; };
COPY(u8, u8) COPY(i8, i8) COPY(u16, u16) COPY(f16, f16) COPY(u32, u32) COPY(v2, v2) COPY(v3, v3) COPY(v4, v4)
KERNEL(64) widen(const i8* a, const short* b, int* y) { y[TID] = a[TID] * 1000 + b[TID]; }
KERNEL(32) halves(const u16* x, u32* y) { y[TID] = x[TID] | (u32)x[TID + 32] << 16; }
__attribute__((device)) const int TABLE[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
KERNEL(32) look(const int* x, int* y) { y[TID] = TABLE[x[TID] & 15]; }
KERNEL(32) spill(const int* x, int* y, int n) {
  int kept[24]; for (int i = 0; i < 24; i++) kept[i] = x[TID * 24 + i];
  int s = 0; for (int i = 0; i < n; i++) { int j = x[(TID + i) % 768] & 15; s += kept[j]; kept[j] = s; }
  y[TID] = s;
}
KERNEL(64) anywhere(const int* x, int* y, int n) {
  __shared__ int kept[64]; kept[TID] = TID * 3; barrier();
  const int* from = n > 5 ? (const int*)kept : x; volatile const int* p = from; y[TID] = p[TID ^ 1];
}
#define ADD(T, name, at) __hip_atomic_fetch_##name(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
#define ATOMIC(T, t) \\
  KERNEL(64) t##_add(const T* x, T* y, T* old) { T v = x[GID * 64 + TID]; old[GID * 64 + TID] = ADD(T, add, y); } \\
  KERNEL(64) t##_max(const T* x, T* y) { T v = x[GID * 64 + TID]; ADD(T, max, y); } \\
  KERNEL(64) t##_min(const T* x, T* y) { T v = x[GID * 64 + TID]; ADD(T, min, y); }
#define BITS(T, t) ATOMIC(T, t) \\
  KERNEL(64) t##_xor(const T* x, T* y) { T v = x[GID * 64 + TID]; ADD(T, xor, y); } \\
  KERNEL(64) t##_local(const T* x, T* y) { \\
    __shared__ T sum, top; if (TID == 0) { sum = 0; top = 0; } barrier(); T v = x[GID * 64 + TID]; \\
    ADD(T, add, &sum); ADD(T, max, &top); barrier(); if (TID == 0) { y[2 * GID] = sum; y[2 * GID + 1] = top; } }
BITS(int, i32) BITS(u32, u32) BITS(i64, i64) BITS(u64, u64) ATOMIC(float, f32)
KERNEL(64) claim(u32* turn, u32* order) {
  u32 want; do { want = __hip_atomic_load(turn, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
  while (!__hip_atomic_compare_exchange_strong(turn, &want, want + 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                                __HIP_MEMORY_SCOPE_AGENT));
  order[GID * 64 + TID] = want;
}
KERNEL(64) claim_local(u32* order) {
  __shared__ u32 turn; if (TID == 0) turn = 0; barrier();
  u32 want = 0; while (!__hip_atomic_compare_exchange_strong(&turn, &want, want + 1, __ATOMIC_RELAXED,
                                                              __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP)) {}
  order[TID] = want;
}
KERNEL(64) after(u32* flag, u32* out) {
  if (GID == 0) { while (__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) == 0) {} out[TID] = 7; }
  else if (TID == 0) __hip_atomic_store(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
KERNEL(256) unordered(const int* x, int* y) {
  __shared__ int kept[256]; kept[TID] = x[TID]; y[TID] = ((volatile int*)kept)[(TID + 32) % 256];
}
KERNEL(32) local_outside(const int* x, int* y) {
  __shared__ int kept[32]; kept[TID] = x[TID]; barrier(); y[TID] = ((volatile int*)kept)[x[TID]];
}
"""

TYPES = {
    "u8": (np.uint8, 1), "i8": (np.int8, 1), "u16": (np.uint16, 1), "f16": (np.uint16, 1), "u32": (np.uint32, 1),
    "v2": (np.uint32, 2), "v3": (np.uint32, 3), "v4": (np.uint32, 4),
}  # fmt: skip


@pytest.fixture(scope="module", params=[32, pytest.param(64, marks=pytest.mark.slow)])
def kernels(request, hip):
    return hip(TEXT, wave=request.param)


@pytest.fixture(scope="module")
def kernels32(hip):
    return hip(TEXT)


@pytest.mark.parametrize("name", TYPES)
def test_every_width(kernels, rng, name):
    dtype, lanes = TYPES[name]
    x = rng.integers(0, 256, (192, lanes * np.dtype(dtype).itemsize), np.uint8).view(dtype)
    y, z = np.zeros_like(x), np.zeros_like(x)
    kernels.run(f"copy_{name}", [x.reshape(-1), y.reshape(-1)], groups=(3, 1, 1), items=(64, 1, 1))
    np.testing.assert_array_equal(y, x)
    kernels.run(f"turn_{name}", [x.reshape(-1), z.reshape(-1)], groups=(3, 1, 1), items=(64, 1, 1), races=True)
    np.testing.assert_array_equal(z, x.reshape(3, 64, lanes)[:, ::-1].reshape(192, lanes))


def test_narrow_numbers_widen(kernels, rng):
    a, b = rng.integers(-128, 128, 64, np.int8), rng.integers(-(2**15), 2**15, 64, np.int16)
    y = np.zeros(64, np.int32)
    kernels.run("widen", [a, b, y], items=(64, 1, 1))
    np.testing.assert_array_equal(y, a.astype(np.int32) * 1000 + b)


def test_halves_of_a_register(kernels32, rng):
    x, y = rng.integers(0, 65536, 64, np.uint16), np.zeros(32, np.uint32)
    kernels32.run("halves", [x, y])
    np.testing.assert_array_equal(y, x[:32] | x[32:].astype(np.uint32) << 16)


def test_constants_beside_the_code(kernels, rng):
    table = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3], np.int32)
    x, y = rng.integers(0, 1000, 32, np.int32), np.zeros(32, np.int32)
    kernels.run("look", [x, y])
    np.testing.assert_array_equal(y, table[x & 15])


def test_private_memory(kernels, rng):
    x, y = rng.integers(0, 1000, 768, np.int32), np.zeros(32, np.int32)
    assert kernels.program.code_object.kernel("spill").private > 0
    kernels.run("spill", [x, y, 20])
    expected = np.zeros(32, np.int32)
    for lane in range(32):
        kept, total = x[lane * 24 : lane * 24 + 24].copy(), np.int32(0)
        for i in range(20):
            place = x[(lane + i) % 768] & 15
            total = total + kept[place]
            kept[place] = total
        expected[lane] = total
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("n", [3, 9])
def test_pointers_to_any_memory(kernels, rng, n):
    x, y = rng.integers(0, 1000, 64, np.int32), np.zeros(64, np.int32)
    kernels.run("anywhere", [x, y, n], items=(64, 1, 1))
    from_what = np.arange(64) * 3 if n > 5 else x
    np.testing.assert_array_equal(y, from_what[np.arange(64) ^ 1])


@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64"])
def test_atomics_of_whole_numbers(kernels, rng, name):
    dtype = np.dtype(f"{name[0]}{int(name[1:]) // 8}")
    x = rng.integers(0, 256, (192, dtype.itemsize), np.uint8).view(dtype)[:, 0]
    start = x[7] // 3
    grid = {"groups": (3, 1, 1), "items": (64, 1, 1)}
    for operation, rule in (("max", np.maximum), ("min", np.minimum), ("xor", np.bitwise_xor)):
        y = np.array([start], dtype)
        kernels.run(f"{name}_{operation}", [x, y], **grid)
        assert y[0] == rule.reduce(np.append(x, start))
    y, old = np.array([start], dtype), np.zeros_like(x)
    kernels.run(f"{name}_add", [x, y, old], **grid)
    sums = np.cumsum(np.append(start, x), dtype=dtype)
    assert y[0] == sums[-1]
    # Every old value is one of some order: each is what another left.
    assert sorted(np.append(old, y)) == sorted(np.append(start, (old + x).astype(dtype)))
    y = np.zeros(6, dtype)
    kernels.run(f"{name}_local", [x, y], races=True, **grid)
    np.testing.assert_array_equal(y[::2], x.reshape(3, 64).sum(axis=1, dtype=dtype))
    np.testing.assert_array_equal(y[1::2], np.maximum(x.reshape(3, 64).max(axis=1), 0))


def test_atomics_of_floats(kernels, rng):
    x = rng.standard_normal(64).astype(np.float32)
    y, old = np.array([0.5], np.float32), np.zeros(64, np.float32)
    kernels.run("f32_add", [x, y, old], items=(64, 1, 1))
    np.testing.assert_allclose(y[0], 0.5 + x.sum(dtype=np.float64), atol=1e-4)
    assert old[0] == np.float32(0.5)
    for operation, rule in (("max", np.max), ("min", np.min)):
        y[0] = 0.25
        kernels.run(f"f32_{operation}", [x, y], items=(64, 1, 1))
        assert y[0] == rule(np.append(x, np.float32(0.25)))


@pytest.mark.parametrize("order", Order)
def test_exchanges_that_compare(kernels, order):
    turn, order_of = np.array([5], np.uint32), np.zeros(128, np.uint32)
    kernels.run("claim", [turn, order_of], groups=(2, 1, 1), items=(64, 1, 1), order=order)
    assert turn[0] == 133
    assert sorted(order_of) == list(range(5, 133))
    local = np.zeros(64, np.uint32)
    kernels.run("claim_local", [local], items=(64, 1, 1), order=order)
    assert sorted(local) == list(range(64))


def test_a_wave_that_spins_does_not_keep_others_out(kernels32):
    flag, out = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    kernels32.run("after", [flag, out], groups=(2, 1, 1), items=(64, 1, 1))
    assert (out == 7).all()


def test_a_missing_barrier_is_a_race(kernels32):
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    with pytest.raises(RaceError, match="unordered"):
        kernels32.run("unordered", [x, y], items=(256, 1, 1), races=True)
    # Without the check the order of waves shows it.
    kernels32.run("unordered", [x, y], items=(256, 1, 1), order=Order.FORWARD)
    assert (y != np.roll(x, -32)).any()


def test_local_memory_has_an_end(kernels32):
    x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    kernels32.run("local_outside", [x, y])
    np.testing.assert_array_equal(y, x)
    x[31] = 32
    with pytest.raises(MemoryFault, match="local memory") as caught:
        kernels32.run("local_outside", [x, y])
    assert caught.value.at == 128
