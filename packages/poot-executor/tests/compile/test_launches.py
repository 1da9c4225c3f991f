"""Small dispatches launched as one: which join, in which order they run, and that what they store is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poot_eval.conformance.inputs import floats
from poot_eval.conformance.session import open_session
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, CompileOptions, Target, compile
from poot_executor.compile.launches import MOST_JOINED
from poot_executor.compile.movement import GATHER_CHECK
from poot_executor.compile.program import CopyCommand
from poot_executor.dtype import BF16, F32, I32
from poot_executor.errors import KernelFault
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

ALONE = Caps(group_threads=16, max_bindings=31, parallel_groups=4)
JOINED = replace(ALONE, joined_groups=8)
LAYER = ("projection", "contraction", "attention")
LANES = replace(JOINED, subgroup_width=8, features=frozenset(["subgroup"]))


def launches(match):
    """Each launch's regions."""
    return [d.region for d in match.program.dispatches]


@pytest.mark.parametrize("caps", [ALONE, JOINED], ids=["alone", "joined"])
def test_what_does_not_wait_for_each_other_is_launched_together(g, run, caps):
    """Grids of 3, 1 and 2 groups over values of their own, and of one both read."""
    x, y = g.floats(40), g.floats(7)
    g.output(p.exp(x))
    g.output(p.tanh(y))
    g.output(p.sin(p.slice_(x, (0,), (20,), (1,))))
    match = run(g, caps)
    if caps is ALONE:
        assert launches(match) == ["pointwise"] * 3
    else:
        assert launches(match) == ["pointwise+pointwise+pointwise"]
        (dispatch,) = match.program.dispatches
        assert dispatch.groups == (6, 1, 1)
        assert len(dispatch.args) == 5, "what two read is bound once"


@pytest.mark.parametrize("caps", [JOINED, LANES], ids=["plain", "lanes"])
def test_one_group_goes_on_with_what_it_stored(g, run, caps):
    """A pick of one row, and what is made of it: after a barrier, in the same launch."""
    logits, other = g.floats(1, 50), g.floats(1)
    token = p.argmax(logits, 1)
    g.output(token)
    g.output(p.cast(token, F32) * other + p.sum_(logits, 1))
    match = run(g, caps)
    assert sorted(match.regions) == ["argmax", "pointwise", "row_reduction"]
    assert len(match.program.dispatches) == 1


def test_several_groups_do_not_go_on(g, run):
    """A group does not see what others stored in the same launch."""
    x = g.floats(40)
    middle = p.exp(x)
    g.output(middle)
    g.output(p.tanh(p.concat([p.slice_(middle, (20,), (40,), (1,)), p.slice_(middle, (0,), (20,), (1,))], 0)))
    match = run(g, JOINED)
    assert launches(match) == ["pointwise", "pointwise"]


def test_a_region_of_two_dispatches_shares_both(g, run):
    """Rows that several groups reduce: the parts of two reductions beside each other, then what joins them."""
    logits = g.floats(1, 5000)
    g.output(p.argmax(logits, 1))
    g.output(p.reduce_max(logits * -2.0, 1))
    match = run(g, replace(JOINED, joined_groups=64, parallel_groups=64))
    assert [set(names.split("+")) for names in launches(match)] == [{"argmax", "row_reduction"}] * 2


def test_what_a_step_does_once_is_two_launches(decoder):
    """The angles before the layers; after them the pick of a token beside the search for what is not finite."""
    program = compile(decoder(1, 1).graph(), Target("paper", JOINED), CompileOptions())
    once = [d.region for d in program.dispatches if d.region.split("+")[0] not in LAYER]
    assert once == ["pointwise+pointwise", "argmax+row_reduction"]


def test_limits(g, run):
    """Bindings, groups and the number of dispatches end a launch; the next one begins."""
    for _ in range(MOST_JOINED + 3):
        g.output(p.exp(g.floats(3)))
    assert [names.count("+") + 1 for names in launches(run(g, replace(JOINED, joined_groups=64, max_bindings=64)))] == [
        MOST_JOINED,
        3,
    ]
    assert [names.count("+") + 1 for names in launches(run(g, replace(JOINED, max_bindings=6)))] == [3] * 6 + [1]
    assert all(d.groups[0] <= 8 for d in run(g, JOINED).program.dispatches)


def test_contractions_and_writes_stay_by_themselves(g, run):
    """Their grids are chosen for them alone; a write may be preceded by a copy."""
    format_ = FORMATS["f32"]
    x = g.floats(1, 32)
    g.output(f.linear(x, g.weight(format_, 4, 32), format_))
    g.output(p.exp(g.floats(3)))
    key, before = g.state("rows", np.zeros((5, 4), np.float32), F32)
    g.builder.next_state(key, p.scatter_update(before, g.slot(np.array([2], np.int32), I32), g.floats(1, 4)))
    g.output(p.tanh(g.floats(3)))
    match = run(g, JOINED)
    assert sorted(launches(match)) == ["contraction", "pointwise+pointwise", "scatter"]


def test_a_check_in_a_joined_launch_names_its_code(g):
    """A gather out of its range beside others: the fault is the gather's."""
    g.output(p.exp(g.floats(3)))
    g.output(p.gather(g.floats(4, 2), g.slot(np.array([1, 9], np.int32), I32)))
    with open_session(ReferenceDevice(JOINED), g.builder.build(), g.given()) as session:
        with pytest.raises(KernelFault) as raised:
            session.run(session.lower())
        (dispatch,) = session.program.dispatches
    assert (raised.value.kernel, raised.value.code) == (dispatch.kernel.name, GATHER_CHECK)


def test_reads_before_writes_keep_their_order(g, run):
    """A next state that replaces what another of the launch reads: the reader's group goes first."""
    key, state = g.state("count", np.array([3.0], np.float32), F32)
    g.output(p.exp(state))
    g.output(p.tanh(state))
    g.builder.next_state(key, g.floats(1) + 1.0)
    match = run(g, JOINED)
    (dispatch,) = match.program.dispatches
    assert dispatch.schedule["joined"] == [3]
    assert not any(isinstance(c, CopyCommand) for c in match.program.commands)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("caps", [ALONE, JOINED], ids=["alone", "joined"])
def test_a_state_that_is_computed_from_its_own_elements_is_replaced_in_place(g, run, caps, dtype):
    """One binding and no copy, also of halves that share words."""
    key, state = g.state("ema", floats(g.rng, (5, 7), dtype), dtype)
    old = p.cast(state, F32) if dtype is not F32 else state
    new = p.select(g.floats(5, 7) > 0.0, old * 0.5, g.floats(5, 7))
    g.builder.next_state(key, p.cast(new, dtype) if dtype is not F32 else new)
    match = run(g, caps)
    (dispatch,) = match.program.commands
    assert len(dispatch.args) == 3
