"""Covered contractions on the NPU of files, everything else on the host."""

import gc

import numpy as np
import pytest

from poot_executor.compile import compile
from poot_executor.device import BufferKind
from poot_executor.dtype import BF16, F16, F32, round_bf16
from poot_executor.engine import Engine
from poot_executor.errors import DeviceLost, DeviceTimeout, NeedsReset, OutOfMemory, Poisoned
from poot_executor.formats import FORMATS
from poot_executor.graph import Builder, SlotKey, SlotKind, StateKey, TensorType
from poot_executor.graph import primitives as p
from poot_executor.settings import DeviceSettings
from poot_executor.weights import StoredTensor, WeightKey
from poot_npu.xdna.driver import XdnaDriver
from poot_npu.xdna.plan import fixed_values, plan

X = SlotKey(SlotKind.INPUT, "x")
OPERANDS = ("activations", "weights", "results")
TOKENS, INNER, OUTPUTS = 3, 8, 5
SHAPE = (TOKENS, INNER, OUTPUTS)


class Store:
    """Weights by name."""

    def __init__(self, **arrays):
        self.arrays = arrays

    def names(self):
        return tuple(self.arrays)

    def tensor(self, name):
        data = self.arrays[name]
        return StoredTensor(name, FORMATS["f32"], data.shape, np.ascontiguousarray(data).reshape(-1).view(np.uint8))


def weight(name):
    return WeightKey(None, name)


def projections(names=("q", "k", "v"), tokens=TOKENS):
    """Each weight [outputs, inner] times the same activations, and a running sum of them."""
    builder = Builder("projections")
    x = builder.slot(X, TensorType((tokens, INNER), F32))
    total = builder.state(StateKey(None, "total"), TensorType((tokens, OUTPUTS), F32))
    for name in names:
        y = p.matmul(x, p.transpose(builder.weight(weight(name), TensorType((OUTPUTS, INNER), F32)), (1, 0)))
        builder.output(name, y)
        total = total + y
    builder.next_state(StateKey(None, "total"), total)
    builder.output("total", total)
    return builder.build()


@pytest.fixture
def open_npu(sysfs, pyxrt, tmp_path, kernel_set):
    """Open the device with a kernel set for these shapes."""
    opened = []

    def make(shapes=(SHAPE,), timeout=60.0, **options):
        folder = kernel_set(tmp_path / "set", shapes, **options)
        opened.append(XdnaDriver(sysfs).open(str(folder), DeviceSettings(timeout)))
        return opened[-1]

    yield make
    for device in opened:
        device.close()


def add(engine, store, graph):
    executable = engine.load_weights(store, {weight(name): name for name in store.names()})
    return executable, engine.add_entry(executable, compile(graph, engine.target_set[0]))


def weights(rng, names=("q", "k", "v")):
    return Store(**{name: rng.standard_normal((OUTPUTS, INNER), np.float32) for name in names})


def test_projections_of_one_input_are_one_run_list(open_npu, pyxrt, rng):
    store = weights(rng)
    with Engine(open_npu()) as engine:
        executable, entry = add(engine, store, projections())
        del pyxrt.runlist.executed[:]
        total = np.zeros((TOKENS, OUTPUTS), np.float32)
        for _ in range(3):
            x = rng.standard_normal((TOKENS, INNER), np.float32)
            got = engine.step(executable, entry, {X: x})
            for name in store.names():
                np.testing.assert_allclose(got[name], x @ store.arrays[name].T, rtol=0, atol=1e-5)
                total = total + got[name]
            np.testing.assert_array_equal(got["total"], total)
        assert pyxrt.runlist.executed == [3, 3, 3]


@pytest.mark.parametrize("dtypes", [("f32", "f32", "f32"), ("bf16", "bf16", "f32"), ("f16", "bf16", "bf16")])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("order", [OPERANDS, OPERANDS[::-1]])
@pytest.mark.parametrize("wait", ["duration", "milliseconds"])
def test_operands_go_as_the_kernel_wants_them(open_npu, monkeypatch, rng, dtypes, transposed, order, wait):
    monkeypatch.setenv("FAKE_XRT_WAIT", wait)
    store = weights(rng, ["q"])
    x = rng.standard_normal((TOKENS, INNER), np.float32)
    with Engine(open_npu(dtypes=dtypes, transposed=transposed, order=order)) as engine:
        got = engine.step(*add(engine, store, projections(["q"])), {X: x})["q"]
    rounded = {"f32": lambda a: a, "f16": lambda a: a.astype(np.float16).astype(np.float32), "bf16": round_bf16}
    a, w, y = (rounded[dtype] for dtype in dtypes)
    expected = y(a(x) @ w(store.arrays["q"]).T)
    # Sums in another order: a few last places of float32, or one of what the result is rounded to.
    step = {"f32": 1e-6, "f16": 2**-10, "bf16": 2**-7}[dtypes[2]]
    bound = step * np.abs(expected) + 1e-5 * (np.abs(x) @ np.abs(store.arrays["q"]).T)
    assert (np.abs(got - expected) <= bound).all()
    # The roundings are seen: without them the result is another one.
    if dtypes[0] != "f32":
        assert np.abs(got - x @ store.arrays["q"].T).max() > 1e-4


def test_what_no_kernel_covers_runs_on_the_host(open_npu, pyxrt, rng):
    store = weights(rng)
    x = rng.standard_normal((TOKENS, INNER), np.float32)
    with Engine(open_npu([(TOKENS + 1, INNER, OUTPUTS)])) as engine:
        del pyxrt.runlist.executed[:]
        got = engine.step(*add(engine, store, projections()), {X: x})
        assert pyxrt.runlist.executed == []
    np.testing.assert_allclose(got["v"], x @ store.arrays["v"].T, rtol=0, atol=1e-5)


def test_chains_alternate_and_host_work_comes_first():
    """A norm between two projections splits them; an independent sum waits for neither."""
    builder = Builder("chain")
    x = builder.slot(X, TensorType((2, 4), F32))
    w = [builder.weight(weight(name), TensorType((4, 4), F32)) for name in "abc"]
    first = p.matmul(x, w[0])
    second = p.matmul(p.sqrt(p.abs_(first)), w[1])
    builder.output("second", second)
    builder.output("third", p.matmul(x, w[2]))
    builder.output("scores", p.matmul(first, p.transpose(second, (1, 0))))  # of step values alone: never covered
    planned = plan(builder.build(), lambda shape: shape == (2, 4, 4))
    shown = [(s.on_npu, [w.equation.op for w in s.works]) for s in planned.stages]
    assert shown == [
        (True, ["matmul", "matmul"]), (False, ["abs", "sqrt"]), (True, ["matmul"]), (False, ["transpose", "matmul"])
    ]  # fmt: skip


def test_decoded_weights_do_not_pile_up():
    """What depends on weights alone is computed right before each use and dead right after it."""
    builder = Builder("tied")
    x = builder.slot(X, TensorType((2, 4), F32))
    w = p.transpose(builder.weight(weight("a"), TensorType((4, 4), F32)), (1, 0))
    y = p.matmul(p.sqrt(p.abs_(p.matmul(x, w))), w)
    builder.output("y", y)
    graph = builder.build()
    (stage,) = plan(graph, lambda shape: False).stages
    assert [work.equation.op for work in stage.works] == ["transpose", "matmul", "abs", "sqrt", "transpose", "matmul"]
    decoded = stage.works[0].equation.output
    assert decoded in fixed_values(graph)
    assert decoded in stage.works[1].dead and decoded in stage.works[5].dead
    covered = plan(graph, lambda shape: True)
    assert [work.equation.op for stage in covered.stages for work in stage.works] == ["matmul", "abs", "sqrt", "matmul"]


def test_entries_share_weights_and_give_them_back(open_npu, pyxrt, rng):
    store = weights(rng)
    device = open_npu([SHAPE, (1, INNER, OUTPUTS)])
    gc.collect()
    before, used = pyxrt.bo.alive, device.memory().used
    engine = Engine(device)
    executable, entry = add(engine, store, projections())
    engine.prepare(executable, entry)
    first = pyxrt.bo.alive
    assert first - before == 3 + 2 * 3  # a weight each; activations and results of each run
    one = engine.add_entry(executable, compile(projections(tokens=TOKENS), engine.target_set[0]))
    engine.prepare(executable, one)
    assert pyxrt.bo.alive - first == 2 * 3
    counted = device.memory().used[BufferKind.WEIGHT] - used[BufferKind.WEIGHT]
    assert counted == 2 * 3 * OUTPUTS * INNER * 4  # as stored, and on the NPU
    engine.unload(executable)
    engine.close()
    gc.collect()
    assert pyxrt.bo.alive == before
    assert device.memory().used == used


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("ERROR", DeviceLost), ("ABORT", DeviceLost), ("NORESPONSE", DeviceLost), ("LOST", DeviceLost),
        ("TIMEOUT", DeviceTimeout), ("SUBMITTED", DeviceTimeout),
    ],
)  # fmt: skip
def test_a_run_that_fails_poisons(open_npu, monkeypatch, rng, state, error):
    x = rng.standard_normal((TOKENS, INNER), np.float32)
    device = open_npu(timeout=5)
    with Engine(device) as engine:
        executable, entry = add(engine, weights(rng), projections())
        engine.step(executable, entry, {X: x})
        monkeypatch.setenv("FAKE_XRT_STATE", state)
        with pytest.raises(error, match="new process"):
            engine.step(executable, entry, {X: x})
        with pytest.raises(Poisoned):
            engine.step(executable, entry, {X: x})
        assert engine.stats().poisoned
        with pytest.raises(Poisoned):
            device.allocate(BufferKind.ARENA, 4)


def test_memory_that_the_npu_has_not_is_out_of_memory(open_npu, monkeypatch, pyxrt, rng):
    x = rng.standard_normal((TOKENS, INNER), np.float32)
    with Engine(open_npu([SHAPE, (1, INNER, OUTPUTS)])) as engine:
        executable, entry = add(engine, weights(rng), projections())
        real = pyxrt.bo.__init__
        monkeypatch.setattr(pyxrt.bo, "alive", 0)

        def full(self, *arguments):
            pyxrt.bo.alive += 1  # what __del__ takes back
            raise RuntimeError("Unable to allocate memory")

        monkeypatch.setattr(pyxrt.bo, "__init__", full)
        with pytest.raises(OutOfMemory, match=f"asked for {TOKENS * INNER * 4} bytes of activations"):
            engine.step(executable, entry, {X: x})
        monkeypatch.setattr(pyxrt.bo, "__init__", real)
        try:
            got = engine.step(executable, entry, {X: x})
        except NeedsReset:
            engine.reset_state(executable)
            got = engine.step(executable, entry, {X: x})
        assert got["q"].shape == (TOKENS, OUTPUTS)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_results_come_in_the_graphs_dtype(open_npu, rng, dtype):
    builder = Builder("narrow")
    x = builder.slot(X, TensorType((TOKENS, INNER), dtype))
    w = p.cast(builder.weight(weight("w"), TensorType((INNER, OUTPUTS), F32)), dtype)
    builder.output("y", p.matmul(x, w))
    store = Store(w=rng.standard_normal((INNER, OUTPUTS), np.float32))
    held = round_bf16 if dtype is BF16 else lambda a: a.astype(np.float16)
    given = held(rng.standard_normal((TOKENS, INNER), np.float32))
    with Engine(open_npu()) as engine:
        got = engine.step(*add(engine, store, builder.build()), {X: given})["y"]
    wide = given.astype(np.float32) @ held(store.arrays["w"]).astype(np.float32)
    step = 2**-7 if dtype is BF16 else 2**-10
    assert (np.abs(got.astype(np.float32) - wide) <= step * np.abs(wide) + 1e-4).all()
