"""Arithmetic of compiled kernels against numpy: bit for bit where the operations are exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

N = 1024

TEXT = r"""
#define MAP1(name, T, R, expression) \
  KERNEL(256) name(const T* a, R* out) { int i = GID * 256 + TID; T x = a[i]; out[i] = (R)(expression); }
#define MAP2(name, T, R, expression) \
  KERNEL(256) name(const T* a, const T* b, R* out) { \
    int i = GID * 256 + TID; T x = a[i], y = b[i]; out[i] = (R)(expression); }
#define MAP3(name, T, R, expression) \
  KERNEL(256) name(const T* a, const T* b, const T* c, R* out) { \
    int i = GID * 256 + TID; T x = a[i], y = b[i], z = c[i]; out[i] = (R)(expression); }
typedef short pair __attribute__((ext_vector_type(2)));
#define PAIR(f, x, y) __builtin_bit_cast(u32, f(__builtin_bit_cast(pair, x), __builtin_bit_cast(pair, y)))
#pragma clang fp contract(off)
MAP2(div_f32, float, float, x / y)
MAP2(div_f64, double, double, x / y)
MAP2(div_f16, f16, f16, x / y)
MAP1(sqrt_f32, float, float, __builtin_sqrtf(x))
MAP1(sqrt_f64, double, double, __builtin_sqrt(x))
MAP2(add_f32, float, float, x + y)
MAP2(add_f64, double, double, x + y)
MAP2(add_f16, f16, f16, x + y)
MAP2(mul_f32, float, float, x * y)
MAP2(mul_f64, double, double, x * y)
MAP2(mul_f16, f16, f16, x * y)
MAP2(max_f32, float, float, __builtin_fmaxf(x, y))
MAP2(min_f32, float, float, __builtin_fminf(x, y))
MAP3(fma_f32, float, float, __builtin_fmaf(x, y, z))
MAP3(fma_f64, double, double, __builtin_fma(x, y, z))
MAP3(fma_f16, f16, f16, __builtin_fmaf16(x, y, z))
MAP1(floor_f32, float, float, __builtin_floorf(x))
MAP1(rint_f32, float, float, __builtin_rintf(x))
MAP1(trunc_f64, double, double, __builtin_trunc(x))
MAP1(ceil_f16, f16, f16, __builtin_ceilf16(x))
MAP1(to_half, float, f16, x)
MAP1(from_half, f16, float, x)
MAP1(to_double, float, double, x)
MAP1(to_single, double, float, x)
MAP1(to_int, float, int, x)
MAP1(from_int, int, float, x)
MAP1(from_u32, u32, float, x)
MAP1(from_i64, i64, float, x)
MAP1(from_u64, u64, double, x)
MAP2(less, float, u8, x < y)
MAP2(unordered, double, u8, !(x >= y))
MAP1(finite, float, u8, __builtin_isfinite(x))
MAP2(div_i32, int, int, x / y)
MAP2(rem_u32, u32, u32, x % y)
MAP2(div_i64, i64, i64, x / y)
MAP2(rem_u64, u64, u64, x % y)
MAP2(mul_i64, i64, i64, x * y)
MAP2(mulhi, u32, u32, ((u64)x * y) >> 32)
MAP2(shift_u64, u64, u64, (x << (y & 63)) ^ (x >> (y & 31)))
MAP2(shift_i64, i64, i64, x >> (y & 63))
MAP1(count, u64, u32, __builtin_popcountll(x))
MAP1(zeros, u32, u32, x ? __builtin_clz(x) : 32)
MAP1(last, u64, u32, x ? __builtin_ctzll(x) : 64)
MAP1(turn, u32, u32, __builtin_bitreverse32(x))
MAP1(swap, u32, u32, __builtin_bswap32(x))
MAP2(sat, u32, u32, __builtin_elementwise_add_sat(x, y))
MAP2(sat_sub, u32, u32, PAIR(__builtin_elementwise_sub_sat, x, y))
MAP2(max_i16, short, short, x > y ? x : y)
MAP2(mix_u8, u8, u8, (x * 3 + y) >> 1)
MAP2(mul_u16, u16, u16, x * y + 7)
MAP2(rotate, u32, u32, __builtin_rotateleft32(x, y))
MAP3(field, u32, u32, ((x >> (y & 31)) & ((1u << (z & 31)) - 1)) | (x & ~z))
"""


@pytest.fixture(scope="module", params=[32, pytest.param(64, marks=pytest.mark.slow)])
def kernels(request, hip):
    return hip(TEXT, wave=request.param)


def bits(rng, dtype):
    """Any bits at all, and the ends of the type among them."""
    size = np.dtype(dtype).itemsize
    values = rng.integers(0, 256, (N, size), np.uint8)
    if np.dtype(dtype).kind == "f":
        # Half of them near each other, so that sums cancel and quotients are near one.
        near = rng.standard_normal(N).astype(dtype)
        values[::2] = near.view(np.uint8).reshape(N, size)[::2]
    else:
        # Small numbers too.
        values[::4, 1:] = 0
    special = np.array([0, 1, -1], dtype) if np.dtype(dtype).kind != "u" else np.array([0, 1, 3], dtype)
    flat = np.ascontiguousarray(values).view(dtype)[:, 0]
    flat[:3] = special
    if np.dtype(dtype).kind == "f":
        flat[3:7] = [np.inf, -np.inf, np.nan, -0.0]
        flat[7:9] = [np.finfo(dtype).tiny / 2, np.finfo(dtype).max]
    return rng.permutation(flat)


def apply(kernels, name, inputs, result):
    out = np.zeros(N, result)
    kernels.run(name, [*inputs, out], groups=(N // 256, 1, 1), items=(256, 1, 1))
    return out


def same(got, expected):
    """Equal bits, but any NaN for a NaN."""
    if got.dtype.kind == "f":
        assert np.array_equal(np.isnan(got), np.isnan(expected))
        keep = ~np.isnan(expected)
        got, expected = got[keep], expected[keep]
    np.testing.assert_array_equal(got.view(f"u{got.dtype.itemsize}"), expected.view(f"u{got.dtype.itemsize}"))


def maximum(x, y):
    larger = np.where((x > y) | np.isnan(y) | ((x == y) & ~np.signbit(x)), x, y)
    return np.where(np.isnan(x), y, larger)


FLOATS = {
    "div_f32": ("f4", 2, np.divide), "div_f64": ("f8", 2, np.divide), "div_f16": ("f2", 2, np.divide),
    "sqrt_f32": ("f4", 1, np.sqrt), "sqrt_f64": ("f8", 1, np.sqrt),
    "add_f32": ("f4", 2, np.add), "add_f64": ("f8", 2, np.add), "add_f16": ("f2", 2, np.add),
    "mul_f32": ("f4", 2, np.multiply), "mul_f64": ("f8", 2, np.multiply), "mul_f16": ("f2", 2, np.multiply),
    "max_f32": ("f4", 2, maximum), "min_f32": ("f4", 2, lambda x, y: -maximum(-x, -y)),
    "floor_f32": ("f4", 1, np.floor), "rint_f32": ("f4", 1, np.rint), "trunc_f64": ("f8", 1, np.trunc),
    "ceil_f16": ("f2", 1, np.ceil),
    "to_half": ("f4", 1, lambda x: x.astype("f2")), "from_half": ("f2", 1, lambda x: x.astype("f4")),
    "to_double": ("f4", 1, lambda x: x.astype("f8")), "to_single": ("f8", 1, lambda x: x.astype("f4")),
    "less": ("f4", 2, lambda x, y: (x < y).astype("u1")),
    "unordered": ("f8", 2, lambda x, y: (~(x >= y)).astype("u1")),
    "finite": ("f4", 1, lambda x: np.isfinite(x).astype("u1")),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_floats(kernels, rng, name):
    dtype, count, rule = FLOATS[name]
    inputs = [bits(rng, dtype) for _ in range(count)]
    with np.errstate(all="ignore"):
        expected = rule(*inputs)
    same(apply(kernels, name, inputs, expected.dtype), expected)


@pytest.mark.parametrize(("name", "dtype"), [("fma_f32", "f4"), ("fma_f16", "f2"), ("fma_f64", "f8")])
def test_fused_multiply_add_rounds_once(kernels, rng, name, dtype):
    a, b = bits(rng, dtype), bits(rng, dtype)
    with np.errstate(all="ignore"):
        # What is added cancels the product but for its last bits, every other time.
        c = np.where(rng.random(N) < 0.5, -(a * b), bits(rng, dtype)).astype(dtype)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) if ok else Fraction(0)
             for x, y, z, ok in zip(a, b, c, finite, strict=True)]  # fmt: skip
    got = apply(kernels, name, [a, b, c], dtype)
    largest = Fraction(float(np.finfo(dtype).max))
    for value, real, ok in zip(got, exact, finite, strict=True):
        if not ok or abs(real) > largest:
            continue
        # The nearest number: neither neighbour is nearer.
        error = abs(Fraction(float(value)) - real)
        with np.errstate(all="ignore"):
            neighbours = [np.nextafter(value, np.dtype(dtype).type(end)) for end in (-np.inf, np.inf)]
        for neighbour in neighbours:
            if np.isfinite(neighbour):
                assert error <= abs(Fraction(float(neighbour)) - real)


def divided(x, y):
    """Quotients toward zero of wide numbers."""
    quotients = [abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x, y, strict=True)]
    return np.array(quotients, object).astype(x.dtype)


def saturated(x, y):
    """Differences of the two halves of each word."""
    exact = x.view("i2").astype("i4") - y.view("i2")
    return np.clip(exact, -(2**15), 2**15 - 1).astype("i2").view("u4")


def field(x, y, z):
    """Some bits of x from the y-th on, and those that z has not."""
    five, one = np.uint32(31), np.uint32(1)
    return ((x >> (y & five)) & ((one << (z & five)) - one)) | (x & ~z)


INTEGERS = {
    "div_i32": ("i4", 2, divided), "div_i64": ("i8", 2, divided),
    "rem_u32": ("u4", 2, np.remainder), "rem_u64": ("u8", 2, np.remainder), "mul_i64": ("i8", 2, np.multiply),
    "mulhi": ("u4", 2, lambda x, y: (x.astype("u8") * y >> np.uint64(32)).astype("u4")),
    "shift_u64": ("u8", 2, lambda x, y: (x << (y & np.uint64(63))) ^ (x >> (y & np.uint64(31)))),
    "shift_i64": ("i8", 2, lambda x, y: x >> (y & np.int64(63))),
    "count": ("u8", 1, lambda x: np.array([int(v).bit_count() for v in x], "u4")),
    "zeros": ("u4", 1, lambda x: np.array([32 - int(v).bit_length() for v in x], "u4")),
    "last": ("u8", 1, lambda x: np.array([(int(v) & -int(v)).bit_length() - 1 if v else 64 for v in x], "u4")),
    "turn": ("u4", 1, lambda x: np.array([int(f"{int(v):032b}"[::-1], 2) for v in x], "u4")),
    "swap": ("u4", 1, lambda x: x.byteswap()),
    "sat": ("u4", 2, lambda x, y: np.minimum(x.astype("u8") + y, 2**32 - 1).astype("u4")),
    "sat_sub": ("u4", 2, saturated),
    "max_i16": ("i2", 2, np.maximum), "mul_u16": ("u2", 2, lambda x, y: x * y + np.uint16(7)),
    "mix_u8": ("u1", 2, lambda x, y: ((x.astype("i4") * 3 + y) >> 1).astype("u1")),
    "rotate": ("u4", 2, lambda x, y: (x << (y & np.uint32(31))) | (x >> (-y & np.uint32(31)))),
    "field": ("u4", 3, field),
    "from_int": ("i4", 1, lambda x: x.astype("f4")), "from_u32": ("u4", 1, lambda x: x.astype("f4")),
    "from_i64": ("i8", 1, lambda x: x.astype("f4")), "from_u64": ("u8", 1, lambda x: x.astype("f8")),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGERS)
def test_whole_numbers(kernels, rng, name):
    dtype, count, rule = INTEGERS[name]
    inputs = [bits(rng, dtype) for _ in range(count)]
    if name.startswith(("div", "rem")):
        inputs[1] = np.where((inputs[1] == 0) | (inputs[1] == np.array(-1).astype(dtype)), 7, inputs[1]).astype(dtype)
    with np.errstate(all="ignore"):
        expected = rule(*inputs)
    same(apply(kernels, name, inputs, expected.dtype), expected)


def test_numbers_are_truncated(kernels, rng):
    x = (rng.standard_normal(N) * np.exp2(rng.integers(0, 30, N))).astype(np.float32)
    same(apply(kernels, "to_int", [x], np.int32), np.trunc(x).astype(np.int32))
