"""What is made is given back: after use, and after a refusal in the middle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poot_eval.conformance.inputs import Recorder, Rng, floats
from poot_eval.conformance.launching import kernel_device
from poot_eval.conformance.memory import used
from poot_eval.conformance.replay import decoder
from poot_eval.conformance.session import open_session
from poot_eval.conformance.stepping import TABLE, MemoryStore, Stepper
from poot_executor.device import Device
from poot_executor.dtype import F32
from poot_executor.engine import Engine
from poot_executor.errors import BindError, PootError, WeightError
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f


class LeakConformance:
    """Live memory returns to where it started."""

    def test_programs_leave_nothing(self, device: Device, rng: Rng) -> None:
        """Uploads, blocks, states and recordings of many programs, one after another."""
        before = used(device)
        for _ in range(5):
            g, graph, _ = decoder(rng)
            with open_session(device, graph, g.given()) as session:
                session.run(session.lower())
                assert used(device) != before
            assert used(device) == before

    def test_an_upload_leaves_its_weight_alone(self, device: Device, rng: Rng) -> None:
        """No staging memory stays, and the weight takes what its layout says, in whole allocation units."""
        before = used(device)
        format = FORMATS["q8_0"]
        g = Recorder("upload", rng)
        g.output(f.linear(g.floats(1, 128), g.weight(format, 512, 128), format))
        with open_session(device, g.builder.build(), g.given()) as session:
            (use,) = session.program.weights
            held = {kind.value: count - before.get(kind, 0) for kind, count in used(device).items()}
            assert use.layout.nbytes <= held["weight"] <= use.layout.nbytes + 4096
            assert held.get("staging", 0) == 0
        assert used(device) == before

    def test_a_refused_entry_leaves_nothing(self, device: Device, rng: Rng) -> None:
        """A weight that is unbound, of another shape, or a program for another target."""
        before = used(device)
        with Stepper(device, floats(rng, (8, 5), F32)) as stepper:
            kept = used(device)
            engine = stepper.engine
            unbound = engine.load_weights(MemoryStore({"table": stepper.table}), {})
            narrow = engine.load_weights(MemoryStore({"table": stepper.table[:, :4]}), {TABLE: "table"})
            target = stepper.program.target
            foreign = replace(stepper.program, target=replace(target, kind="another"))
            cases: list[tuple[int, object, type[PootError]]] = [
                (unbound, stepper.program, BindError),
                (narrow, stepper.program, WeightError),
                (stepper.executable, foreign, BindError),
            ]
            for executable, program, error in cases:
                with pytest.raises(error):
                    engine.add_entry(executable, program)  # type: ignore[arg-type]
                assert used(device) == kept
            stepper.step([1, 2, 3], 4)
        assert used(device) == before

    def test_many_recordings_leave_nothing(self, device: Device, rng: Rng) -> None:
        """Recorded and released again and again over the same buffers."""
        kernel_device(device)
        g, graph, _ = decoder(rng)
        with open_session(device, graph, g.given()) as session:
            session.run(session.lower())
            kept = used(device)
            for _ in range(10):
                device.release(session.lower())
            assert used(device) == kept

    def test_an_engine_that_is_dropped_in_use_is_closed_once(self, device: Device, rng: Rng) -> None:
        """close is idempotent, and the device works on for the next engine."""
        before = used(device)
        stepper = Stepper(device, floats(rng, (8, 5), F32))
        stepper.step([1, 2, 3], 4)
        stepper.engine.close()
        stepper.engine.close()
        assert used(device) == before
        with Engine(device) as engine:
            assert engine.stats().executables == 0
