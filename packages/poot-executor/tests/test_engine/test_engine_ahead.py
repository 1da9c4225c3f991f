"""One step submitted ahead of another: what it computes, and the order that calls must keep.

Both ways in which a device may wait are tried: for the oldest replay, and for all of them.
"""

import numpy as np
import pytest

from poot_executor.errors import CallOrder

BOTH = pytest.mark.parametrize("waits_for_one", [False, True])


@BOTH
def test_steps_submitted_ahead_equal_steps_one_by_one(make_lab, waits_for_one):
    rng = np.random.default_rng(11)
    draws = [{"x": float(rng.integers(9)), "v": float(rng.integers(9)), "a": int(rng.integers(99))} for _ in range(30)]
    plain, ahead = make_lab(), make_lab(waits_for_one=waits_for_one)
    executable, entry = plain.ready()
    expected = [plain.engine.step(executable, entry, plain.inputs(**draw)) for draw in draws]
    executable, entry = ahead.ready()
    got, submitted = [], []
    for draw in draws:
        submitted.append(ahead.engine.submit(executable, entry, ahead.inputs(**draw)))
        if len(submitted) == 2:
            got.append(ahead.engine.collect(submitted.pop(0)))
    got.append(ahead.engine.collect(submitted.pop()))
    for one, other in zip(expected, got, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    stats = ahead.engine.stats()
    assert (stats.recordings, stats.steps) == (2, 30)


@BOTH
def test_entries_alternate_over_one_state(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, large = lab.ready(rows=2)
    small = lab.engine.add_entry(executable, lab.program(rows=1))
    first = lab.engine.submit(executable, large, lab.inputs(rows=2, x=1.0))
    second = lab.engine.submit(executable, small, lab.inputs(rows=1, x=2.0))
    assert (lab.engine.collect(first)["total"] == 1).all()
    third = lab.engine.submit(executable, large, lab.inputs(rows=2, x=4.0))
    assert (lab.engine.collect(second)["total"] == 3).all()
    np.testing.assert_array_equal(lab.engine.collect(third)["total"][:, 0], [7, 5])


def test_a_third_step_is_refused_and_the_two_stand(lab):
    executable, entry = lab.ready()
    first, second = (lab.engine.submit(executable, entry, lab.inputs()) for _ in range(2))
    calls = lab.runtime.total
    with pytest.raises(CallOrder, match=f"collect step {first} first"):
        lab.engine.submit(executable, entry, lab.inputs())
    assert lab.runtime.total == calls
    assert (lab.engine.collect(first)["total"] == 1).all()
    assert (lab.engine.collect(second)["total"] == 2).all()


def test_collecting_out_of_order_or_twice_or_nothing_is_refused(lab):
    executable, entry = lab.ready()
    first, second = (lab.engine.submit(executable, entry, lab.inputs()) for _ in range(2))
    with pytest.raises(CallOrder, match=f"step {first} is the oldest"):
        lab.engine.collect(second)
    lab.engine.collect(first)
    with pytest.raises(CallOrder, match=f"step {second} is the oldest"):
        lab.engine.collect(first)
    lab.engine.collect(second)
    with pytest.raises(CallOrder, match="none is in flight"):
        lab.engine.collect(second)


def test_what_would_disturb_a_submitted_step_is_refused(lab):
    executable, entry = lab.ready()
    step = lab.engine.submit(executable, entry, lab.inputs())
    calls = lab.runtime.total
    for call in (
        lambda: lab.engine.step(executable, entry, lab.inputs()),
        lambda: lab.engine.add_entry(executable, lab.program()),
        lambda: lab.engine.remove_entry(executable, entry),
        lambda: lab.engine.prepare(executable, entry),
    ):
        with pytest.raises(CallOrder, match="collect them before"):
            call()
    assert lab.runtime.total == calls
    assert (lab.engine.collect(step)["total"] == 1).all()


@BOTH
def test_a_reset_or_unload_waits_for_submitted_steps_and_discards_them(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, entry = lab.ready()
    for _ in range(2):
        lab.engine.submit(executable, entry, lab.inputs(x=3.0))
    lab.engine.reset_state(executable)
    assert (lab.engine.step(executable, entry, lab.inputs(x=1.0))["total"] == 1).all()
    lab.engine.submit(executable, entry, lab.inputs())
    lab.engine.unload(executable)
    assert lab.held() == (0, 0, 0)


def test_a_reset_does_not_discard_another_executables_step(lab):
    executable, entry = lab.ready()
    other, second = lab.ready()
    theirs = lab.engine.submit(other, second, lab.inputs(x=5.0))
    lab.engine.reset_state(executable)
    mine = lab.engine.submit(executable, entry, lab.inputs())
    with pytest.raises(CallOrder, match="another executable"):
        lab.engine.reset_state(executable)
    assert (lab.engine.collect(theirs)["total"] == 5).all()
    assert (lab.engine.collect(mine)["total"] == 1).all()


def test_with_a_step_ahead_hardly_any_host_time_is_exposed(make_lab):
    lab = make_lab(waits_for_one=True, wait_seconds=0.002)
    executable, entry = lab.ready()
    lab.engine.prepare(executable, entry, ahead=True)
    pending = lab.engine.submit(executable, entry, lab.inputs())
    exposed = lab.engine.stats().exposed_host_time
    for _ in range(10):
        ahead = lab.engine.submit(executable, entry, lab.inputs())
        lab.engine.collect(pending)
        pending = ahead
    stats = lab.engine.stats()
    assert stats.exposed_host_time == exposed and stats.between_time == 0
    lab.engine.collect(pending)
    assert lab.engine.stats().exposed_host_time > exposed
