"""Models that are read from disk beside other work: which of them, when, and where what goes wrong arrives."""

from __future__ import annotations

from concurrent.futures import CancelledError
from threading import Event

import numpy as np
import openvino
import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.session import Session, open_session
from poot_executor.compile import compile
from poot_executor.errors import DeviceTimeout, Unsupported
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.settings import read_settings
from poot_npu.vpu.loading import Later, Loader
from poot_npu.vpu.modes import Mode
from poot_npu.vpu.runtime import core

PATIENCE = 60.0


def test_one_follows_the_other_where_nobody_waits():
    loader, made, last = Loader(), [], Event()
    for n in range(3):
        loader.add(lambda n=n: made.append(n))
    loader.add(last.set)
    assert last.wait(PATIENCE) and made == [0, 1, 2]
    loader.close(PATIENCE)


def test_a_wait_has_a_bound():
    loader, gate = Loader(), Event()
    reading = loader.add(lambda: gate.wait(PATIENCE))
    with pytest.raises(DeviceTimeout, match="reading a compiled model"):
        reading.result(0.01)
    gate.set()
    assert reading.result(PATIENCE)
    loader.close(PATIENCE)


def test_what_is_waited_for_is_next_and_holds_the_rest():
    loader, made, gate = Loader(), [], Event()
    first = loader.add(lambda: gate.wait(PATIENCE) and made.append("first"))
    rest = [loader.add(lambda n=n: made.append(n)) for n in range(2)]
    loader.want(first)
    gate.set()
    first.result(PATIENCE)
    assert made == ["first"] and not any(later.done for later in rest)
    loader.go_on()
    for later in rest:
        later.wait(PATIENCE)
    assert made == ["first", 0, 1]
    # Asked for out of turn: the one before it is left.
    gate.clear()
    held = loader.add(lambda: gate.wait(PATIENCE) and made.append("held"))
    before, wanted = (loader.add(lambda n=n: made.append(n)) for n in (2, 3))
    loader.want(held)
    gate.set()
    held.result(PATIENCE)
    wanted.result(PATIENCE)
    assert made[3:] == ["held", 3] and not before.done
    loader.close(PATIENCE)
    assert 2 not in made
    with pytest.raises(CancelledError):
        before.result(PATIENCE)


def test_what_making_it_raises_arrives_each_time():
    loader = Loader()
    junk = openvino.Tensor(np.frombuffer(b"no model at all", np.uint8))
    later = loader.add(lambda: core().import_model(junk, "CPU", {}))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            later.result(PATIENCE)
    assert loader.add(lambda: 5).result(PATIENCE) == 5
    loader.close(PATIENCE)


def test_what_is_not_needed_is_not_begun():
    loader, gate = Loader(), Event()
    running = loader.add(lambda: gate.wait(PATIENCE))
    dropped, kept = loader.add(lambda: 1), loader.add(lambda: 2)
    dropped.drop()
    gate.set()
    assert kept.result(PATIENCE) == 2 and running.result(PATIENCE)
    with pytest.raises(CancelledError):
        dropped.result(PATIENCE)
    loader.close(PATIENCE)


def test_closing_does_not_wait_longer_than_it_may():
    loader, gate = Loader(), Event()
    running = loader.add(lambda: gate.wait(PATIENCE))
    behind = loader.add(lambda: 1)
    loader.close(0.01)
    assert not running.done and behind.done
    gate.set()
    assert running.result(PATIENCE)
    assert Later.ready(7).result(PATIENCE) == 7


def product(rng, rows):
    g = Recorder(f"product of {rows}", rng)
    g.output(f.linear(g.floats(rows, 64), g.weight(FORMATS["q8_0"], 40, 64), FORMATS["q8_0"]))
    return g


def keeping(tmp_path):
    """A device that keeps models of any size."""
    device = open_or_skip("vpu:cpu", read_settings({"POOT_HOME": str(tmp_path)}))
    device._compiler.least_bytes = 0
    return device


class Watched:
    """A runtime that notes what it reads, and reads nothing before somebody waits for it."""

    def __init__(self, runtime, device, monkeypatch):
        self.runtime, self.read, self.awaited = runtime, [], Event()
        want = Loader.want

        def noted(loader, later):
            want(loader, later)
            self.awaited.set()

        monkeypatch.setattr(Loader, "want", noted)
        device._compiler._core = self

    def __getattr__(self, name):
        return getattr(self.runtime, name)

    def import_model(self, *given):
        assert self.awaited.wait(PATIENCE)
        made = self.runtime.import_model(*given)
        self.read.append(next(iter(made.inputs)).shape[0])
        return made


def test_a_first_step_waits_for_its_own_model_alone(tmp_path, rng, monkeypatch):
    made = [product(rng, rows) for rows in (3, 5)]
    expected = []
    with keeping(tmp_path) as device:
        for g in made:
            with open_session(device, g.builder.build(), g.given()) as session:
                expected.append(next(iter(session.run(session.lower()).outputs.values())))
        assert device._compiler.built == 2
    with keeping(tmp_path) as device:
        watched = Watched(device._compiler._core, device, monkeypatch)
        opened = (open_session(device, g.builder.build(), g.given()) for g in made)
        with next(opened) as first, next(opened) as second:
            for session, g in zip((first, second), made, strict=True):
                session.set_inputs(g.given())
            recordings = first.lower(), second.lower()
            assert watched.read == [] and not any(recording.ready for recording in recordings)
            device.replay(recordings[0])
            device.replay(recordings[1])
            # The second is neither begun, nor does submitting it wait for anything.
            assert watched.read == [3] and not recordings[1].ready
            device.synchronize()
            device.synchronize()
            assert watched.read == [3, 5] and device._compiler.built == 0
            got = [next(iter(session.read().outputs.values())) for session in (first, second)]
            # Another recording of a program has its models.
            assert first.lower().ready
    for one, other in zip(expected, got, strict=True):
        assert np.array_equal(one, other)


def test_closing_reads_nothing_that_was_not_begun(tmp_path, rng, monkeypatch):
    made = [product(rng, rows) for rows in (3, 5)]
    with keeping(tmp_path) as device:
        for g in made:
            with open_session(device, g.builder.build(), g.given()) as session:
                session.lower()
    with keeping(tmp_path) as device:
        watched = Watched(device._compiler._core, device, monkeypatch)
        recordings = [Session(device, compile(g.builder.build(), device.target), g.given()).lower() for g in made]
        device._compiler.loader.want(recordings[0]._models)
    assert watched.read == [3] and recordings[0].ready
    with pytest.raises(CancelledError):
        recordings[1].bound()


def test_a_refusal_that_comes_late_reaches_whoever_steps(tmp_path, rng, monkeypatch):
    """An entry that is whole and no model is compiled in its place; where that is refused too, the step says so."""
    g = product(rng, 3)
    with keeping(tmp_path) as device, open_session(device, g.builder.build(), g.given()) as session:
        session.lower()
    (path,) = (tmp_path / "kernels" / "vpu").iterdir()
    key = bytes.fromhex(path.stem)
    with keeping(tmp_path) as device, open_session(device, g.builder.build(), g.given()) as session:
        device._compiler.blobs.write(key, device._compiler.blobs.read(key).text, [b"no model"])
        watched = Watched(device._compiler._core, device, monkeypatch)
        recording = session.lower()
        device._compiler._mode = Mode("NONE", exact=True)  # no plug-in has that name
        for _ in range(2):
            with pytest.raises(Unsupported, match="product of 3"):
                device.replay(recording)
        assert not watched.read and device._compiler.blobs.rejected == 1
