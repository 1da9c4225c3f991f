"""Tuning on a device: the faster of what computes the same is found, what computes something else is not taken."""

import numpy as np
import pytest

from poot_eval.conformance.inputs import floats
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, CompileOptions, compile
from poot_executor.compile.schedule_picks import MEASURED, Schedules
from poot_executor.dtype import BF16, F32, U8
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel.parse import parse
from poot_executor.tuning import Tuner
from poot_executor.tuning_step import TuningStep
from poot_executor.weights import StoredTensor, WeightKey

CAPS = Caps(group_threads=64, max_group_size=128)
X, W, NORM = SlotKey(SlotKind.INPUT, "x"), WeightKey(None, "w"), WeightKey(None, "norm")


class Counting(ReferenceDevice):
    """Its time is what it dispatches: groups cost the less the more threads they have."""

    def device_time(self):
        return self.seconds

    def replay(self, recording):
        super().replay(recording)
        dispatches = [c for c in recording.commands if hasattr(c, "kernel")]
        self.seconds = sum(np.prod(d.groups) * self.cost(d.kernel.group_size) for d in dispatches)

    def cost(self, threads):
        return 256 / threads


class Wrong(Counting):
    """Computes something else in groups of 128 threads, which are the fastest."""

    def load(self, kernel, compiled):
        if kernel.group_size != 128:
            return super().load(kernel, compiled)
        text = str(kernel)
        assert " mul " in text
        broken = parse(text.replace(" mul ", " add ", 1))
        assert isinstance(broken, Kernel)
        return broken


class Silent(Counting):
    """Leaves out what groups of 128 threads would write."""

    def replay(self, recording):
        kept = tuple(c for c in recording.commands if not hasattr(c, "kernel") or c.kernel.group_size != 128)
        super().replay(type(recording)(kept))
        self.seconds = 0.0 if len(kept) < len(recording.commands) else self.seconds


def graph():
    b = Builder("one")
    x = b.slot(X, TensorType((1, 32), F32))
    normed = f.rms_norm(x, b.weight(NORM, TensorType((32,), F32)), 1e-5)
    b.output("y", f.linear(normed, b.weight(W, TensorType((256, 32), F32)), FORMATS["f32"]))
    return b.build()


@pytest.fixture
def tuned(rng):
    """tuned(device): what tuning found, and the program under it."""
    weights = {W: floats(rng, (256, 32), F32), NORM: floats(rng, (32,), F32)}

    def stored(key):
        value = weights[key]
        return StoredTensor(str(key), FORMATS["f32"], value.shape, value.view(np.uint8).reshape(-1))

    def run(device):
        with Tuner(device, graph(), stored, {X: floats(rng, (1, 32), F32)}) as tuner:
            reported = []
            found = tuner.tune(reported.append)
            assert reported == found
        assert sum(device.memory().used.values()) == 0
        picks = Schedules.of({m.key: dict(m.pick) for m in found if m.pick})
        return found, compile(graph(), device.target, CompileOptions(schedules=picks))

    return run


def test_the_fastest_is_found_and_compiled_with(tuned):
    found, program = tuned(Counting(CAPS))
    assert [m.key.split()[0] for m in found] == ["norm", "projection"]
    norm, projection = found
    assert norm.pick == ()  # A dispatch more is a group more.
    assert dict(projection.pick)["threads"] == 128
    assert projection.seconds < projection.heuristic
    assert projection.wrong == 0
    (dispatch,) = program.dispatches
    assert dispatch.kernel.group_size == 128
    assert dispatch.schedule[MEASURED] == dict(projection.pick)


@pytest.mark.parametrize("device", [Wrong, Silent])
def test_what_computes_something_else_is_not_taken(tuned, device):
    found, program = tuned(device(CAPS))
    (projection,) = [m for m in found if m.key.startswith("projection")]
    assert projection.wrong >= 1
    assert dict(projection.pick).get("threads") != 128
    assert all(d.kernel.group_size != 128 for d in program.dispatches)


def test_nothing_is_taken_where_nothing_is_faster(tuned):
    class Even(Counting):
        def replay(self, recording):
            super().replay(recording)
            self.seconds = 1.0

    found, program = tuned(Even(CAPS))
    assert [m.pick for m in found] == [(), ()]
    assert [m.seconds for m in found] == [m.heuristic for m in found]
    assert MEASURED not in program.dispatches[0].schedule


def test_what_sums_in_another_order_differ_by_is_no_fault():
    """Twelve layers round to bf16, where one order is on one side and another on the other: by 0.0045 of the greatest
    output with this seed, more than f32's own rounding is allowed."""
    rng, layers, width = np.random.default_rng(0), 12, 128
    caps = Caps(
        group_threads=128, max_group_size=1024, max_shared_bytes=48 << 10, max_bindings=31, subgroup_width=32,
        features=frozenset(["subgroup", "packed_half", "mma"]),
    )  # fmt: skip
    b = Builder("deep")
    h = b.slot(X, TensorType((1, width), F32))
    weights = {}
    for layer in range(layers):
        key = WeightKey(layer, "w")
        raw = rng.integers(0, 256, (width * width // 32, 18), dtype=np.uint8)
        raw[:, :2] = np.full((len(raw), 1), 0.02, np.float16).view(np.uint8)
        weights[key] = StoredTensor(str(key), FORMATS["q4_0"], (width, width), raw.reshape(-1))
        h = f.linear(h, b.weight(key, TensorType((width, width // 32 * 18), U8)), FORMATS["q4_0"], activations=BF16)
    b.output("y", h)
    device, deep = ReferenceDevice(caps), b.build()
    base, other = (compile(deep, device.target, CompileOptions(deterministic=order)) for order in (False, True))
    x = {X: rng.standard_normal((1, width)).astype(np.float32)}
    step = TuningStep(device, base, other, weights.__getitem__, x, 0)
    bound = step.bind(other)
    found = step.run(other, bound.bindings)
    assert step.agrees(found)
    largest = np.abs(found["y"]).max()
    assert not step.agrees({"y": found["y"] + 0.1 * largest})
    alone = TuningStep(device, base, base, weights.__getitem__, x, 0)
    assert not alone.agrees(found)
    for each in (bound, step, alone):
        each.free()
    assert sum(device.memory().used.values()) == 0
