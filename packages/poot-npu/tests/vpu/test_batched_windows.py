"""Attention of several rows, each over its own part of a state: recognized, and no row shows in another."""

from dataclasses import replace

import numpy as np
import pytest

from poot_eval.bounds import bound_for
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_result
from poot_eval.conformance.session import open_session
from poot_eval.graph import EvalOptions, eval
from poot_executor.compile import compile
from poot_executor.dtype import F32, I32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.keys import StateKey
from poot_npu.vpu.attention import find_attentions
from poot_npu.vpu.bound_windows import PATIENCE
from poot_npu.vpu.memory import memory_of
from poot_npu.vpu.sweep import STEP

CAPACITY, HEADS, GROUP, WIDTH = 3 * STEP, 2, 3, 16
K, V = StateKey(None, "k"), StateKey(None, "v")


class Batch:
    """A step of `rows` rows of `tokens` tokens whose K, V and queries are given: one attention over two states."""

    def __init__(self, rng, rows, tokens, guarded=True):
        self.rng, self.rows, self.tokens = rng, rows, tokens
        g = self.g = Recorder("rows", rng)
        b, both = g.builder, (rows, tokens)
        self.position = g.slot(np.zeros(rows, np.int32), I32)
        self.last = g.slot(np.full(rows, tokens - 1, np.int32), I32)
        q = g.floats(rows, tokens, HEADS * GROUP, WIDTH, low=-1, high=1)
        new = [g.floats(rows * tokens, HEADS, WIDTH, low=-1, high=1) for _ in range(2)]
        token = p.iota(b, both, 1, I32)
        at = p.reshape(self.position, (rows, 1)) + token
        written = token <= p.reshape(self.last, (rows, 1))
        if guarded:
            written = written & (at >= 0) & (at < CAPACITY)
        place = p.iota(b, both, 0, I32) * CAPACITY + at
        index = p.reshape(p.select(written, place, b.splat(-1, place.type)), (rows * tokens,))
        after = []
        for role, fresh in zip(("k", "v"), new, strict=True):
            key, state = g.state(role, np.zeros((rows * CAPACITY, HEADS, WIDTH), np.float32), F32)
            after.append(p.scatter_update(state, index, fresh))
            b.next_state(key, after[-1])
        mask = f.causal_mask(self.position, self.last, tokens, CAPACITY)
        visible = f.written_mask(self.position, self.last, CAPACITY)
        k, v = (p.reshape(x, (rows, CAPACITY, HEADS, WIDTH)) for x in after)
        g.output(f.attention(q, k, v, mask, WIDTH**-0.5, visible))
        self.graph = b.build()
        self.slots = list(self.graph.slots())

    def inputs(self, positions, lasts):
        """A step's fresh inputs."""
        inputs = dict(self.g.given())
        for key in self.slots[2:]:
            inputs[key] = self.rng.uniform(-1, 1, inputs[key].shape).astype(np.float32)
        inputs[self.slots[0]] = np.array(positions, np.int32)
        inputs[self.slots[1]] = np.array(lasts, np.int32)
        return inputs

    def empty(self):
        return {key: np.zeros((self.rows * CAPACITY, HEADS, WIDTH), np.float32) for key in (K, V)}


def step(device, batch, session, recording, state, positions, lasts=None):
    """One step against the oracle; the state that it left."""
    inputs = {**batch.inputs(positions, [batch.tokens - 1] * batch.rows if lasts is None else lasts), **state}
    oracle = eval(batch.graph, inputs, EvalOptions(environment=True))
    session.set_inputs({key: value for key, value in inputs.items() if key not in (K, V)})
    session.poison()
    result = session.run(recording)
    assert_result(result, oracle, bound_for(batch.graph, oracle.environment, device.target.caps))
    return {key: result.state[key] for key in (K, V)}


def windows(session):
    return [memory_of(session.bindings.states[key]).window for key in (K, V)]


@pytest.mark.parametrize("tokens", [1, 5])
def test_each_row_sweeps_what_the_longest_sees(device, rng, tokens):
    batch = Batch(rng, 3, tokens)
    with open_session(device, batch.graph, batch.g.given()) as session:
        recording, state, spare = session.lower(), batch.empty(), -1
        state = step(device, batch, session, recording, state, [0, 7, STEP - tokens])
        assert {w.array.shape for w in windows(session)} == {(3, HEADS, STEP, WIDTH)}
        state = step(device, batch, session, recording, state, [tokens, 2, 2 * STEP])
        assert {w.length for w in windows(session)} == {3 * STEP}
        # A spare row changes nothing, wherever the others are; a short step leaves long windows as they are.
        after = step(device, batch, session, recording, state, [1, 0, 2], [tokens - 1, spare, 0])
        assert {w.length for w in windows(session)} == {3 * STEP}
        assert all(
            np.array_equal(after[key][CAPACITY : 2 * CAPACITY], state[key][CAPACITY : 2 * CAPACITY]) for key in state
        )
        assert not np.array_equal(after[K][:CAPACITY], state[K][:CAPACITY])


def test_windows_become_shorter_once_they_were_long_for_nothing(device, rng):
    batch = Batch(rng, 2, 1)
    with open_session(device, batch.graph, batch.g.given()) as session:
        recording, state = session.lower(), batch.empty()
        state = step(device, batch, session, recording, state, [2 * STEP, 5])
        for _ in range(PATIENCE):
            assert {w.length for w in windows(session)} == {3 * STEP}
            state = step(device, batch, session, recording, state, [3, 6])
        assert {w.length for w in windows(session)} == {STEP}


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_what_a_row_holds_does_not_show_in_another(device, rng, hidden):
    """A row that is not finite, in the state and in what a step brings."""
    batch = Batch(rng, 3, 2)
    with open_session(device, batch.graph, batch.g.given()) as session:
        recording, inputs = session.lower(), batch.inputs([4, 4, 9], [1, 1, 1])
        inputs.update({key: rng.uniform(-1, 1, value.shape).astype(np.float32) for key, value in batch.empty().items()})
        for key in (K, V):
            inputs[key][CAPACITY : 2 * CAPACITY] = hidden
        clean = {**inputs, **{key: np.where(np.isfinite(inputs[key]), inputs[key], 0) for key in (K, V)}}
        found = []
        for given in (clean, inputs):
            session.set_inputs(given)
            found.append(session.run(recording))
        outputs = [next(iter(result.outputs.values())) for result in found]
        for row in (0, 2):
            assert np.isfinite(outputs[1][row]).all()
            np.testing.assert_array_equal(outputs[0][row], outputs[1][row])
        inputs = dict(clean)
        new = batch.slots[4]
        inputs[new] = inputs[new].copy()
        inputs[new][2:4] = hidden
        session.set_inputs(inputs)
        output = next(iter(session.run(recording).outputs.values()))
        assert not np.isfinite(output[1]).all()
        for row in (0, 2):
            np.testing.assert_array_equal(output[row], outputs[0][row])


def test_rows_that_might_reach_into_others_are_no_such_attention(device, rng):
    """Without the bounds on positions a row could write into the next: computed as the graph says, and right."""
    batch = Batch(rng, 2, 1, guarded=False)
    assert not find_attentions(compile(batch.graph, device.target).graph)
    assert len(find_attentions(compile(Batch(rng, 2, 1).graph, device.target).graph)) == 1
    with open_session(device, batch.graph, batch.g.given()) as session:
        recording = session.lower()
        step(device, batch, session, recording, batch.empty(), [3, 9])
        assert windows(session) == [None, None]


def copying(rng, rows, source, target, count):
    """The first positions of a row become those of another, in each state as a whole."""
    g = Recorder("copying", rng)
    place = p.iota(g.builder, (CAPACITY,), 0, I32)
    write = p.select(place < count, place + target * CAPACITY, g.builder.splat(-1, place.type))
    for role in ("k", "v"):
        key, state = g.state(role, np.zeros((rows * CAPACITY, HEADS, WIDTH), np.float32), F32)
        g.builder.next_state(key, p.scatter_update(state, write, p.gather(state, place + source * CAPACITY)))
    g.output(place)
    return g


def test_programs_share_states(device, rng):
    """A step of the first row alone, and a copy of one row to another, between steps of all rows."""
    all_rows, first = Batch(rng, 3, 1), Batch(rng, 1, 4)
    copy = copying(rng, 3, source=0, target=2, count=6)
    with (
        open_session(device, all_rows.graph, all_rows.g.given()) as session,
        open_session(device, first.graph, first.g.given()) as alone,
        open_session(device, copy.builder.build(), copy.given()) as copies,
    ):
        recording, states = session.lower(), session.bindings.states
        others = [device.lower(s.program, replace(s.bindings, states=states)) for s in (alone, copies)]
        state = {key: rng.uniform(-1, 1, value.shape).astype(np.float32) for key, value in all_rows.empty().items()}
        session.set_inputs({**all_rows.inputs([0, 0, 0], [0, 0, 0]), **state})
        state = step(device, all_rows, session, recording, state, [5, 2 * STEP, 9])
        inputs = first.inputs([3], [3])
        alone.set_inputs({key: value for key, value in inputs.items() if key not in (K, V)})
        for other in others:
            device.replay(other)
            device.synchronize()
        for key, new in zip((K, V), first.slots[3:], strict=True):
            state[key][3:7] = inputs[new]
            state[key][2 * CAPACITY : 2 * CAPACITY + 6] = state[key][:6]
        found = session.read().state
        assert all(np.array_equal(found[key], state[key]) for key in (K, V))
        step(device, all_rows, session, recording, state, [7, 4, 6])
