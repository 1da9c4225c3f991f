"""Attention over a state: recognized, swept as far as a step sees, and right whatever lies beyond."""

import numpy as np
import pytest

from poot_eval.bounds import bound_for
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_result
from poot_eval.conformance.session import open_session
from poot_eval.graph import EvalOptions, eval
from poot_executor.dtype import F32, I32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.keys import StateKey
from poot_npu.vpu.memory import memory_of
from poot_npu.vpu.sweep import STEP

CAPACITY, HEADS, GROUP, WIDTH = 3 * STEP, 2, 3, 16
K, V = StateKey(None, "k"), StateKey(None, "v")


class Decoder:
    """A step of `tokens` tokens whose K, V and queries are given: one attention over two states."""

    def __init__(self, rng, tokens, window=None, softcap=None, capacity=CAPACITY):
        self.rng, self.tokens, self.capacity = rng, tokens, capacity
        g = self.g = Recorder("windows", rng)
        self.position = g.slot(np.zeros(1, np.int32), I32)
        self.last = g.slot(np.full(1, tokens - 1, np.int32), I32)
        q = g.floats(1, tokens, HEADS * GROUP, WIDTH, low=-1, high=1)
        rows = [g.floats(tokens, HEADS, WIDTH, low=-1, high=1) for _ in range(2)]
        line = p.iota(g.builder, (tokens,), 0, I32)
        at = g.builder.broadcast_to(self.position, (tokens,)) + line
        index = p.select(line <= g.builder.broadcast_to(self.last, (tokens,)), at, g.builder.splat(-1, at.type))
        after = []
        for role, new in zip(("k", "v"), rows, strict=True):
            key, state = g.state(role, np.zeros((capacity, HEADS, WIDTH), np.float32), F32)
            after.append(p.scatter_update(state, index, new))
            g.builder.next_state(key, after[-1])
        mask = f.causal_mask(self.position, self.last, tokens, capacity, window)
        end = p.reshape(self.position + self.last, (1, 1))
        visible = p.iota(g.builder, (1, capacity), 1, I32) <= g.builder.broadcast_to(end, (1, capacity))
        k, v = (p.reshape(x, (1, capacity, HEADS, WIDTH)) for x in after)
        g.output(f.attention(q, k, v, mask, WIDTH**-0.5, visible, softcap))
        self.graph = g.builder.build()
        self.slots = list(self.graph.slots())

    def inputs(self, position, last=None):
        """A step's fresh inputs."""
        inputs = dict(self.g.given())
        for key in self.slots[2:]:
            inputs[key] = self.rng.uniform(-1, 1, inputs[key].shape).astype(np.float32)
        inputs[self.slots[0]] = np.array([position], np.int32)
        inputs[self.slots[1]] = np.array([self.tokens - 1 if last is None else last], np.int32)
        return inputs


def step(device, decoder, session, recording, state, position, last=None):
    """One step against the oracle; the state that it left."""
    inputs = {**decoder.inputs(position, last), **state}
    oracle = eval(decoder.graph, inputs, EvalOptions(environment=True))
    session.set_inputs({key: value for key, value in inputs.items() if key not in (K, V)})
    session.poison()
    result = session.run(recording)
    assert_result(result, oracle, bound_for(decoder.graph, oracle.environment, device.target.caps))
    return {key: result.state[key] for key in (K, V)}


def lengths(session):
    return {memory_of(session.bindings.states[key]).window.length for key in (K, V)}


def opened(device, decoder):
    return open_session(device, decoder.graph, decoder.g.given())


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_step_sweeps_what_it_sees(device, rng, tokens, softcap):
    """Positions one after another, over the ends of windows, back to the start, and at the last."""
    decoder = Decoder(rng, tokens, softcap=softcap)
    with opened(device, decoder) as session:
        recording = session.lower()
        state = {key: np.zeros((CAPACITY, HEADS, WIDTH), np.float32) for key in (K, V)}
        places = [0, tokens, STEP - tokens, STEP - tokens + 1, 2 * STEP + 3, 7, CAPACITY - tokens]
        for position in places:
            state = step(device, decoder, session, recording, state, position)
            swept = min(-(-(position + tokens) // STEP) * STEP, CAPACITY)
            assert lengths(session) == {swept}


def test_a_spare_step_writes_nothing(device, rng):
    """Whose token sees nothing before position 0, and whose row holds nothing."""
    decoder = Decoder(rng, 1)
    with opened(device, decoder) as session:
        recording = session.lower()
        state = {key: np.zeros((CAPACITY, HEADS, WIDTH), np.float32) for key in (K, V)}
        for position in (0, 1, 2):
            state = step(device, decoder, session, recording, state, position)
        after = step(device, decoder, session, recording, state, 0, last=-1)
        assert all(np.array_equal(after[key], state[key]) for key in state)
        assert lengths(session) == {STEP}


def test_a_window_of_positions(device, rng):
    """A mask with a lower end too."""
    decoder = Decoder(rng, 1, window=9)
    with opened(device, decoder) as session:
        recording = session.lower()
        state = {key: np.zeros((CAPACITY, HEADS, WIDTH), np.float32) for key in (K, V)}
        for position in (0, 5, 6, 30, STEP, 4):
            state = step(device, decoder, session, recording, state, position)


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_what_is_not_seen_does_not_show(device, rng, hidden):
    """NaN beyond what a step sees, put there by the host; it is still there afterwards."""
    decoder = Decoder(rng, 1)
    with opened(device, decoder) as session:
        recording = session.lower()
        state = {key: rng.uniform(-1, 1, (CAPACITY, HEADS, WIDTH)).astype(np.float32) for key in (K, V)}
        for value in state.values():
            value[20:] = hidden
        session.set_inputs({**decoder.inputs(0), **state})
        for position in (10, 11, STEP - 1 - 120):
            state = step(device, decoder, session, recording, state, position)
        assert all(
            np.array_equal(value[30], np.full((HEADS, WIDTH), hidden, np.float32), True) for value in state.values()
        )


def test_a_row_that_is_not_finite_is_remembered(device, rng):
    """Written by a step, and later beyond what another sees."""
    decoder = Decoder(rng, 1)
    with opened(device, decoder) as session:
        recording = session.lower()
        state = {key: np.zeros((CAPACITY, HEADS, WIDTH), np.float32) for key in (K, V)}
        inputs = {**decoder.inputs(40), **state}
        inputs[decoder.slots[4]] = np.full((1, HEADS, WIDTH), np.inf, np.float32)
        session.set_inputs(inputs)
        session.run(recording)
        state = {key: session.read().state[key] for key in (K, V)}
        assert np.isinf(state[V][40]).all()
        for position in (3, 4, 41 - 20):
            state = step(device, decoder, session, recording, state, position)
        assert np.isinf(state[V][40]).all()
