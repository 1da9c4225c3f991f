"""Exponentials at both ends of their range, where the plug-in's own is 0 or infinite too early."""

import numpy as np

from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_device_matches
from poot_executor.dtype import F32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

ENDS = np.array([*np.linspace(86, 89, 61), 88.37, 88.38, 88.72, 88.73, 95, np.inf], np.float32)


def test_powers_reach_the_ends_of_float32(device, rng):
    g = Recorder("powers", rng)
    g.output(p.exp(g.slot(np.concatenate([ENDS, -ENDS]), F32)))
    assert_device_matches(device, g.builder.build(), g.given())


def test_a_gate_is_small_before_it_is_nothing(device, rng):
    g = Recorder("gate", rng)
    gate, up = np.concatenate([ENDS[:-1], -ENDS[:-1]]), np.full(2 * len(ENDS) - 2, 60, np.float32)
    g.output(f.swiglu(g.slot(gate, F32), g.slot(up, F32)))
    match = assert_device_matches(device, g.builder.build(), g.given())
    (oracle,) = match.oracle.outputs.values()
    assert np.count_nonzero((np.abs(oracle) > 0) & (np.abs(oracle) < 1e-34)) > 10
