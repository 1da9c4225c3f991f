"""Measured schedules: every candidate computes the same, only legal ones are used, deterministic bits do not move."""

import logging
from functools import cache

import numpy as np
import pytest

from poot_eval.conformance.inputs import floats
from poot_eval.conformance.session import open_program, open_session
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, CompileOptions, Target, compile
from poot_executor.compile.candidates import candidates
from poot_executor.compile.pipeline import Compilation
from poot_executor.compile.program_cache import program_key
from poot_executor.compile.schedule import NEUTRAL
from poot_executor.compile.schedule_picks import KEY, MEASURED, NORM, Schedules, legal
from poot_executor.dtype import F32

LANES = frozenset({"subgroup"})
CAPS = {
    "rows": Caps(group_threads=32, parallel_groups=4, tile_rows=4),
    "lanes": Caps(group_threads=64, subgroup_width=32, parallel_groups=4, features=LANES, max_bindings=31),
}


def keys_of(program):
    """What each region key's schedule is."""
    return {d.schedule[KEY]: d.schedule for d in program.dispatches if KEY in d.schedule}


def norms_of(program):
    return list(dict.fromkeys(d.schedule[NORM] for d in program.dispatches if NORM in d.schedule))


def tried(program, caps):
    """Every (key, pick) that `tune` would begin with."""
    found = [(k, pick) for k, schedule in keys_of(program).items() for pick in candidates(k, schedule, (), caps)]
    return found + [(key, (("apart", 1),)) for key in norms_of(program)]


def given(graph, rng):
    return {
        i.key: floats(rng, i.value.shape, F32, -1, 1)
        if i.value.dtype is F32
        else np.arange(i.value.type.count, dtype=np.int32).reshape(i.value.shape) % 11
        for i in graph.inputs
        if i.key is not None
    }


def results(graph, caps, inputs, **options):
    with open_session(ReferenceDevice(caps), graph, inputs, CompileOptions(**options)) as session:
        return session.program, held(session)


def held(session):
    result = session.run(session.lower())
    return {**result.outputs, **result.state}


@pytest.fixture(scope="module")
def compilation(decoder):
    """compilation(caps, deterministic): of a decoder's layer, one for all tests, as schedules are chosen last."""

    @cache
    def made(caps, deterministic):
        graph = decoder(1, 3, layers=1).graph()
        return graph, Compilation(graph, ReferenceDevice(caps).target, CompileOptions(deterministic=deterministic))

    return made


@pytest.fixture
def under(compilation, rng):
    """under(caps, ...): what gives the program and the results of a decoder's layer for measured schedules."""

    def made(caps, deterministic=False):
        graph, shared = compilation(caps, deterministic)
        device, inputs = ReferenceDevice(caps), given(graph, rng)

        def run(picks):
            program = shared.program(Schedules.of(picks))
            with open_program(device, program, inputs) as session:
                return program, held(session)

        return run

    return made


def assert_near(found, expected):
    for name, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5 * np.abs(value).max(), err_msg=str(name))


@pytest.mark.parametrize("name", CAPS)
def test_candidates_compute_the_same(under, rng, name):
    """Some of them, drawn; the sweep takes more."""
    _candidates(under(CAPS[name]), rng, CAPS[name], 4)


@pytest.mark.sweep(most=2)
@pytest.mark.parametrize("name", CAPS)
@pytest.mark.parametrize("turn", range(8))
def test_more_candidates_compute_the_same(under, rng, name, turn):
    _candidates(under(CAPS[name]), rng, CAPS[name], 6)


def _candidates(run, rng, caps, count):
    plain, expected = run({})
    every = tried(plain, caps)
    assert len({key for key, _ in every}) >= 5
    for at in rng.choice(len(every), count, replace=False):
        key, pick = every[at]
        program, found = run({key: dict(pick)})
        assert_near(found, expected)
        if key in keys_of(program):
            assert keys_of(program)[key][MEASURED] == dict(pick)


@pytest.mark.parametrize("name", CAPS)
def test_a_pick_is_what_the_kernel_is_made_with(compilation, name):
    caps = CAPS[name]
    _, shared = compilation(caps, False)
    plain = shared.program(Schedules())
    key = next(k for k in keys_of(plain) if k.startswith("attention"))
    made = keys_of(shared.program(Schedules.of({key: {"queries": 2, "unroll": 8, "threads": 128}})))[key]
    assert (made["queries"], made["unroll"], made["threads"]) == (2, 8, 128)
    key = next(k for k in keys_of(plain) if k.startswith(("projection", "contraction")))
    made = keys_of(shared.program(Schedules.of({key: {"tile": 2, "threads": 128}})))[key]
    assert (made["tile"], made["threads"]) == (2, 128)
    # What was chosen for one region leaves the others alone.
    assert [d.kernel.digest() for d in plain.dispatches] == [
        d.kernel.digest() for d in shared.program(Schedules()).dispatches
    ]


def test_a_norm_is_computed_inside_or_apart(decoder, rng):
    graph, caps = decoder(1, 2, layers=2).graph(), CAPS["rows"]
    inputs = given(graph, rng)
    plain, expected = results(graph, caps, inputs)
    norms = norms_of(plain)
    assert len(norms) == 3  # of attention, of the feed-forward, of the head
    apart, found = results(graph, caps, inputs, schedules=Schedules.of({norms[0]: {"apart": 1}}))
    assert len(apart.dispatches) == len(plain.dispatches) + 2
    assert norms_of(apart) == norms[1:]
    assert any("a norm of its own is faster" in decline.reason for decline in apart.declines)
    assert_near(found, expected)
    inside, _ = results(graph, caps, inputs, schedules=Schedules.of({norms[0]: {"apart": 0}}))
    assert len(inside.dispatches) == len(plain.dispatches)


@pytest.mark.parametrize("name", CAPS)
def test_deterministic_bits_are_those_of_the_heuristic_under_any_picks(under, rng, name):
    caps = CAPS[name]
    run = under(caps, deterministic=True)
    plain, expected = run({})
    for _ in range(3):
        picks = {}
        for key, pick in rng.permutation(np.array(tried(plain, caps), object)):
            picks[key] = {**picks.get(key, {}), **dict(pick)}
        picks = {k: v for k, v in picks.items() if legal(k, tuple(sorted(v.items())), caps) is None}
        assert any(set(pick) - NEUTRAL for pick in picks.values())
        program, found = run(picks)
        assert len(program.dispatches) == len(plain.dispatches)
        assert all(set(d.schedule.get(MEASURED, ())) <= NEUTRAL for d in program.dispatches)
        for output, value in expected.items():
            assert found[output].tobytes() == value.tobytes(), output


ILLEGAL = [
    ("contraction 1x8 f32", {"rows": 0}),
    ("contraction 1x8 f32", {"rows": 99}),
    ("contraction 1x8 f32", {"rows": True}),
    ("contraction 1x8 f32", {"threads": 48}),
    ("contraction 1x8 f32", {"threads": 1024}),
    ("contraction 1x8 f32", {"lanes": 24}),
    ("contraction 1x8 f32", {"queries": 2}),
    ("contraction 1x8 f32", {"fragments": 1}),
    ("contraction 1x8 f32", {}),
    ("attention 1x8 1", {"splits": 0}),
    ("attention 1x8 1", {"splits": 64}),
    ("attention 1x8 1", {"rows": 2}),
    ("norm 1x8 f32", {"apart": 2}),
    ("pointwise 8", {"threads": 32}),
]


@pytest.mark.parametrize(("key", "pick"), ILLEGAL)
def test_what_is_not_legal_is_said_and_not_used(compilation, caplog, key, pick):
    caps = CAPS["lanes"]
    assert legal(key, tuple(pick.items()), caps) is not None
    _, shared = compilation(caps, False)
    with caplog.at_level(logging.WARNING):
        picked = shared.program(Schedules.of({key: pick}))
    assert f"the measured schedule of {key} is ignored" in caplog.text
    plain = shared.program(Schedules())
    assert [d.kernel.digest() for d in picked.dispatches] == [d.kernel.digest() for d in plain.dispatches]


def test_a_pick_that_does_not_fit_its_region_is_said_and_not_used(decoder, caplog):
    """Legal by itself, but shared memory does not hold the group."""
    caps = Caps(group_threads=32, max_shared_bytes=1600)
    compilation = Compilation(decoder(1, 1, layers=1).graph(), Target("paper", caps), CompileOptions())
    plain = compilation.program(Schedules())
    key = next(k for k in keys_of(plain) if "2*" in k)
    with caplog.at_level(logging.WARNING):
        picked = compilation.program(Schedules.of({key: {"threads": 256, "rows": 4}}))
    assert f"the measured schedule of {key} is ignored" in caplog.text
    assert MEASURED not in keys_of(picked)[key]


def test_picks_are_part_of_a_programs_key_and_explained(decoder):
    graph, target = decoder(1, 1, layers=2).graph(), Target("paper", CAPS["rows"])
    plain = compile(graph, target)
    key = next(iter(keys_of(plain)))
    options = CompileOptions(schedules=Schedules.of({key: {"rows": 1}}))
    assert program_key(graph, target, options, b"") != program_key(graph, target, CompileOptions(), b"")
    text = compile(graph, target, options).explain()
    assert "2 as measured" in text
    assert f"({key.split()[0]}" in text
    assert "rows=1)" in " ".join(text.split())
    assert text.count(" measured threads=") == 2
    assert "0 as measured" in plain.explain()
