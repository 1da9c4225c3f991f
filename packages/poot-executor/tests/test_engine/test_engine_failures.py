"""The failure table, with faults raised by the runtime below the device."""

import numpy as np
import pytest

from poot_executor.errors import (
    CallOrder,
    CheckFailed,
    DeviceLost,
    DeviceTimeout,
    KernelFault,
    NeedsReset,
    OutOfMemory,
    Poisoned,
)

BOTH = pytest.mark.parametrize("waits_for_one", [False, True])


def assert_poisoned(lab, executable, entry):
    """Every call is refused, and none of them reaches the runtime."""
    calls = lab.runtime.total
    for call in (
        lab.executable,
        lambda: lab.engine.add_entry(executable, lab.program()),
        lambda: lab.engine.prepare(executable, entry),
        lambda: lab.engine.step(executable, entry, lab.inputs()),
        lambda: lab.engine.submit(executable, entry, lab.inputs()),
        lambda: lab.engine.collect(1),
        lambda: lab.engine.reset_state(executable),
        lambda: lab.engine.remove_entry(executable, entry),
        lambda: lab.engine.unload(executable),
    ):
        with pytest.raises(Poisoned, match="open the device again in a new process"):
            call()
    stats = lab.engine.stats()
    assert stats.poisoned and stats.memory is None
    lab.engine.close()
    lab.engine.close()
    assert lab.runtime.total == calls
    assert lab.device.refused == 0  # the device was not even asked


def assert_needs_reset(lab, executable, entry, message):
    """Steps are refused before anything is touched; a reset makes the executable whole again."""
    calls = lab.runtime.total
    with pytest.raises(NeedsReset, match=message):
        lab.engine.step(executable, entry, lab.inputs())
    assert lab.runtime.total == calls
    lab.engine.reset_state(executable)
    assert (lab.engine.step(executable, entry, lab.inputs(x=2.0))["total"] == 2).all()


@pytest.mark.parametrize(("status", "error"), [("LOST", DeviceLost), ("TIMEOUT", DeviceTimeout)])
def test_a_loss_at_any_call_poisons_and_leaks(make_lab, status, error):
    """A session of loading, stepping, resetting and removing, lost at every one of its calls."""
    lost = 0
    while True:
        lab = make_lab()
        lab.runtime.fail(status, after=lost)
        executable, entry = lab.executable(), 0
        try:
            entry = lab.engine.add_entry(executable, lab.program(constants=b"c"))
            lab.engine.step(executable, entry, lab.inputs())
            first = lab.engine.submit(executable, entry, lab.inputs())
            second = lab.engine.submit(executable, entry, lab.inputs(x=4.0))
            lab.engine.collect(first)
            lab.engine.collect(second)
            large = lab.engine.add_entry(executable, lab.program(arena=1024))
            lab.engine.reset_state(executable)
            lab.engine.remove_entry(executable, large)
            lab.engine.unload(executable)
        except error:
            held = lab.held()
            assert_poisoned(lab, executable, entry)
            assert lab.held() == held
        else:
            break
        lost += 1
    assert lost > 40


@BOTH
def test_a_kernel_fault_discards_the_step_until_a_reset(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    with pytest.raises(KernelFault, match="kernel divide failed its check 7") as caught:
        lab.engine.step(executable, entry, lab.inputs(b=0))
    assert (caught.value.kernel, caught.value.code) == ("divide", 7)
    assert lab.engine.stats().failures == 1
    assert_needs_reset(lab, executable, entry, "KernelFault: kernel divide failed")


def test_a_kernel_fault_on_a_target_that_traps_poisons(make_lab):
    lab = make_lab(traps=True)
    executable, entry = lab.ready()
    with pytest.raises(KernelFault):
        lab.engine.step(executable, entry, lab.inputs(b=0))
    assert_poisoned(lab, executable, entry)


@BOTH
def test_a_kernel_fault_takes_the_step_behind_it_along(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, entry = lab.ready()
    first = lab.engine.submit(executable, entry, lab.inputs(b=0))
    second = lab.engine.submit(executable, entry, lab.inputs())
    with pytest.raises(KernelFault):
        lab.engine.collect(first)
    with pytest.raises(NeedsReset, match=f"step {second} was discarded"):
        lab.engine.collect(second)
    assert not lab.runtime.queue and not lab.runtime.results
    assert_needs_reset(lab, executable, entry, "KernelFault")
    with pytest.raises(CallOrder):
        lab.engine.collect(second)


@pytest.mark.parametrize(("checks", "code", "index"), [((5, -1), 0, 5), ((-1, 0), 1, 0), ((3, 4), 0, 3)])
def test_a_failed_check_rejects_the_step_before_its_outputs(lab, checks, code, index):
    executable, entry = lab.ready()
    with pytest.raises(CheckFailed) as caught:
        lab.engine.step(executable, entry, lab.inputs(check0=checks[0], check1=checks[1]))
    assert (caught.value.code, caught.value.index) == (code, index)
    assert_needs_reset(lab, executable, entry, "CheckFailed: validation check")


@BOTH
def test_a_failed_check_discards_the_step_behind_it(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, entry = lab.ready()
    first = lab.engine.submit(executable, entry, lab.inputs(check0=2))
    # Where the device waits for one, the second step faults as well, and nobody asks any more.
    second = lab.engine.submit(executable, entry, lab.inputs(b=0 if waits_for_one else 2))
    with pytest.raises(CheckFailed):
        lab.engine.collect(first)
    with pytest.raises(NeedsReset):
        lab.engine.collect(second)
    assert not lab.runtime.queue and not lab.runtime.results
    assert_needs_reset(lab, executable, entry, "CheckFailed")


@BOTH
def test_a_failed_check_leaves_another_executables_step_alone(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, entry = lab.ready()
    other, second = lab.ready()
    bad = lab.engine.submit(executable, entry, lab.inputs(check1=1))
    good = lab.engine.submit(other, second, lab.inputs(x=6.0))
    with pytest.raises(CheckFailed):
        lab.engine.collect(bad)
    assert (lab.engine.collect(good)["total"] == 6).all()
    assert (lab.engine.step(other, second, lab.inputs())["total"] == 7).all()
    assert_needs_reset(lab, executable, entry, "CheckFailed")


def test_a_reset_that_fails_has_to_be_done_again(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    lab.runtime.fail("MEMORY", only=("copy_in",))
    with pytest.raises(OutOfMemory):
        lab.engine.reset_state(executable)
    assert_needs_reset(lab, executable, entry, "reset_state did not finish")


@pytest.mark.parametrize("call", ["launch", "wait", "copy_out"])
def test_a_step_that_fails_once_it_replayed_needs_a_reset(lab, call):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    lab.runtime.fail("BUSY", only=(call,))
    with pytest.raises(RuntimeError, match=f"{call}: BUSY"):
        lab.engine.step(executable, entry, lab.inputs())
    assert_needs_reset(lab, executable, entry, "BUSY")


def test_a_step_that_fails_before_it_replayed_needs_none(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    lab.runtime.fail("MEMORY", only=("copy_in",))
    with pytest.raises(OutOfMemory):
        lab.engine.step(executable, entry, lab.inputs(x=5.0, a=8))
    # The write that failed may have changed a part of the block: the next one writes all of it.
    before = lab.engine.stats().input_bytes
    out = lab.engine.step(executable, entry, lab.inputs(x=5.0, a=8))
    assert (out["total"] == 6).all() and out["quotient"] == 4
    assert lab.engine.stats().input_bytes - before == 16 + 32 + 4 * 16


@BOTH
def test_a_submission_that_fails_takes_the_steps_in_flight_along(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, entry = lab.ready()
    other, second = lab.ready()
    pending = lab.engine.submit(other, second, lab.inputs())
    lab.runtime.fail("BUSY", only=("launch",))
    with pytest.raises(RuntimeError, match="BUSY"):
        lab.engine.submit(executable, entry, lab.inputs())
    with pytest.raises(NeedsReset):
        lab.engine.collect(pending)
    assert not lab.runtime.queue
    assert_needs_reset(lab, executable, entry, "BUSY")
    assert_needs_reset(lab, other, second, "BUSY")


def test_a_device_that_cannot_clean_up_after_a_failed_step_poisons(lab):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    lab.runtime.fail("BUSY", only=("launch",))
    lab.runtime.fail("BUSY", only=("wait",))
    with pytest.raises(RuntimeError, match="launch: BUSY") as caught:
        lab.engine.step(executable, entry, lab.inputs())
    assert "the engine is poisoned" in caught.value.__notes__[0]
    assert_poisoned(lab, executable, entry)


@pytest.mark.parametrize(("making", "undoing"), [("create_graph", "free"), ("malloc", "free")])
def test_a_device_that_cannot_undo_an_addition_poisons(lab, making, undoing):
    executable, first = lab.ready(arena=64)
    lab.engine.step(executable, first, lab.inputs())
    lab.runtime.fail("MEMORY", after=1 if making == "malloc" else 0, only=(making,))
    lab.runtime.fail("BUSY", only=(undoing,))
    with pytest.raises(OutOfMemory):
        lab.engine.add_entry(executable, lab.program(arena=256))
    assert_poisoned(lab, executable, first)


@pytest.mark.parametrize("call", ["destroy_graph", "free"])
def test_a_device_that_cannot_give_memory_back_poisons(lab, call):
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    lab.runtime.fail("BUSY", only=(call,))
    with pytest.raises(RuntimeError, match=f"{call}: BUSY"):
        lab.engine.remove_entry(executable, entry)
    assert_poisoned(lab, executable, entry)


def test_a_device_lost_while_cleaning_up_poisons_and_says_so(lab):
    executable, entry = lab.ready()
    first = lab.engine.submit(executable, entry, lab.inputs(check0=1))
    lab.engine.submit(executable, entry, lab.inputs())
    lab.runtime.fail("LOST", after=1, only=("wait",))
    with pytest.raises(CheckFailed) as caught:
        lab.engine.collect(first)
    assert "the engine is poisoned" in caught.value.__notes__[0]
    assert "DeviceLost" in lab.engine.stats().poisoned
    assert_poisoned(lab, executable, entry)


@BOTH
def test_an_interrupted_wait_needs_a_reset_and_the_device_is_waited_for(make_lab, waits_for_one):
    lab = make_lab(waits_for_one=waits_for_one)
    executable, entry = lab.ready()
    lab.engine.step(executable, entry, lab.inputs())
    lab.runtime.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        lab.engine.step(executable, entry, lab.inputs())
    assert not lab.runtime.queue
    assert_needs_reset(lab, executable, entry, "KeyboardInterrupt")


@pytest.mark.parametrize("call", ["reset_state", "unload", "close"])
def test_submitted_steps_that_cannot_be_waited_for_poison(lab, call):
    executable, entry = lab.ready()
    lab.engine.submit(executable, entry, lab.inputs())
    lab.runtime.fail("BUSY", only=("wait",))
    with pytest.raises(RuntimeError, match="wait: BUSY"):
        getattr(lab.engine, call)(*[executable] if call != "close" else [])
    assert_poisoned(lab, executable, entry)


def test_a_reset_forgets_the_steps_that_were_lost(lab):
    executable, entry = lab.ready()
    first, second = (lab.engine.submit(executable, entry, lab.inputs(b=b)) for b in (0, 2))
    with pytest.raises(KernelFault):
        lab.engine.collect(first)
    lab.engine.reset_state(executable)
    for step in (first, second):
        with pytest.raises(CallOrder, match="none is in flight"):
            lab.engine.collect(step)


def test_a_failure_of_one_executable_leaves_the_others_in_order(lab):
    executable, entry = lab.ready()
    other, second = lab.ready()
    with pytest.raises(KernelFault):
        lab.engine.step(executable, entry, lab.inputs(b=0))
    np.testing.assert_array_equal(lab.engine.step(other, second, lab.inputs())["scaled"], lab.weight * 3)
    lab.engine.unload(executable)
    assert lab.engine.stats().executables == 1
