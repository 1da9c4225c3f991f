"""Steps: what they compute, what they write and read, and that replays prepare nothing."""

import numpy as np
import pytest

from poot_executor.device import BufferKind
from poot_executor.dtype import DType, round_bf16
from poot_executor.errors import BindError


def test_a_step_computes_and_state_carries_over(lab):
    executable, entry = lab.ready()
    first = lab.engine.step(executable, entry, lab.inputs(x=1.5))
    second = lab.engine.step(executable, entry, lab.inputs(x=2.0, a=9, b=2))
    np.testing.assert_array_equal(first["total"], np.full((2, 4), 1.5))
    np.testing.assert_array_equal(second["total"], np.full((2, 4), 3.5))
    np.testing.assert_array_equal(first["scaled"], lab.weight * 3)
    assert (first["quotient"], second["quotient"]) == (3, 4)
    assert set(first) == {"total", "scaled", "quotient"} and len(first) == 3


def test_outputs_are_read_only_and_outlive_later_steps(lab):
    executable, entry = lab.ready()
    first = lab.engine.step(executable, entry, lab.inputs(x=1.0))
    lab.engine.step(executable, entry, lab.inputs(x=5.0))
    assert (first["total"] == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        first["total"][0, 0] = 9


def test_reset_zeroes_the_state(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs(x=1.0))
    lab.engine.reset_state(executable)
    assert (lab.engine.step(executable, entry, lab.inputs(x=4.0))["total"] == 4).all()


def test_a_reset_writes_zeros_in_bounded_chunks(make_lab, monkeypatch):
    lab = make_lab()
    monkeypatch.setattr("poot_executor.engine.state.ZERO_BYTES", 64)
    executable, entry = lab.ready(rows=9)  # 144 bytes: two whole chunks and a rest
    lab.engine.step(executable, entry, lab.inputs(rows=9, x=1.0))
    before = lab.runtime.calls["copy_in"]
    lab.engine.reset_state(executable)
    assert lab.runtime.calls["copy_in"] - before == 3
    assert (lab.engine.step(executable, entry, lab.inputs(rows=9, x=2.0))["total"] == 2).all()


def test_after_the_first_step_nothing_is_recorded_allocated_or_uploaded(lab):
    executable, entry = lab.ready()
    assert lab.engine.stats().recordings == 0
    lab.engine.step(executable, entry, lab.inputs())
    first, calls = lab.engine.stats(), lab.runtime.calls.copy()
    assert (first.recordings, first.replays) == (1, 1)
    for position in range(200):
        lab.engine.step(executable, entry, lab.inputs(x=float(position), a=position))
    last = lab.engine.stats()
    assert (last.steps, last.replays) == (201, 201)
    assert (last.recordings, last.allocations, last.uploads) == (
        first.recordings,
        first.allocations,
        first.uploads,
    )
    for name in ("malloc", "free", "create_graph", "destroy_graph"):
        assert lab.runtime.calls[name] == calls[name]


def test_a_step_is_one_write_one_launch_one_wait_one_read(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    before = lab.runtime.calls.copy()
    lab.engine.step(executable, entry, lab.inputs(x=7.0, v=8.0, a=1))
    spent = lab.runtime.calls - before
    assert spent == {"copy_in": 1, "launch": 1, "wait": 1, "copy_out": 1}


def test_equal_inputs_are_not_written_again(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    before, stats = lab.runtime.calls["copy_in"], lab.engine.stats()
    out = lab.engine.step(executable, entry, lab.inputs())
    assert (out["total"] == 2).all()
    assert lab.runtime.calls["copy_in"] == before
    assert lab.engine.stats().unchanged_inputs == stats.unchanged_inputs + 1


def test_only_the_changed_bytes_are_written(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs(a=6))
    before = lab.engine.stats().input_bytes
    assert lab.engine.step(executable, entry, lab.inputs(a=8))["quotient"] == 4
    assert lab.engine.stats().input_bytes - before == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, i: i.pop(k("x")), r"input input\.x is missing: the entry has 6 inputs, 5"),
        (lambda k, i: i.update({k("y"): np.zeros(1)}), r"input input\.y is unknown"),
        (
            lambda k, i: i.update({k("x"): np.zeros((4, 2), np.float32)}),
            r"input input\.x must be f32\[2, 4\].*not float32\[4, 2\]",
        ),
        (
            lambda k, i: i.update({k("x"): np.zeros((2, 4), np.float64)}),
            r"input input\.x must be f32\[2, 4\].*not float64\[2, 4\]",
        ),
        (lambda k, i: i.update({k("a"): np.zeros(1, np.int32)}), r"input input\.a .*not int32\[1\]"),
        (lambda k, i: i.update({k("a"): 6}), r"input input\.a must be an array i32\[\], not int"),
    ],
)
def test_a_wrong_input_is_named_and_nothing_is_touched(lab, change, message):
    executable, entry = lab.ready()
    inputs = lab.inputs()
    change(lab.key, inputs)
    calls = lab.runtime.total
    with pytest.raises(BindError, match=message):
        lab.engine.step(executable, entry, inputs)
    assert lab.runtime.total == calls
    assert (lab.engine.step(executable, entry, lab.inputs())["total"] == 1).all()


def test_every_dtype_goes_in_and_comes_out(lab):
    rng = np.random.default_rng(3)
    given = {
        DType.F32: rng.standard_normal((3, 5)).astype(np.float32),
        DType.F16: rng.standard_normal((3, 5)).astype(np.float16),
        DType.BF16: round_bf16(rng.standard_normal((3, 5)).astype(np.float32)),
        DType.I32: rng.integers(-9, 9, (3, 5), np.int32),
        DType.U32: rng.integers(0, 2**32, (3, 5), np.uint32),
        DType.I8: rng.integers(-128, 128, (3, 5), np.int8),
        DType.U8: rng.integers(0, 256, (3, 5), np.uint8),
        DType.BOOL: rng.integers(0, 2, (3, 5)).astype(bool),
    }
    make = lab.maker()
    slots = {d.value: make.slot(lab.key(d.value), (3, 5), d) for d in given}
    executable = lab.executable()
    entry = lab.engine.add_entry(executable, make.build(slots))
    out = lab.engine.step(executable, entry, {lab.key(d.value): a for d, a in given.items()})
    for dtype, array in given.items():
        np.testing.assert_array_equal(out[dtype.value], array)
        assert out[dtype.value].dtype == dtype.numpy


def test_inputs_need_not_be_contiguous(lab):
    executable, entry = lab.ready()
    inputs = lab.inputs()
    inputs[lab.key("x")] = np.arange(8, dtype=np.float32).reshape(4, 2).T
    out = lab.engine.step(executable, entry, inputs)
    np.testing.assert_array_equal(out["total"], np.arange(8).reshape(4, 2).T)


def test_stats_count_memory_by_kind_and_time(make_lab):
    lab = make_lab(seconds=0.25)
    executable, entry = lab.ready(arena=100, constants=b"12345")
    before = lab.engine.stats()
    assert (before.executables, before.entries, before.device_time) == (1, 1, None)
    assert before.memory.used[BufferKind.ARENA] == 112
    assert before.memory.used[BufferKind.STATE] == 32
    assert before.memory.used[BufferKind.CONSTANT] == 16
    assert (before.uploads, before.uploaded_bytes) == (1, 16)
    lab.engine.step(executable, entry, lab.inputs())
    lab.engine.step(executable, entry, lab.inputs())
    assert lab.engine.stats().device_time == 0.5


def test_a_device_that_does_not_tell_its_time_has_an_unknown_one(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    assert lab.engine.stats().device_time is None


def test_waiting_for_the_device_is_not_exposed_host_time(make_lab):
    lab = make_lab(wait_seconds=0.05)
    executable, entry = lab.ready()
    for _ in range(3):
        lab.engine.step(executable, entry, lab.inputs())
    stats = lab.engine.stats()
    assert stats.step_time >= 0.15
    assert 0 < stats.exposed_host_time < stats.step_time - 0.15 + 1e-3
    assert stats.between_time > 0


def test_constants_are_on_the_device_before_the_first_step(lab):
    lab.ready(constants=bytes(range(1, 22)))
    blocks = [block.tobytes() for block in lab.runtime.memory.values()]
    assert bytes(range(1, 22)) + bytes(11) in blocks
