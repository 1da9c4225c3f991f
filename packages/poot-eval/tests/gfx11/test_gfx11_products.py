"""Products of packed numbers and of matrices, compiled from builtins, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.gfx11.faults import MatrixFault
from poot_eval.gfx11.packed import bf16, to_bf16

TEXT = """
typedef f16 f16x16 __attribute__((ext_vector_type(16))); typedef short i16x16 __attribute__((ext_vector_type(16)));
typedef float f32x8 __attribute__((ext_vector_type(8))); typedef int i32x8 __attribute__((ext_vector_type(8)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
KERNEL(32) mm_f16(const f16x16* a, const f16x16* b, f32x8* c) {
  c[TID] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a[TID % 16], b[TID % 16], c[TID]); }
KERNEL(32) mm_bf16(const i16x16* a, const i16x16* b, f32x8* c) {
  c[TID] = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a[TID % 16], b[TID % 16], c[TID]); }
KERNEL(32) mm_half(const f16x16* a, const f16x16* b, f16x16* c) {
  c[TID] = __builtin_amdgcn_wmma_f16_16x16x16_f16_w32(a[TID % 16], b[TID % 16], c[TID], true); }
KERNEL(32) mm_iu8(const i32x4* a, const i32x4* b, i32x8* c) {
  c[TID] = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a[TID % 16], false, b[TID % 16], c[TID], false); }
KERNEL(32) mm_apart(const f16x16* a, const f16x16* b, f32x8* c) {
  c[TID] = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a[TID], b[TID % 16], c[TID]); }
KERNEL(32) dots(const u32* a, const u32* b, const int* c, int* ss, u32* uu, int* us, int* clamped) {
  int i = TID;
  ss[i] = __builtin_amdgcn_sudot4(true, a[i], true, b[i], c[i], false);
  us[i] = __builtin_amdgcn_sudot4(false, a[i], true, b[i], c[i], false);
  uu[i] = __builtin_amdgcn_udot4(a[i], b[i], c[i], false);
  clamped[i] = __builtin_amdgcn_sudot4(true, a[i], true, b[i], c[i], true); }
KERNEL(32) dot_f16(const f16x2* a, const f16x2* b, const float* c, float* d) {
  d[TID] = __builtin_amdgcn_fdot2(a[TID], b[TID], c[TID], false); }
KERNEL(32) packed(const f16x2* a, const f16x2* b, const f16x2* c,
                  f16x2* sum, f16x2* product, f16x2* fused, f16x2* most) {
  int i = TID; sum[i] = a[i] + b[i]; product[i] = a[i] * b[i]; fused[i] = __builtin_elementwise_fma(a[i], b[i], c[i]);
  most[i] = __builtin_elementwise_max(a[i], -b[i]); }
KERNEL(32) mixed(const f16x2* a, const float* b, const f16x2* c, float* wide, f16* narrow) {
  int i = TID; wide[i] = __builtin_fmaf((float)a[i].y, -b[i], (float)c[i].x);
  narrow[i] = (f16)__builtin_fmaf((float)a[i].x, b[i], (float)c[i].y); }
"""


@pytest.fixture(scope="module")
def kernels(hip):
    return hip(TEXT)


def spread(c):
    """A matrix as the lanes hold it: lane, register."""
    lane, register = np.arange(32)[:, None], np.arange(8)
    return np.ascontiguousarray(c[2 * register + lane // 16, lane % 16])


@pytest.mark.parametrize("name", ["mm_f16", "mm_bf16"])
def test_matrices_of_halves(kernels, rng, name):
    a, b = rng.standard_normal((2, 16, 16)).astype(np.float16)
    c = rng.standard_normal((16, 16)).astype(np.float32)
    if name == "mm_bf16":
        given = [to_bf16(x.astype(np.float32)) for x in (a, b)]
        a, b = (bf16(x) for x in given)
    else:
        given = [a, b]
    # B comes as columns.
    lanes = spread(c)
    kernels.run(name, [given[0].reshape(-1), np.ascontiguousarray(given[1].T).reshape(-1), lanes.reshape(-1)])
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_array_equal(lanes, spread(exact.astype(np.float32)))


def test_a_matrix_of_halves_in_upper_halves(kernels, rng):
    a, b, c = rng.standard_normal((3, 16, 16)).astype(np.float16)
    lanes = np.zeros((32, 8, 2), np.float16)
    lanes[:, :, 1] = spread(c)
    lanes[:, :, 0] = 7
    kernels.run("mm_half", [a.reshape(-1), np.ascontiguousarray(b.T).reshape(-1), lanes.reshape(-1)])
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_array_equal(lanes[:, :, 1], spread(exact.astype(np.float16)))
    assert (lanes[:, :, 0] == 7).all()


def test_matrices_of_bytes(kernels, rng):
    a, b = rng.integers(-128, 128, (16, 16), np.int8), rng.integers(0, 256, (16, 16), np.uint8)
    c = rng.integers(-1000, 1000, (16, 16), np.int32)
    lanes = spread(c)
    kernels.run("mm_iu8", [a.reshape(-1), np.ascontiguousarray(b.T).reshape(-1), lanes.reshape(-1)])
    np.testing.assert_array_equal(lanes, spread(a.astype(np.int32) @ b.astype(np.int32) + c))


def test_halves_of_a_wave_that_differ_are_refused(kernels, rng):
    a, b = rng.standard_normal((32, 16)).astype(np.float16), rng.standard_normal((16, 16)).astype(np.float16)
    with pytest.raises(MatrixFault, match="every 16 lanes"):
        kernels.run("mm_apart", [a.reshape(-1), b.reshape(-1), np.zeros(256, np.float32)])


def test_sums_of_byte_products(kernels, rng):
    a, b = rng.integers(0, 2**32, (2, 32), np.uint32)
    c = rng.integers(-(2**31), 2**31, 32, np.int32)
    results = [np.zeros(32, np.int32) for _ in range(4)]
    kernels.run("dots", [a, b, c, results[0], results[1].view(np.uint32), *results[2:]])
    s, t = (x.view(np.int8).reshape(32, 4).astype(np.int64) for x in (a, b))
    u, v = (x.view(np.uint8).reshape(32, 4).astype(np.int64) for x in (a, b))
    for got, x, y in zip(results[:3], (s, u, u), (t, v, t), strict=True):
        np.testing.assert_array_equal(got, ((x * y).sum(axis=1) + c).astype(np.int32))
    np.testing.assert_array_equal(results[3], np.clip((s * t).sum(axis=1) + c, -(2**31), 2**31 - 1))


def test_sums_of_half_products(kernels, rng):
    a, b = rng.standard_normal((2, 64)).astype(np.float16)
    c, d = rng.standard_normal(32).astype(np.float32), np.zeros(32, np.float32)
    kernels.run("dot_f16", [a, b, c, d])
    x, y = (v.astype(np.float32).reshape(32, 2) for v in (a, b))
    np.testing.assert_array_equal(d, (c + x[:, 0] * y[:, 0]) + x[:, 1] * y[:, 1])


def test_two_halves_at_once(kernels, rng):
    a, b, c = rng.standard_normal((3, 64)).astype(np.float16)
    outs = [np.zeros(64, np.float16) for _ in range(4)]
    kernels.run("packed", [a, b, c, *outs])
    np.testing.assert_array_equal(outs[0], a + b)
    np.testing.assert_array_equal(outs[1], a * b)
    exact = a.astype(np.float64) * b + c  # exact in float64 at these magnitudes
    np.testing.assert_array_equal(outs[2], exact.astype(np.float16))
    np.testing.assert_array_equal(outs[3], np.maximum(a, -b))


def test_operands_of_two_precisions(kernels, rng):
    a, c = rng.standard_normal((2, 64)).astype(np.float16)
    b = rng.standard_normal(32).astype(np.float16).astype(np.float32)
    wide, narrow = np.zeros(32, np.float32), np.zeros(32, np.float16)
    kernels.run("mixed", [a, b, c, wide, narrow])
    x, z = a.reshape(32, 2).astype(np.float64), c.reshape(32, 2).astype(np.float64)
    np.testing.assert_array_equal(wide, (z[:, 0] - x[:, 1] * b).astype(np.float32))
    np.testing.assert_array_equal(narrow, (x[:, 0] * b + z[:, 1]).astype(np.float32).astype(np.float16))
