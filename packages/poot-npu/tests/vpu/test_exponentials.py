"""Exponentials over their range and at its ends, where the plug-in's own are inexact, 0 or infinite too early."""

import numpy as np
import pytest

from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_executor.dtype import F32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

COUNT = 1 << 17
ENDS = np.array([*np.linspace(86, 89, 61), 88.37, 88.38, 88.72, 88.73, 95], np.float32)
FAR = np.array([46, -46], np.float32)
EDGES = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, *FAR, *np.nextafter(FAR, np.float32(0))], np.float32)
FADING = np.array([-86.98, -87, -87.33, -87.34, -87.858383, -88.37, -88.38, -88.72], np.float32)
"""Gates where e to the -x is finite still, so that x / (1 + e to the -x) is a normal number."""


def spread(rng: np.random.Generator) -> np.ndarray:
    """Over all results and, as densely, over those at either end; the ends and the edges themselves."""
    ends = rng.uniform(85, 89, COUNT) * rng.choice([-1, 1], COUNT)
    return np.concatenate([rng.uniform(-105, 90, COUNT), ends, ENDS, -ENDS, EDGES]).astype(np.float32)


def test_powers_are_as_exact_as_stated(any_mode, rng):
    x = spread(rng)
    g = Recorder("powers", rng)
    g.output(p.exp(g.slot(x, F32)))
    match = assert_device_matches(any_mode, g.builder.build(), g.given())
    (got,) = match.result.outputs.values()
    exact = np.exp(x.astype(np.float64))
    normal = (exact >= np.finfo(np.float32).tiny) & (exact < np.finfo(np.float32).max)
    units = 2.0 ** (np.floor(np.log2(exact[normal])) - 23)
    error = np.abs(got[normal].astype(np.float64) - exact[normal]) / units
    assert error.max() <= any_mode.target.caps.errors["exp"], x[normal][error.argmax()]


def test_gates_are_within_their_bound(any_mode, rng):
    x = spread(rng)
    g = Recorder("gates", rng)
    g.output(f.silu(g.slot(x, F32)))
    g.output(f.swiglu(g.slot(x, F32), g.slot(np.full(x.shape, 60, np.float32), F32)))
    assert_device_matches(any_mode, g.builder.build(), g.given())


@pytest.mark.parametrize("up", [1.0, 32.136356], ids=str)
def test_a_gate_is_small_before_it_is_nothing(any_mode, rng, up):
    """-87.858383 and 32.136356 are what `test_weights_of_one_input[q4_1]` met with --poot-seed=2335825164: -1.97e-35,
    and -0 by the plug-in's Swish."""
    g = Recorder("gate", rng)
    g.output(f.swiglu(g.slot(FADING, F32), g.slot(np.full(FADING.shape, up, np.float32), F32)))
    match = assert_device_matches(any_mode, g.builder.build(), g.given())
    (oracle,), (got,) = match.oracle.outputs.values(), match.result.outputs.values()
    assert (np.abs(oracle) > np.finfo(np.float32).tiny).all()
    assert (got < 0).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_greatest_bounds_its_own_axis_alone(device, rng, axis):
    """Along the other one a difference is 88.5, of which the plug-in's exponential is infinite."""
    g = Recorder("powers", rng)
    x = g.slot(np.array([[0, 88.5], [0, -3]], np.float32), F32)
    for shape in ((2, 1), (1, 2)):
        most = p.broadcast(p.reshape(p.reduce_max(x, axis), shape), (2, 2))
        g.output(p.exp(x - most))
    assert_device_matches(device, g.builder.build(), g.given())


def test_what_is_less_a_greatest_keeps_nan(any_mode, rng):
    rows = np.stack([rng.uniform(-105, 0, 64), np.full(64, -np.inf), rng.normal(0, 9, 64)]).astype(np.float32)
    rows[2, 5] = np.nan
    g = Recorder("powers", rng)
    x = g.slot(rows, F32)
    g.output(p.exp(x - p.broadcast(p.reshape(p.reduce_max(x, 1), (3, 1)), rows.shape)))
    assert_device_matches(any_mode, g.builder.build(), g.given())


def test_rows_that_hold_nan_or_infinity_are_told(any_mode, rng):
    given = np.array([np.nan, np.inf, -np.inf, np.finfo(np.float32).max, 0], np.float32)
    rows = rng.normal(0, 3, (5, 67)).astype(np.float32)
    rows[:, 66] = given
    g = Recorder("flags", rng)
    g.output(f.non_finite(g.slot(rows, F32)))
    match = assert_device_matches(any_mode, g.builder.build(), g.given())
    (told,) = match.result.outputs.values()
    assert told.tolist() == [1, 1, 0, 0, 0]
