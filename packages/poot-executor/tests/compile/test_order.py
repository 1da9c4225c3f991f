"""The order of regions and the buffers of states: what is updated in place, what is copied, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from poot_executor.compile import Caps
from poot_executor.compile.program import CopyCommand, Space
from poot_executor.dtype import BF16, BOOL, F16, F32, I8, I32, U8
from poot_executor.errors import Unsupported
from poot_executor.formats import FORMATS
from poot_executor.graph import primitives as p
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import StateKey


def pool(g, rows=7, columns=4, role="pool"):
    return g.state(role, g.rng.standard_normal((rows, columns)).astype(np.float32), F32)


def places(g, *numbers):
    return g.slot(np.array(numbers, np.int32), I32)


def fresh(g, count, columns=4):
    return g.floats(count, columns)


def copies(match):
    """What the program copies, as (from, to): a state's role or a space's name."""
    program = getattr(match, "program", match)
    return [(name(c.source), name(c.target)) for c in program.commands if isinstance(c, CopyCommand)]


def name(place):
    return place.key.role if place.space is Space.STATE else place.space.value


def test_a_scatter_writes_into_the_state(g, run):
    key, state = pool(g)
    after = p.scatter_update(state, places(g, 3, -1, 0), fresh(g, 3))
    g.builder.next_state(key, after)
    g.output(p.exp(after))
    match = run(g)
    assert copies(match) == []
    scatter, _ = match.program.dispatches
    assert [name(a.place) for a in scatter.args] == ["input", "input", "pool"]


def test_a_chain_of_scatters_stays_in_place(g, run):
    key, state = pool(g)
    for place in (1, 5, 1):
        state = p.scatter_update(state, places(g, place), fresh(g, 1))
    g.builder.next_state(key, state)
    match = run(g)
    assert copies(match) == []
    assert match.regions == ("scatter",) * 3
    assert match.program.arena_bytes == 0


def test_a_read_of_the_old_value_comes_first(g, run):
    """Though the graph says it after the update."""
    key, state = pool(g)
    g.builder.next_state(key, p.scatter_update(state, places(g, 2), fresh(g, 1)))
    g.output(p.exp(state))
    match = run(g)
    assert match.regions == ("pointwise", "scatter")
    assert copies(match) == []


def test_an_old_value_that_is_read_with_the_new_one_is_copied(g, run):
    key, state = pool(g)
    after = p.scatter_update(state, places(g, 2), fresh(g, 1))
    g.builder.next_state(key, after)
    g.output(after - state)
    match = run(g)
    assert copies(match) == [("pool", "arena"), ("arena", "pool")]


@pytest.mark.parametrize("read", ["with the new one", "by what the new one needs", "as another state"])
def test_a_large_state_is_not_copied(g, compiled, read):
    key, state = g.state("kv", np.zeros((1 << 10, 257), np.float32), F32)
    after = p.scatter_update(state, places(g, 2), g.floats(1, 257))
    if read == "with the new one":
        g.output(after - state)
    elif read == "as another state":
        other, _ = g.state("old", np.zeros((1 << 10, 257), np.float32), F32)
        g.builder.next_state(other, after)
        after = p.scatter_update(after, places(g, 3), g.floats(1, 257))
    else:
        after = p.tanh(after) + state
    g.builder.next_state(key, after)
    with pytest.raises(Unsupported, match=r"update of state (kv|old): f32\[1024, 257\].* 1,052,672 bytes a step"):
        compiled(g)


def test_a_large_state_that_is_read_first_is_not_refused(g, compiled):
    key, state = g.state("kv", np.zeros((1 << 10, 257), np.float32), F32)
    g.builder.next_state(key, p.scatter_update(state, places(g, 2), g.floats(1, 257)))
    g.output(p.sum_(p.gather(state, places(g, 5)), 1))
    assert copies(compiled(g)) == []


def test_an_intermediate_version_is_an_output(g, run):
    """The first version lives in the state's buffer when the output is read; the second is copied over it."""
    key, state = pool(g)
    first = p.scatter_update(state, places(g, 2), fresh(g, 1))
    g.builder.next_state(key, p.scatter_update(first, places(g, 3), fresh(g, 1)))
    g.output(first)
    g.output(state)
    run(g)


def test_an_intermediate_version_is_read_after_the_last(g, run):
    key, state = pool(g)
    first = p.scatter_update(state, places(g, 2), fresh(g, 1))
    last = p.scatter_update(first, places(g, 3), fresh(g, 1))
    g.builder.next_state(key, last)
    g.output(last * first)
    run(g)


def test_two_branches_of_a_state(g, run):
    """One is its next value, written in place; the other is computed in a copy before."""
    key, state = pool(g)
    other = p.scatter_update(state, places(g, 1), fresh(g, 1))
    g.builder.next_state(key, p.scatter_update(state, places(g, 4, 0), fresh(g, 2)))
    g.output(p.exp(other))
    match = run(g)
    assert copies(match) == [("pool", "arena")]


def test_a_branch_of_an_intermediate_version(g, run):
    key, state = pool(g)
    first = p.scatter_update(state, places(g, 2), fresh(g, 1))
    g.builder.next_state(key, p.scatter_update(first, places(g, 3), fresh(g, 1)))
    g.output(p.scatter_update(first, places(g, 5), fresh(g, 1)))
    run(g)


def test_two_updates_of_one_computed_value(g, run):
    base = p.exp(fresh(g, 6))
    g.output(p.scatter_update(base, places(g, 2), fresh(g, 1)))
    g.output(p.scatter_update(base, places(g, 2), fresh(g, 1)) * 2.0)
    run(g)


def test_a_computed_value_is_updated_in_its_own_buffer(g, run):
    base = p.exp(fresh(g, 6))
    last = p.scatter_update(p.scatter_update(base, places(g, 2), fresh(g, 1)), places(g, 0), fresh(g, 1))
    g.output(p.tanh(last))
    match = run(g)
    assert copies(match) == []
    assert match.regions == ("pointwise", "scatter", "scatter", "pointwise")


@pytest.mark.parametrize("kind", ["a number", "a table", "counted", "an input", "moved", "an output"])
def test_what_a_scatter_updates_may_be_anything(g, run, kind):
    b = g.builder
    data = {
        "a number": lambda: b.splat(2.5, TensorType((5, 4), F32)),
        "a table": lambda: b.computed(np.arange(20.0).reshape(5, 4), F32),
        "counted": lambda: p.iota(b, (5, 4), 1, F32),
        "an input": lambda: fresh(g, 5),
        "moved": lambda: p.transpose(g.floats(4, 5), (1, 0)),
        "an output": lambda: p.exp(fresh(g, 5)),
    }[kind]()
    if kind == "an output":
        g.output(data)
    g.output(p.scatter_update(data, places(g, 3, 1), fresh(g, 2)))
    run(g)


def test_a_weight_is_not_updated(g, compiled):
    weight = g.weight(FORMATS["f32"], 5, 4)
    g.output(p.scatter_update(weight, places(g, 3), fresh(g, 1)))
    with pytest.raises(Unsupported, match=r"data of the update .*: f32\[5, 4\].*weight w0 lies in a layout of its own"):
        compiled(g)


def test_a_weight_is_no_output_and_no_state(g, compiled):
    weight = g.weight(FORMATS["f32"], 5, 4)
    key, _ = pool(g, 5)
    g.builder.next_state(key, weight)
    with pytest.raises(Unsupported, match=r"state .*weight w0"):
        compiled(g)
    g.output(weight)
    with pytest.raises(Unsupported, match="weight w0"):
        compiled(g)


def test_states_that_swap(g, run):
    one, first = pool(g, role="one")
    two, second = pool(g, role="two")
    g.builder.next_state(one, second)
    g.builder.next_state(two, first)
    match = run(g)
    assert match.regions == ()
    assert copies(match)[-2:] == [("arena", "one"), ("arena", "two")]


def test_states_that_shift(g, run):
    """A delay line: each takes what the one before it held, the first something new."""
    keys, values = zip(*(pool(g, role=str(n)) for n in range(3)), strict=True)
    g.builder.next_state(keys[0], p.tanh(values[2] + fresh(g, 7)))
    g.builder.next_state(keys[1], values[0])
    g.builder.next_state(keys[2], values[1])
    run(g)


def test_a_state_that_another_keeps_is_updated_in_place(g, run):
    key, state = pool(g)
    old, _ = pool(g, role="old")
    g.builder.next_state(key, p.scatter_update(state, places(g, 2), fresh(g, 1)))
    g.builder.next_state(old, state)
    assert copies(run(g)) == [("pool", "arena"), ("arena", "old")]


def test_one_value_replaces_two_states(g, run):
    one, first = pool(g, role="one")
    two, _ = pool(g, role="two")
    after = p.scatter_update(first, places(g, 6), fresh(g, 1))
    g.builder.next_state(one, after)
    g.builder.next_state(two, after)
    assert copies(run(g)) == [("one", "two")]


def test_a_computed_value_replaces_two_states(g, run):
    one, _ = pool(g, role="one")
    two, second = pool(g, role="two")
    after = p.tanh(second) * fresh(g, 7)
    g.builder.next_state(one, after)
    g.builder.next_state(two, after)
    g.output(after)
    run(g)


def test_a_state_starts_afresh(g, run):
    """An update of something that is not the state itself."""
    key, _ = pool(g)
    blank = g.builder.splat(0.0, TensorType((7, 4), F32))
    g.builder.next_state(key, p.scatter_update(blank, places(g, 2), fresh(g, 1)))
    run(g)


@pytest.mark.parametrize("kind", ["a number", "an input", "a check's value"])
def test_a_state_becomes_what_is_not_computed(g, run, kind):
    b = g.builder
    key, state = g.state("seen", np.array(3, np.int32), I32)
    after = {
        "a number": lambda: b.scalar(7, I32),
        "an input": lambda: g.indices((), 9),
        "a check's value": lambda: state,
    }[kind]()
    if kind == "a check's value":
        b.check(state)
        after = state + b.scalar(1, I32)
    b.next_state(key, after)
    run(g)


def test_a_next_token_is_written_into_its_state(g, run):
    """Decode reads the token that the last step drew and leaves its own."""
    key, last = g.state("last_token", np.array([3, 0], np.int32), I32)
    table = g.floats(5, 8)
    token = p.argmax(p.gather(table, last) @ g.floats(8, 5), 1)
    g.builder.next_state(key, token)
    g.output(token)
    match = run(g)
    assert match.regions[-1] == "argmax"
    assert copies(match) == [("last_token", "output")]
    assert [name(a.place) for a in match.program.dispatches[-1].args][-1] == "last_token"


def test_a_state_that_nothing_changes_is_not_touched(g, run):
    _, state = pool(g)
    g.output(state * 2.0)
    g.state("unread", np.ones((3,), np.float32), F32)
    match = run(g)
    assert copies(match) == []
    assert {StateKey(None, "pool"), StateKey(None, "unread")} == {use.key for use in match.program.states}


def test_a_recurrent_state_is_computed_over_the_old_one(g, run):
    """Each element from its own old one."""
    key, state = pool(g)
    g.builder.next_state(key, state * 0.5 + p.tanh(state))
    match = run(g)
    assert copies(match) == [] and match.program.arena_bytes == 0


def test_a_state_that_moves_is_computed_beside_the_old_one(g, run):
    key, state = pool(g, 4, 4)
    g.builder.next_state(key, state * 0.5 + p.transpose(state, (1, 0)))
    assert copies(run(g)) == [("arena", "pool")]


def test_a_state_is_replaced_directly_once_it_was_read(g, run):
    key, state = pool(g)
    g.output(p.sum_(state, 1))
    g.builder.next_state(key, p.exp(fresh(g, 7)))
    match = run(g)
    assert copies(match) == []
    assert match.regions == ("row_reduction", "pointwise")


@pytest.mark.parametrize("dtype", [F16, BF16, I8, U8, BOOL, I32], ids=str)
@pytest.mark.parametrize("shape", [(5,), (3, 3), (1,), (7, 1, 3)], ids=str)
def test_states_of_any_dtype_and_odd_count(g, run, dtype, shape):
    """Narrow rows that share words with their neighbours; rows of one element."""
    values = {dtype: g.rng.integers(0, 2, shape).astype(bool) if dtype is BOOL else g.rng.integers(0, 100, shape)}
    key, state = g.state("narrow", values[dtype].astype(dtype.numpy), dtype)
    count = min(3, shape[0])
    rows = p.cast(g.slot(g.rng.integers(0, 100, (count, *shape[1:])).astype(np.int32), I32), dtype)
    index = g.rng.permutation(shape[0])[:count].astype(np.int32)
    index[0] = -1 if count > 1 else index[0]
    g.builder.next_state(key, p.scatter_update(state, g.slot(index, I32), rows))
    match = run(g)
    assert copies(match) == []


@pytest.mark.parametrize("dtype", [F16, U8, F32, BOOL], ids=str)
def test_slices_of_any_dtype_are_updated(g, run, dtype):
    """Along every axis, with an update smaller than the data along the others too."""
    state = g.slot(g.rng.integers(0, 2, (3, 4, 5)).astype(dtype.numpy), dtype)
    for axis, shape in ((0, (2, 4, 5)), (1, (3, 2, 4)), (2, (3, 3, 2)), (2, (2, 4, 4)), (0, (1, 4, 4))):
        update = g.slot(g.rng.integers(0, 2, shape).astype(dtype.numpy), dtype)
        start = g.indices((), state.shape[axis] - shape[axis] + 1)
        g.output(p.dynamic_update_slice(state, update, start, axis))
    run(g)


def test_outputs_may_be_inputs_and_one_value(g, run):
    x = g.slot(g.rng.integers(0, 100, (7,)).astype(np.int8), I8)
    y = p.exp(fresh(g, 2))
    for at, value in enumerate((x, y, y, g.builder.computed(np.arange(3), I32))):
        g.builder.output(f"o{at}", value)
    g.builder.check(g.builder.scalar(-1, I32))
    run(g, Caps(offset_alignment=32))
