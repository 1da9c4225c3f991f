"""Elementwise operations of the interpreter against independent formulas."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest

from poot_eval.kernel_values import POISON_BITS, RULES, cast, evaluate, fma
from poot_executor.dtype import BOOL, F32, I32, U32
from poot_executor.kernel.ir import KERNEL_OPS


def rounded(value: Fraction) -> np.float32:
    """The float32 nearest to an exact number, ties to even, by integer arithmetic alone."""
    if value == 0:
        return np.float32(0)
    sign, value = (-1, -value) if value < 0 else (1, value)
    exponent = max(math.floor(math.log2(value)) - 23, -149)
    while Fraction(2) ** (exponent + 24) <= value:
        exponent += 1
    while exponent > -149 and Fraction(2) ** (exponent + 23) > value:
        exponent -= 1
    scaled = value / Fraction(2) ** exponent
    whole, rest = scaled.numerator // scaled.denominator, scaled % 1
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)
    return np.float32(sign * math.ldexp(whole, exponent))


def as_values(numbers):
    return np.asarray(numbers, np.float32)[None, :]


def test_fma_rounds_once(rng):
    a = rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32)
    b = rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32)
    keep = np.isfinite(a) & np.isfinite(b) & (np.abs(a) < 1e15) & (np.abs(b) < 1e15)
    a, b = a[keep], b[keep]
    # Addends near the product's size, so that sums cancel, tie and go denormal.
    c = (-(a.astype(np.float64) * b) * (1 + rng.integers(-3, 4, a.size) * 2.0**-24)).astype(np.float32)
    got = fma(as_values(a), as_values(b), as_values(c))[0]
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert result == rounded(exact), (x, y, z)


def test_fma_on_a_tie_that_two_roundings_get_wrong():
    # 1 + 2^-24 + 2^-60 lies just above a tie; rounding to float64 first loses the last term.
    a, b, c = np.float32(2.0**-30), np.float32(2.0**-30), np.float32(1)
    exact = fma(as_values([2.0**-12 + 2.0**-35]), as_values([2.0**-12]), as_values([1.0]))
    naive = np.float32(np.float64(2.0**-12 + 2.0**-35) * 2.0**-12 + 1)
    assert exact[0, 0] == rounded(1 + Fraction(2) ** -24 + Fraction(2) ** -47)
    assert fma(as_values([a]), as_values([b]), as_values([c]))[0, 0] == 1
    assert naive in (exact[0, 0], np.float32(1))


@pytest.mark.parametrize("pair", [(7, 2), (-7, 2), (7, -2), (-7, -2), (2**31 - 1, 3), (-(2**31), 3)])
def test_integer_division_truncates(pair):
    a, b = (np.full((1, 1), v, np.int32) for v in pair)
    quotient = math.trunc(Fraction(pair[0], pair[1]))
    assert RULES["div"](a, b)[0, 0] == quotient
    assert RULES["rem"](a, b)[0, 0] == pair[0] - quotient * pair[1]


def test_unsigned_division_is_exact_over_the_whole_range(rng):
    a = rng.integers(0, 1 << 32, 5000, dtype=np.uint32)[None, :]
    b = rng.integers(1, 1 << 32, 5000, dtype=np.uint32)[None, :] >> rng.integers(0, 31, 5000, dtype=np.uint32)
    b = np.maximum(b, np.uint32(1))
    assert np.array_equal(RULES["div"](a, b), a // b)
    assert np.array_equal(RULES["rem"](a, b), a % b)


def test_what_is_undefined_shows():
    one, zero = np.ones((1, 1), np.int32), np.zeros((1, 1), np.int32)
    assert cast(as_values([3e9]), I32)[0, 0] == POISON_BITS
    assert cast(as_values([-1.0]), U32)[0, 0] == POISON_BITS
    with np.errstate(invalid="ignore", divide="ignore"):
        assert RULES["div"](one, zero)[0, 0] == POISON_BITS
        assert RULES["rem"](one, zero)[0, 0] == POISON_BITS
        assert cast(as_values([np.nan]), I32)[0, 0] == POISON_BITS
    assert cast(as_values([-2.9, 2.9]), I32).tolist() == [[-2, 2]]
    assert cast(as_values([0.0, -0.0, np.nan, 1e-45]), BOOL).tolist() == [[False, False, True, True]]


def test_halves_go_both_ways(rng):
    bits = np.arange(1 << 16, dtype=np.uint32)[None, :]
    floats = RULES["half_to_float"](bits)
    expected = [struct.unpack("<e", struct.pack("<H", b))[0] for b in range(1 << 16)]
    assert np.array_equal(floats[0], np.asarray(expected, np.float32), equal_nan=True)
    numbers = ~np.isnan(floats)
    assert np.array_equal(RULES["float_to_half"](floats)[numbers], bits[numbers])
    near = rng.standard_normal((1, 2000)).astype(np.float32) * np.float32(1000)
    expected = [struct.unpack("<H", struct.pack("<e", float(v)))[0] for v in near[0]]
    assert RULES["float_to_half"](near)[0].tolist() == expected


def test_signed_bytes_are_multiplied_and_summed(rng):
    a, b = (rng.integers(0, 1 << 32, (1, 500), dtype=np.uint32) for _ in range(2))
    c = rng.integers(-1000, 1000, (1, 500), dtype=np.int32)
    left, right = (x.view(np.int8).reshape(1, 500, 4).astype(np.int32) for x in (a, b))
    assert np.array_equal(RULES["dot4"](a, b, c), (left * right).sum(-1, dtype=np.int32) + c)


def test_transcendentals_are_within_one_unit_in_the_last_place(rng):
    x = rng.uniform(-8, 8, 300).astype(np.float32)
    rules = {"exp": math.exp, "sin": math.sin, "cos": math.cos, "tanh": math.tanh, "erf": math.erf}
    positive = {"log": math.log, "sqrt": math.sqrt, "rsqrt": lambda v: 1 / math.sqrt(v)}
    for name, reference in {**rules, **positive}.items():
        inputs = np.abs(x) if name in positive else x
        exact = np.asarray([reference(float(v)) for v in inputs])
        got = RULES[name](inputs[None, :])[0]
        ulp = np.spacing(np.abs(exact).astype(np.float32))
        assert (np.abs(got - exact) <= 0.51 * ulp).all(), name


def test_shifts_use_the_low_five_bits():
    a, count = np.full((1, 1), -8, np.int32), np.full((1, 1), 33, np.int32)
    assert RULES["shl"](a, count)[0, 0] == -16
    assert RULES["shr"](a, count)[0, 0] == -4
    assert RULES["shr"](a.view(np.uint32), count.view(np.uint32))[0, 0] == (2**32 - 8) >> 1


def test_every_row_of_the_table_is_interpreted():
    from poot_eval.kernel_ir import _SPECIAL

    by_type = {"const", "cast", "bitcast", "extract", "yield"}
    assert set(KERNEL_OPS) == set(RULES) | set(_SPECIAL) | by_type
    assert evaluate("no such operation", [], {}, None) is None
    assert F32.numpy == np.float32
