"""Recordings: a replay is the same commands over the same buffers, with whatever the slots hold
now."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.bounds import bound_for
from poot_eval.conformance.inputs import Recorder, Rng, floats
from poot_eval.conformance.launching import kernel_device
from poot_eval.conformance.matching import assert_result
from poot_eval.conformance.memory import used
from poot_eval.conformance.session import Session, open_session
from poot_eval.graph import EvalOptions, eval
from poot_executor.device import Device
from poot_executor.dtype import F32, I32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.graph import Graph
from poot_executor.graph.keys import InputKey, StateKey

STEPS = 30


def decoder(rng: Rng) -> tuple[Recorder, Graph, StateKey]:
    """A small decode step: embed a token, write it to a pool at its position, attend, pick a
    token."""
    g = Recorder("decoder", rng)
    vocabulary, width, capacity = 67, 32, 24
    table = g.weight(FORMATS["q8_0"], vocabulary, width)
    token, position = g.indices((1,), vocabulary), g.slot(np.zeros(1, np.int32), I32)
    key, pool = g.state("pool", np.zeros((capacity, 1, width), np.float32), F32)
    h = f.embedding(table, FORMATS["q8_0"], token)
    x = f.rms_norm(h, g.floats(width), 1e-5)
    after = p.scatter_update(pool, position, p.reshape(x, (1, 1, width)))
    g.builder.next_state(key, after)
    mask = f.causal_mask(position, g.slot(np.zeros(1, np.int32), I32), 1, capacity)
    keys = p.reshape(after, (1, capacity, 1, width))
    seen = f.attention(p.reshape(x, (1, 1, 1, width)), keys, keys, mask, width**-0.5)
    h = h + f.linear(p.reshape(seen, (1, width)), g.weight(FORMATS["q4_1"], width, width), FORMATS["q4_1"])
    logits = f.linear(h, table, FORMATS["q8_0"])
    g.builder.output("logits", logits)
    g.builder.output("token", p.argmax(logits, 1))
    return g, g.builder.build(), key


class ReplayConformance:
    """Recordings and their replays."""

    def test_replay_equals_eager(self, device: Device, rng: Rng) -> None:
        """One recording of everything gives the bits of one recording a command."""
        kernel_device(device)
        g, graph, _ = decoder(rng)
        with open_session(device, graph, g.given()) as session:
            whole = session.run(session.lower())
            session.set_inputs(g.given())
            session.poison()
            eager = session.run(session.lower_each())
            assert len(session.program.commands) > 1
        for name, value in whole.outputs.items():
            assert np.array_equal(value.view(np.uint32), eager.outputs[name].view(np.uint32)), name
        for key, value in whole.state.items():
            assert np.array_equal(value.view(np.uint32), eager.state[key].view(np.uint32)), key

    def test_many_steps_match_the_oracle(self, device: Device, rng: Rng) -> None:
        """Slots change from step to step, state is carried; nothing is allocated after the
        first."""
        g, graph, pool = decoder(rng)
        inputs: dict[InputKey, np.ndarray] = dict(g.given())
        slots = list(graph.slots())
        with open_session(device, graph, inputs) as session:
            recording = session.lower()
            after_first = None
            for step in range(STEPS):
                inputs[slots[0]] = rng.integers(0, 67, 1).astype(np.int32)
                inputs[slots[1]] = np.array([step * 7 % 24], np.int32)
                oracle = eval(graph, inputs, EvalOptions(environment=True))
                session.set_inputs({k: v for k, v in inputs.items() if k != pool})
                session.poison()
                result = session.run(recording)
                assert_result(result, oracle, bound_for(graph, oracle.environment, device.target.caps))
                # The device's own state goes on, so that each step is judged on its own.
                inputs[pool] = result.state[pool]
                after_first = used(device) if after_first is None else after_first
                assert used(device) == after_first

    def test_recordings_of_two_programs_take_turns(self, device: Device, rng: Rng) -> None:
        """Each over its own buffers, replayed alternately without waiting in between."""
        sessions: list[tuple[Session, object, np.ndarray]] = []
        with open_doubling(device, rng, 3.0) as one, open_doubling(device, rng, 5.0) as two:
            sessions = [(one, one.lower(), np.float32(3.0)), (two, two.lower(), np.float32(5.0))]  # type: ignore[list-item]
            for _ in range(3):
                for session, recording, _factor in sessions:
                    session.device.replay(recording)  # type: ignore[arg-type]
            for _ in range(6):
                device.synchronize()
            for session, _recording, factor in sessions:
                (value,) = session.read().state.values()
                assert np.array_equal(value, np.full(40, factor**3, np.float32))

    def test_release_and_close_are_idempotent(self, device: Device, rng: Rng) -> None:
        """A recording may be released twice; others stay replayable."""
        with open_doubling(device, rng, 2.0) as session:
            first, second = session.lower(), session.lower()
            device.release(first)
            device.release(first)
            (value,) = session.run(second).state.values()
            assert np.array_equal(value, np.full(40, 2.0, np.float32))

    @pytest.mark.parametrize("rows", [1, 8])
    def test_equal_inputs_give_equal_bits(self, device: Device, rng: Rng, rows: int) -> None:
        """A step again over the same inputs: reductions have one order."""
        g = Recorder("again", rng)
        x = g.floats(rows, 577)
        g.output(f.softmax(f.rms_norm(x, g.floats(577), 1e-5)))
        g.output(f.linear(g.floats(rows, 96), g.weight(FORMATS["q4_0"], 130, 96), FORMATS["q4_0"]))
        graph = g.builder.build()
        with open_session(device, graph, g.given()) as session:
            recording = session.lower()
            runs = []
            for _ in range(3):
                session.poison()
                runs.append(session.run(recording).outputs)
        for name in runs[0]:
            for other in runs[1:]:
                assert np.array_equal(runs[0][name].view(np.uint32), other[name].view(np.uint32)), name


def open_doubling(device: Device, rng: Rng, factor: float):  # noqa: ANN201 (a context manager of a Session)
    """A session whose state is multiplied by a factor at each step; it starts at one."""
    g = Recorder("doubling", rng)
    key, state = g.state("value", np.ones(40, np.float32), F32)
    g.builder.next_state(key, state * factor)
    g.output(state + floats(rng, (), F32).item())
    return open_session(device, g.builder.build(), g.given())
