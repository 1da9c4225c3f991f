"""Entries: shared state and arena, growth, transactions, and that everything is given back."""

import numpy as np
import pytest

from poot_executor.compile.target import Caps, Target
from poot_executor.device import BufferKind
from poot_executor.dtype import F32, I32
from poot_executor.errors import BindError, CallOrder, OutOfMemory


def test_entries_share_state_and_a_smaller_one_sees_a_prefix(lab):
    executable, large = lab.ready(rows=3)
    small = lab.engine.add_entry(executable, lab.program(rows=1))
    assert lab.engine.stats().memory.used[BufferKind.STATE] == 48
    lab.engine.step(executable, large, lab.inputs(rows=3, x=1.0))
    out = lab.engine.step(executable, small, lab.inputs(rows=1, x=10.0))
    np.testing.assert_array_equal(out["total"], np.full((1, 4), 11))
    out = lab.engine.step(executable, large, lab.inputs(rows=3, x=0.0))
    np.testing.assert_array_equal(out["total"][:, 0], [11, 1, 1])


def test_state_grows_while_nothing_was_stepped(lab):
    executable, small = lab.ready(rows=1)
    lab.engine.prepare(executable, small)
    large = lab.engine.add_entry(executable, lab.program(rows=3))
    assert lab.engine.stats().recordings == 2  # the small one again, over the larger state
    lab.engine.step(executable, large, lab.inputs(rows=3, x=1.0))
    out = lab.engine.step(executable, small, lab.inputs(rows=1, x=10.0))
    assert (out["total"] == 11).all()
    assert lab.engine.stats().memory.used[BufferKind.STATE] == 48


def test_state_that_holds_something_does_not_grow(lab):
    executable, small = lab.ready(rows=1)
    lab.engine.step(executable, small, lab.inputs(rows=1, x=10.0))
    held = lab.held()
    with pytest.raises(BindError, match=r"state total would grow from f32\[1, 4\] to f32\[3, 4\]"):
        lab.engine.add_entry(executable, lab.program(rows=3))
    assert lab.held() == held
    assert (lab.engine.step(executable, small, lab.inputs(rows=1, x=1.0))["total"] == 11).all()
    lab.engine.reset_state(executable)
    large = lab.engine.add_entry(executable, lab.program(rows=3))
    assert (lab.engine.step(executable, large, lab.inputs(rows=3, x=2.0))["total"] == 2).all()
    assert (lab.engine.step(executable, small, lab.inputs(rows=1, x=2.0))["total"] == 4).all()


@pytest.mark.parametrize(("shape", "dtype"), [((2, 5), F32), ((2, 4), I32), ((8,), F32), ((), F32)])
def test_state_of_another_type_is_refused_with_both(lab, shape, dtype):
    executable, _ = lab.ready()
    make = lab.maker()
    make.state(lab.TOTAL, shape, dtype)
    held = lab.held()
    with pytest.raises(BindError) as caught:
        lab.engine.add_entry(executable, make.build({}))
    assert "state total is f32[2, 4]" in str(caught.value)
    assert f"the program has {dtype}[{', '.join(map(str, shape))}]" in str(caught.value)
    assert lab.held() == held


def test_the_arena_is_shared_and_grows_by_recording_again(lab):
    executable, first = lab.ready(arena=64)
    unrecorded = lab.engine.add_entry(executable, lab.program(rows=1, arena=32))
    lab.engine.step(executable, first, lab.inputs())
    graphs = set(lab.runtime.graphs)
    large = lab.engine.add_entry(executable, lab.program(rows=1, arena=256))
    stats = lab.engine.stats()
    assert stats.recordings == 2
    assert stats.memory.used[BufferKind.ARENA] == 256
    assert len(lab.runtime.graphs) == 1 and not graphs & set(lab.runtime.graphs)
    for entry, rows, total in ((first, 2, 2), (unrecorded, 1, 3), (large, 1, 4)):
        out = lab.engine.step(executable, entry, lab.inputs(rows=rows))
        assert (out["total"] == total).all()
    assert lab.engine.stats().recordings == 4


def test_a_smaller_arena_changes_nothing(lab):
    executable, first = lab.ready(arena=64)
    lab.engine.step(executable, first, lab.inputs())
    lab.engine.add_entry(executable, lab.program(arena=48))
    lab.engine.add_entry(executable, lab.program(arena=0))
    assert lab.engine.stats().recordings == 1
    assert lab.engine.stats().memory.used[BufferKind.ARENA] == 64


def test_a_program_for_another_target_is_refused(lab):
    executable = lab.executable()
    program = lab.program()
    for target in (Target("other", program.target.caps), Target("fake", Caps())):
        make = type(lab.maker())(target)
        with pytest.raises(BindError, match=f"compiled for target {target.kind}"):
            lab.engine.add_entry(executable, make.build({}))
    assert lab.engine.target_set == (lab.device.target,)


@pytest.mark.parametrize("status", ["MEMORY", "BUSY"])
def test_a_failure_anywhere_in_add_entry_changes_nothing(make_lab, status):
    """Every call of the runtime that an addition with growth makes fails once."""
    expected = OutOfMemory if status == "MEMORY" else RuntimeError
    failed = 0
    while True:
        lab = make_lab()
        executable, first = lab.ready(rows=1, arena=64)
        lab.engine.prepare(executable, first, ahead=True)
        program = lab.program(weight=lab.TIED, rows=3, arena=512, constants=b"c" * 40)
        held, entries = lab.held(), lab.engine.stats().entries
        calls = lab.runtime.total
        # Undoing frees and releases: those have their own test.
        making = ("malloc", "copy_in", "create_graph")
        lab.runtime.fail(status, after=failed, only=making)
        try:
            added = lab.engine.add_entry(executable, program)
        except expected:
            assert lab.runtime.total > calls
            assert lab.held() == held
            assert lab.engine.stats().entries == entries
            out = lab.engine.step(executable, first, lab.inputs(rows=1))
            assert (out["total"] == 1).all()
            lab.engine.reset_state(executable)
            added = lab.engine.add_entry(executable, program)
        else:
            break
        assert (lab.engine.step(executable, added, lab.inputs(rows=3))["total"] == 1).all()
        lab.engine.unload(executable)
        assert lab.held() == (0, 0, 0)
        failed += 1
    assert failed == 8  # state, arena, constants and their copy, two blocks, two recordings


def test_out_of_memory_names_the_sizes_and_a_smaller_entry_fits(lab):
    lab.runtime.limit = 4096
    executable = lab.executable()
    with pytest.raises(OutOfMemory, match=r"asked for 8,000 bytes .*limit 4,096 bytes"):
        lab.engine.add_entry(executable, lab.program(arena=8000))
    assert lab.held() == (0, 0, 0)
    entry = lab.engine.add_entry(executable, lab.program(arena=800))
    assert (lab.engine.step(executable, entry, lab.inputs())["total"] == 1).all()


def test_a_first_step_that_cannot_record_leaves_the_entry_as_it_was(lab):
    executable, entry = lab.ready()
    held = lab.held()
    lab.runtime.fail("MEMORY", only=("create_graph",))
    with pytest.raises(OutOfMemory):
        lab.engine.step(executable, entry, lab.inputs())
    assert lab.held() == held
    assert (lab.engine.step(executable, entry, lab.inputs())["total"] == 1).all()


def test_removing_an_entry_gives_its_blocks_and_recordings_back(lab):
    executable, kept = lab.ready()
    lab.engine.step(executable, kept, lab.inputs())
    held = lab.held()
    entry = lab.engine.add_entry(executable, lab.program(rows=1, constants=b"x"))
    lab.engine.prepare(executable, entry, ahead=True)
    lab.engine.remove_entry(executable, entry)
    assert lab.held() == held
    with pytest.raises(BindError, match=f"has no entry {entry}"):
        lab.engine.step(executable, entry, lab.inputs(rows=1))
    assert (lab.engine.step(executable, kept, lab.inputs())["total"] == 2).all()


def test_unload_gives_everything_back_and_ids_are_not_used_again(lab):
    executable, entry = lab.ready(constants=b"x")
    lab.engine.step(executable, entry, lab.inputs())
    other, again = lab.ready()
    lab.engine.unload(executable)
    assert lab.engine.stats().executables == 1
    assert lab.engine.step(other, again, lab.inputs())["quotient"] == 3
    lab.engine.unload(other)
    assert lab.held() == (0, 0, 0)
    assert sum(lab.device.memory().used.values()) == 0
    for call in (
        lambda: lab.engine.unload(executable),
        lambda: lab.engine.add_entry(executable, lab.program()),
        lambda: lab.engine.step(executable, entry, lab.inputs()),
        lambda: lab.engine.prepare(executable, entry),
        lambda: lab.engine.remove_entry(executable, entry),
        lambda: lab.engine.reset_state(executable),
    ):
        with pytest.raises(BindError, match=f"no executable {executable}"):
            call()
    assert lab.executable() not in (executable, other)


def test_entries_belong_to_their_executable(lab):
    executable, _ = lab.ready()
    _, foreign = lab.ready()
    with pytest.raises(BindError, match=f"executable {executable} has no entry {foreign}"):
        lab.engine.step(executable, foreign, lab.inputs())


def test_close_gives_everything_back_and_is_idempotent(lab):
    executable, entry = lab.ready()
    lab.ready()
    with lab.engine as engine:
        engine.submit(executable, entry, lab.inputs())
    assert lab.held() == (0, 0, 0)
    calls = lab.runtime.total
    lab.engine.close()
    assert lab.engine.stats().memory is None
    for call in (lab.executable, lambda: lab.engine.step(executable, entry, lab.inputs())):
        with pytest.raises(CallOrder, match="closed"):
            call()
    assert lab.runtime.total == calls


def test_preparing_records_before_the_first_step(lab):
    executable, entry = lab.ready()
    lab.engine.prepare(executable, entry, ahead=True)
    lab.engine.prepare(executable, entry, ahead=True)
    prepared = lab.engine.stats()
    assert prepared.recordings == 2
    ahead = [lab.engine.submit(executable, entry, lab.inputs()) for _ in range(2)]
    assert [int(lab.engine.collect(step)["total"][0, 0]) for step in ahead] == [1, 2]
    stats = lab.engine.stats()
    assert (stats.recordings, stats.allocations) == (2, prepared.allocations)
