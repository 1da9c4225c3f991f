"""Refusals and faults of the device, each typed, and what is computed between two models."""

import numpy as np
import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.inputs import Recorder, integers
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.conformance.session import open_session
from poot_executor.compile import compile
from poot_executor.dtype import F32, I32, U32
from poot_executor.errors import DeviceTimeout, KernelFault, OutOfMemory, Poisoned, Unsupported
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.settings import Settings
from poot_npu.vpu import device as device_module


def heavy(rng):
    """A step of some tenths of a second."""
    g = Recorder("heavy", rng)
    x = g.floats(600, 600, low=-0.01, high=0.01)
    for _ in range(100):
        x = p.matmul(x, x)
    g.output(x)
    return g


def test_a_wait_that_takes_too_long_poisons(rng, tmp_path):
    g = heavy(rng)
    with open_or_skip("vpu:cpu", Settings(tmp_path, timeout=0.001, compile_cache=False)) as device:
        session = open_session(device, g.builder.build(), g.given())
        with pytest.raises(DeviceTimeout), session as opened:
            opened.run(opened.lower())
        with pytest.raises(Poisoned, match=r"vpu:cpu .*did not finish"):
            device.synchronize()


def test_what_is_submitted_behind_another_starts_when_that_is_over(rng):
    """Nobody waits to submit it: the wait for the first one starts it."""
    g = Recorder("in turn", rng)
    count = g.state("count", np.zeros((1,), np.int32), I32)
    g.builder.next_state(count[0], count[1] + 1)
    g.output(count[1] + 0)
    graph = g.builder.build()
    with open_or_skip("vpu:cpu") as device, open_session(device, graph, g.given()) as session:
        recording = session.lower()
        for _ in range(3):
            device.replay(recording)
        assert [flight.started for flight in device._flights] == [True, False, False]
        device.synchronize()
        assert [(flight.started, flight.done) for flight in device._flights] == [(True, False), (False, False)]
        found = session.read()  # of a buffer that the others use: they are over then
        assert [flight.done for flight in device._flights] == [True, True]
        assert found.state[count[0]].tolist() == [3]
        assert next(iter(found.outputs.values())).tolist() == [2]
        device.synchronize()
        device.synchronize()
        assert not device._flights


def test_a_model_that_does_not_fit_names_its_need(device, rng, monkeypatch):
    g = Recorder("large", rng)
    g.output(f.linear(g.floats(1, 64), g.weight(FORMATS["q8_0"], 96, 64), FORMATS["q8_0"]))
    graph = g.builder.build()
    with open_session(device, graph, g.given()) as session:
        monkeypatch.setattr(device_module, "available", lambda: 1000)
        with pytest.raises(OutOfMemory, match="compiled model") as refused:
            session.lower()
        assert refused.value.asked == 2 * 96 * 64 // 32 * 34 and refused.value.free == 1000
        monkeypatch.undo()
        session.run(session.lower())


def test_an_operation_that_it_does_not_have_is_named(device, rng):
    g = Recorder("bytes", rng)
    weight = g.weight(FORMATS["q4_0"], 4, 32)
    g.output(weight)
    g.output(p.packed_dequant(p.slice_(weight, (1, 0), (3, 18)), "q4_0"))
    program = compile(g.builder.build(), device.target)
    with (
        open_session(device, g.builder.build(), g.given()) as session,
        pytest.raises(Unsupported, match="packed_dequant"),
    ):
        session.lower()
    assert program.target.caps.operations >= {"packed_dequant", "sample_token"}


def test_an_index_out_of_range_names_operation_and_place(device, rng):
    g = Recorder("gather", rng)
    index = g.slot(np.array([3, 9, -1, 0], np.int32), I32)
    g.output(p.gather(g.floats(9, 2), index))
    with open_session(device, g.builder.build(), g.given()) as session:
        recording = session.lower()
        with pytest.raises(KernelFault) as raised:
            session.run(recording)
        assert (raised.value.kernel, raised.value.code) == ("gather", 1)
        session.set_inputs({**g.given(), next(iter(g.given())): np.array([3, 8, 0, 0], np.int32)})
        session.run(recording)


def test_what_the_host_computes_lies_between_models(device, rng):
    """The bits of floats that a model computed, back into a model, twice."""
    g = Recorder("between", rng)
    x = g.floats(5, 7)
    y = p.bitcast(p.bitcast(x * 2.0, U32) ^ 0x80000000, F32) + 1.0
    g.output(y)
    g.output(p.bitcast(y, U32))
    with open_session(device, g.builder.build(), g.given()) as session:
        recording = session.lower()
        assert len(recording.bound().stages) == 3
        number, bits = session.run(recording).outputs.values()
    (given,) = g.given().values()
    # Each operation rounds once, and nothing is contracted over the edge of a model.
    expected = given * np.float32(-2) + np.float32(1)
    assert np.array_equal(number, expected) and np.array_equal(bits, expected.view(np.uint32))


@pytest.mark.parametrize("n", [100, 70000])
def test_integers_are_summed_exactly(device, rng, n):
    g = Recorder("sum", rng)
    g.output(p.sum_(g.slot(integers(rng, (2, n), I32), I32), 1))
    assert_device_matches(device, g.builder.build(), g.given())


def test_the_fast_mode_is_near(rng):
    """Within what 8 bits of activations cost, for few rows and for many."""
    with open_or_skip("vpu:cpu-fast") as device:
        for rows in (1, 40):
            g = Recorder("fast", rng)
            name = "q4_1"
            g.output(f.linear(g.floats(rows, 256), g.weight(FORMATS[name], 96, 256), FORMATS[name]))
            graph = g.builder.build()
            with open_session(device, graph, g.given()) as session:
                (got,) = session.run(session.lower()).outputs.values()
            x, raw = g.given().values()
            expected = x @ FORMATS[name].decode(raw).T
            assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
