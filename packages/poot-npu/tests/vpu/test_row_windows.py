"""Steps of one row, whichever of several a slot names: it sweeps the window of that row, as it lies."""

from dataclasses import replace

import numpy as np
import pytest

from poot_eval.bounds import bound_for
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.matching import assert_result
from poot_eval.conformance.session import open_session
from poot_eval.graph import EvalOptions, eval
from poot_executor.compile import compile
from poot_executor.device import BufferKind
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


class Chosen:
    """A step of `tokens` tokens of one row among `rows`: one attention over two states. `row_of` makes the row that is
    used of the slot's."""

    def __init__(self, rng, rows, tokens, row_of=None):
        self.rng, self.rows, self.tokens = rng, rows, tokens
        g = self.g = Recorder("chosen", rng)
        b, both = g.builder, (1, tokens)
        self.position = g.slot(np.zeros(1, np.int32), I32)
        self.last = g.slot(np.full(1, tokens - 1, np.int32), I32)
        row = g.slot(np.zeros(1, np.int32), I32)
        if row_of is None:
            row = p.minimum(p.maximum(row, b.splat(0, row.type)), b.splat(rows - 1, row.type))
        else:
            row = row_of(b, row)
        start = p.reshape(row * CAPACITY, (1, 1))
        q = g.floats(1, tokens, HEADS * GROUP, WIDTH, low=-1, high=1)
        new = [g.floats(tokens, HEADS, WIDTH, low=-1, high=1) for _ in range(2)]
        token = p.iota(b, both, 1, I32)
        at = p.reshape(self.position, (1, 1)) + token
        written = (token <= p.reshape(self.last, (1, 1))) & (at >= 0) & (at < CAPACITY)
        place = start + at
        index = p.reshape(p.select(written, place, b.splat(-1, place.type)), (tokens,))
        held = start + p.iota(b, (1, CAPACITY), 1, I32)
        after = []
        for role, fresh in zip(("k", "v"), new, strict=True):
            key, state = g.state(role, np.zeros((rows * CAPACITY, HEADS, WIDTH), np.float32), F32)
            after.append(p.scatter_update(state, index, fresh))
            b.next_state(key, after[-1])
        mask = f.causal_mask(self.position, self.last, tokens, CAPACITY)
        visible = f.written_mask(self.position, self.last, CAPACITY)
        k, v = (p.gather(x, held) for x in after)
        g.output(f.attention(q, k, v, mask, WIDTH**-0.5, visible))
        self.graph = b.build()
        self.slots = list(self.graph.slots())

    def inputs(self, row, position, last):
        """A step's fresh inputs."""
        inputs = {key: value for key, value in self.g.given().items() if key not in (K, V)}
        for key in self.slots[3:]:
            inputs[key] = self.rng.uniform(-1, 1, inputs[key].shape).astype(np.float32)
        for key, value in zip(self.slots, (position, last, row), strict=False):
            inputs[key] = np.array([value], np.int32)
        return inputs

    def empty(self):
        return {key: np.zeros((self.rows * CAPACITY, HEADS, WIDTH), np.float32) for key in (K, V)}


def check(device, step, session, recording, inputs, state):
    """A step against the oracle; the state that it left."""
    oracle = eval(step.graph, {**inputs, **state}, EvalOptions(environment=True))
    session.set_inputs(inputs)
    session.poison()
    result = session.run(recording)
    assert_result(result, oracle, bound_for(step.graph, oracle.environment, device.target.caps))
    return {key: result.state[key] for key in (K, V)}


def windows(states):
    return [memory_of(states[key]).window for key in (K, V)]


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_step_has_the_row_that_it_is_told(device, rng, tokens):
    step = Chosen(rng, 3, tokens)
    assert len(find_attentions(compile(step.graph, device.target).graph)) == 1
    with open_session(device, step.graph, step.g.given()) as session:
        recording, state = session.lower(), step.empty()
        states = session.bindings.states
        shapes = []
        for row, position, last in (
            (1, 0, tokens - 1), (1, tokens, tokens - 1), (0, 2, 0), (2, STEP, tokens - 1), (1, 2 * tokens, -1),
            (1, 2 * tokens, tokens - 1), (0, 3, tokens - 1),
        ):  # fmt: skip
            inputs = step.inputs(row, position, last)
            after = check(device, step, session, recording, inputs, state)
            others = [r for r in range(3) if r != row or last < 0]
            for key in (K, V):
                old, new = (x[key].reshape(3, CAPACITY, HEADS, WIDTH) for x in (state, after))
                np.testing.assert_array_equal(old[others], new[others])
                assert last < 0 or not np.array_equal(old[row], new[row])
            state = after
            (shape,) = {w.array.shape for w in windows(states)}
            shapes.append((shape[0], shape[2]))
        # All rows of the state, and windows of several rows keep their length.
        assert shapes == [(3, STEP)] * 3 + [(3, 2 * STEP)] * 4


def test_it_shares_states_with_steps_of_all_rows(device, rng):
    """A row's part of a window that steps of all rows have, and that grew with another row."""
    one, all_rows = Chosen(rng, 3, 4), Chosen(rng, 3, 1)
    with (
        open_session(device, one.graph, one.g.given()) as session,
        open_session(device, all_rows.graph, all_rows.g.given()) as second,
    ):
        recording, states = session.lower(), session.bindings.states
        other = device.lower(second.program, replace(second.bindings, states=states))
        state = {key: rng.uniform(-1, 1, value.shape).astype(np.float32) for key, value in one.empty().items()}
        session.set_inputs({**one.inputs(0, 0, 3), **state})
        for row, position in ((2, 5), (0, STEP + 7), (1, 2 * STEP)):
            state = check(device, one, session, recording, one.inputs(row, position, 3), state)
            inputs = all_rows.inputs(row, position + 4, 0)
            second.set_inputs(inputs)
            device.replay(other)
            device.synchronize()
            for key, new in zip((K, V), all_rows.slots[4:], strict=True):
                state[key][row * CAPACITY + position + 4] = inputs[new][0]
            found = session.read().state
            assert all(np.array_equal(found[key], state[key]) for key in (K, V))


def blank(device, step):
    """States that nothing was written to, and what they hold."""
    return {key: device.allocate(BufferKind.STATE, value.nbytes) for key, value in step.empty().items()}


def held(device, step, states):
    found = step.empty()
    for key, value in found.items():
        device.read(states[key], value)
    return found


def test_windows_have_all_rows_from_the_first_step_on(device, rng):
    """A row that had no step before makes no windows anew, and of each row it is known how far it is written."""
    step = Chosen(rng, 4, 2)
    states, found = blank(device, step), []
    with open_session(device, step.graph, step.g.given()) as session:
        recording = device.lower(session.program, replace(session.bindings, states=states))
        for row in (0, 2, 1, 3, 0):
            session.set_inputs(step.inputs(row, 2 * row, 1))
            device.replay(recording)
            device.synchronize()
            found.append(windows(states))
            assert [w.ends[row] for w in found[-1]] == [2 * row + 2] * 2
    assert all(window is found[0][place] for each in found for place, window in enumerate(each))
    rows = held(device, step, states)[K].reshape(4, CAPACITY, -1).any(axis=2)
    assert [row.nonzero()[0].tolist() for row in rows] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("written", [False, True])
def test_what_rows_hold_moves_with_windows_of_any_length(device, rng, written):
    """Longer, shorter and longer again, with rows that end before and behind the shorter end; nothing reads the states
    meanwhile. `written`: the host put something there before."""
    one, all_rows = Chosen(rng, 3, 4), Chosen(rng, 3, 1)
    states, state, lengths = blank(device, one), one.empty(), []
    if written:
        for key, value in state.items():
            value[:] = rng.uniform(-1, 1, value.shape)
            device.write(states[key], value)
    with (
        open_session(device, one.graph, one.g.given()) as session,
        open_session(device, all_rows.graph, all_rows.g.given()) as second,
    ):
        steps = [
            (step, opened, device.lower(opened.program, replace(opened.bindings, states=states)))
            for step, opened in ((one, session), (all_rows, second))
        ]
        short = [(0, 13)] * PATIENCE
        places = [(0, 9), (2, 2 * STEP - 9), (1, STEP + 1), *short, (1, STEP + 5), (2, 2 * STEP)]
        for number, (row, position) in enumerate(places):
            step, opened, recording = steps[number % 2]
            inputs = step.inputs(row, position, step.tokens - 1)
            opened.set_inputs(inputs)
            device.replay(recording)
            device.synchronize()
            for key, new in zip((K, V), step.slots[4:], strict=True):
                start = row * CAPACITY + position
                state[key][start : start + step.tokens] = inputs[new]
            lengths.append({w.length for w in windows(states)})
        assert lengths == [{STEP}, *[{2 * STEP}] * (PATIENCE + 1), {STEP}, {2 * STEP}, {3 * STEP}]
        found = held(device, one, states)
        for key in (K, V):
            np.testing.assert_array_equal(found[key], state[key])


def test_windows_that_some_steps_need_stay_long(device, rng):
    """Prompts that are short, and now and then a step of another program that sweeps more: nothing is moved."""
    prompt, decode = Chosen(rng, 3, 4), Chosen(rng, 3, 1)
    states, found = blank(device, prompt), []
    with (
        open_session(device, prompt.graph, prompt.g.given()) as first,
        open_session(device, decode.graph, decode.g.given()) as second,
    ):
        recordings = [device.lower(s.program, replace(s.bindings, states=states)) for s in (first, second)]
        first.set_inputs(prompt.inputs(0, 0, 3))
        second.set_inputs(decode.inputs(1, STEP, 0))
        for number in range(3 * PATIENCE):
            device.replay(recordings[number % 16 == 0])
            device.synchronize()
            found.append(windows(states))
    assert {w.length for w in found[0]} == {2 * STEP}
    assert all(window is found[0][place] for each in found for place, window in enumerate(each))


def test_a_step_behind_another_sweeps_what_its_own_inputs_say(device, rng):
    """Submitted while another one is not over, with other inputs."""
    step = Chosen(rng, 3, 2)
    states, state = blank(device, step), step.empty()
    with (
        open_session(device, step.graph, step.g.given()) as before,
        open_session(device, step.graph, step.g.given()) as behind,
    ):
        for session, position in ((before, 3), (behind, STEP + 40)):
            inputs = step.inputs(1, position, 1)
            session.set_inputs(inputs)
            device.replay(device.lower(session.program, replace(session.bindings, states=states)))
            oracle = eval(step.graph, {**inputs, **state}, EvalOptions(environment=True))
            state = {key: oracle.state[key] for key in (K, V)}
        device.synchronize()
        device.synchronize()
        result = replace(behind.read(), state=held(device, step, states))
        assert_result(result, oracle, bound_for(step.graph, oracle.environment, device.target.caps))


@pytest.mark.parametrize("hidden", [np.nan, np.inf])
def test_what_another_row_holds_does_not_show(device, rng, hidden):
    step = Chosen(rng, 3, 2)
    with open_session(device, step.graph, step.g.given()) as session:
        recording, inputs = session.lower(), step.inputs(2, 9, 1)
        state = {key: rng.uniform(-1, 1, value.shape).astype(np.float32) for key, value in step.empty().items()}
        outputs = []
        for fill in (0.0, hidden):
            for key in (K, V):
                state[key][: 2 * CAPACITY] = fill
                state[key][2 * CAPACITY + 11 :] = fill
            session.set_inputs({**inputs, **state})
            outputs.append(next(iter(session.run(recording).outputs.values())))
        assert np.isfinite(outputs[1]).all()
        np.testing.assert_array_equal(outputs[0], outputs[1])


@pytest.mark.parametrize(
    "row_of",
    [
        pytest.param(lambda _, row: row, id="any"),
        pytest.param(lambda b, row: p.minimum(row, b.splat(2, row.type)), id="below"),
        pytest.param(lambda b, row: p.maximum(p.minimum(row, b.splat(3, row.type)), b.splat(0, row.type)), id="above"),
    ],
)
def test_a_row_that_may_be_none_of_the_states_is_no_such_attention(device, rng, row_of):
    """Computed as the graph says, and right."""
    step = Chosen(rng, 3, 1, row_of)
    assert not find_attentions(compile(step.graph, device.target).graph)
    with open_session(device, step.graph, step.g.given()) as session:
        check(device, step, session, session.lower(), step.inputs(1, 4, 0), step.empty())
        assert windows(session.bindings.states) == [None, None]
