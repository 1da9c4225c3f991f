"""Steps through an engine: state carried, entries that share it, one step ahead, nothing made after
the first."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.inputs import Rng, floats
from poot_eval.conformance.memory import used
from poot_eval.conformance.stepping import PLACE, POSITIONS, VALUE, Stepper
from poot_executor.device import Device
from poot_executor.dtype import F32
from poot_executor.errors import BindError
from poot_executor.graph.keys import SlotKey, SlotKind

MANY = 200


def drawn(rng: Rng) -> tuple[list[int], int]:
    """A value and a place, -1 (which drops the value) among them."""
    return [int(v) for v in rng.integers(0, 100, 3)], int(rng.integers(-1, POSITIONS))


class StepConformance:
    """An engine's steps on a device."""

    def test_many_steps_record_once(self, device: Device, rng: Rng) -> None:
        """Every step right; one recording, and no allocation after the first step."""
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            stepper.step(*drawn(rng))
            first, memory = stepper.engine.stats(), used(device)
            for _ in range(MANY):
                stepper.step(*drawn(rng))
            last = stepper.engine.stats()
            assert (last.recordings, last.allocations, last.uploads) == (1, first.allocations, 1)
            assert last.replays == last.steps == MANY + 1 and used(device) == memory

    def test_a_step_ahead_equals_one_after_another(self, device: Device, rng: Rng) -> None:
        """Two in flight, collected in order, over the same state."""
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            engine, waiting = stepper.engine, None
            for _ in range(12):
                value, place = drawn(rng)
                step = engine.submit(stepper.executable, stepper.entry, stepper.inputs(value, place))
                if waiting is not None:
                    stepper.expect(*waiting[1:], engine.collect(waiting[0]))
                waiting = (step, value, place)
            assert waiting is not None
            stepper.expect(*waiting[1:], engine.collect(waiting[0]))

    def test_reset_clears_the_state(self, device: Device, rng: Rng) -> None:
        """And the entry goes on without being recorded again."""
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            for _ in range(3):
                for _ in range(3):
                    stepper.step(*drawn(rng))
                stepper.engine.reset_state(stepper.executable)
                stepper.clear()
            assert stepper.engine.stats().recordings == 1

    def test_inputs_that_do_not_fit_change_nothing(self, device: Device, rng: Rng) -> None:
        """Missing, unknown, of another shape or dtype: refused by name, and the next step is
        right."""
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            stepper.step(*drawn(rng))
            good = stepper.inputs([1, 2, 3], 4)
            stray = SlotKey(SlotKind.INPUT, "stray")
            bad = (
                ({VALUE: good[VALUE]}, "place"),
                ({**good, stray: good[PLACE]}, "stray"),
                ({**good, VALUE: good[VALUE][:2]}, "value"),
                ({**good, PLACE: good[PLACE].astype(np.int64)}, "place"),
            )
            for inputs, name in bad:
                with pytest.raises(BindError, match=name):
                    stepper.engine.step(stepper.executable, stepper.entry, inputs)
            stepper.step(*drawn(rng))

    def test_everything_is_given_back(self, device: Device, rng: Rng) -> None:
        """Entries removed, executables unloaded, an engine closed with steps in flight."""
        before = used(device)
        for _ in range(2):
            with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
                stepper.step(*drawn(rng))
                kept = used(device)
                extra = stepper.engine.add_entry(stepper.executable, stepper.program)
                stepper.engine.step(stepper.executable, extra, stepper.inputs([0, 0, 0], -1))
                stepper.engine.remove_entry(stepper.executable, extra)
                assert used(device) == kept
                stepper.engine.submit(stepper.executable, stepper.entry, stepper.inputs([1, 2, 3], 0))
            assert used(device) == before
        stepper = Stepper(device, floats(rng, (8, 5), F32))
        stepper.engine.unload(stepper.executable)
        assert used(device) == before
