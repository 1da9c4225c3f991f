"""Operations in turn are rounded in turn, and change nothing that others read: OpenVINO would make one of two with
constants, and compute one in place."""

import numpy as np
import pytest

from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.conformance.session import open_session
from poot_executor.dtype import BF16, F16, F32, I32, round_bf16
from poot_executor.graph import primitives as p

A, B = np.float32(1.5), np.float32(0.7)
IN_TURN = {
    "(a - x) b": lambda x, a, b: (a - x) * b,
    "(x + a) b": lambda x, a, b: (x + a) * b,
    "(x a) b": lambda x, a, b: (x * a) * b,
    "(x + b) + a": lambda x, a, b: (x + b) + a,
    "(x - b) - a": lambda x, a, b: (x - b) - a,
}


@pytest.mark.parametrize("shape", [(64,), (32, 3), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("name", IN_TURN)
def test_a_constant_after_another_is_a_rounding_of_its_own(device, rng, name, shape):
    g = Recorder("turns", rng)
    x = g.floats(*shape, low=1, high=2)
    g.output(IN_TURN[name](x, float(A), float(B)))
    given = dict(g.given())
    (values,) = given.values()
    with open_session(device, g.builder.build(), given) as session:
        result = session.run(session.lower())
    (got,) = result.outputs.values()
    np.testing.assert_array_equal(got, IN_TURN[name](values, A, B))


SIGNS = {
    "abs": p.abs_, "erf": p.erf, "f16": lambda x: p.cast(x, F16), "log of abs": lambda x: p.log(p.abs_(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNS)
def test_what_others_read_of_a_concatenation_keeps_its_sign(any_mode, rng, name):
    """The plug-in's abs is computed in place there: erf and casts to f16, which asked for it, lost signs of their own.
    A random graph met it with --poot-seed=103."""
    g = Recorder("signs", rng)
    whole = p.concat([g.floats(24), g.slot(np.array([-0.5, 0.5, np.nan, -0.0, -np.inf], np.float32), F32)], 0)
    g.output(SIGNS[name](whole))
    g.output(whole * p.tanh(whole))
    assert_device_matches(any_mode, g.builder.build(), g.given())


def test_integers_of_a_concatenation_keep_their_sign(device, rng):
    g = Recorder("signs", rng)
    halves = (g.slot(rng.integers(-(1 << 31), 1 << 31, 24).astype(np.int32), I32) for _ in range(2))
    whole = p.concat(list(halves), 0)
    g.output(p.abs_(whole))
    g.output(whole * 3 + whole)
    assert_device_matches(device, g.builder.build(), g.given())


def test_bf16_is_the_nearest_on_any_processor(any_mode, rng):
    """The plug-in's conversions there and back left all 24 bits where the processor has no instruction for them."""
    words = rng.integers(0, 1 << 32, 1 << 16).astype(np.uint32)
    words[:4096] = words[:4096] & 0xFFFF0000 | 0x8000  # halfway
    words[4096:8192] &= 0x807FFFFF  # below the normal numbers
    words[8192:8256] = 0x7F7F7FF0 + np.arange(64) * 0x400  # what becomes infinite, and beyond
    words[8256:8262] = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00800000]
    g = Recorder("nearest", rng)
    x = g.slot(words.view(np.float32), F32)
    g.output(p.cast(p.cast(x, BF16), F32))
    with open_session(any_mode, g.builder.build(), g.given()) as session:
        (got,) = session.run(session.lower()).outputs.values()
    np.testing.assert_array_equal(got, round_bf16(words.view(np.float32)))
