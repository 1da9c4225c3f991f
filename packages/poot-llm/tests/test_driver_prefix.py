"""A prefix-cache hit gives the tokens and the logprobs of a miss, in a row of its own or by a copy of another's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from poot_eval.conformance.opening import open_or_skip
from poot_executor.compile import compile
from poot_executor.dtype import F32
from poot_executor.engine import Engine
from poot_executor.errors import CheckFailed
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_llm.driver import Driver, Layout, Request, Scheduler, Sequence
from poot_llm.driver.row_copies import RowCopies
from poot_llm.models.copy_graph import COUNT, SOURCE, TARGET, trace_copy
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

BASE = [104, 277, 102, 110, 35, 101, 117, 114, 122, 113, 290, 7, 300, 9, 12, 60] * 3
PARAMS = (
    SamplingParams(max_tokens=5, ignore_eos=True, logprobs=4),
    SamplingParams(max_tokens=5, ignore_eos=True, logprobs=20, temperature=0.9, seed=11, repetition_penalty=1.2),
)
Answer = list[tuple[int, float, tuple[tuple[int, float], ...]]]


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


def answer(driver: Driver, prompt: list[int], params: SamplingParams) -> tuple[Answer, int]:
    """Each token with its logprob and the likeliest ones, and how many ids of the prompt were found computed."""
    found: Answer = []
    with driver.generate(prompt, params) as stream:
        for item in stream:
            assert item.logprobs is not None
            found.append((item.token, item.logprobs.logprob, item.logprobs.top))
        return found, stream.sequence.timings.kept_tokens


@pytest.mark.parametrize("layout", [Layout.PAGED, Layout.CONTIGUOUS])
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "drawn"])
def test_a_hit_gives_what_a_miss_gives(handle: ModelHandle, layout: Layout, params: SamplingParams) -> None:
    """Whole prompts, longer and shorter ones, and one that goes on from an answer: to the last bit, on the oracle."""
    options = {"capacity": 96, "chunk": 8, "rows": 2, "layout": layout}
    with (
        fixture.driving(handle, prefix_cache=True, **options) as keeping,
        fixture.driving(handle, prefix_cache=False, **options) as forgetting,
    ):
        said, kept = answer(keeping.driver, BASE, params)
        assert kept == 0
        prompts = [BASE, [*BASE, 5, 6], BASE[:33], [*BASE, *(token for token, _, _ in said), 8, 9]]
        for prompt in prompts:
            hit, kept = answer(keeping.driver, prompt, params)
            miss, none = answer(forgetting.driver, prompt, params)
            assert hit == miss
            assert kept >= 16 and none == 0


def test_what_another_row_holds_is_copied_while_that_goes_on(handle: ModelHandle) -> None:
    """On the oracle to the last bit, and to the last one of the row that is copied from."""
    options = {"capacity": 96, "chunk": 8, "rows": 3, "layout": Layout.CONTIGUOUS}
    with (
        fixture.driving(handle, prefix_cache=True, **options) as keeping,
        fixture.driving(handle, prefix_cache=False, **options) as forgetting,
    ):
        driver, params = keeping.driver, PARAMS[1]
        expected = [answer(forgetting.driver, prompt, params)[0] for prompt in (BASE, [*BASE[:40], 5, 6])]
        first = driver.open(BASE, params)
        assert first is not None
        found: dict[int, Answer] = {0: [], 1: []}
        copies = driver._decoding.copies
        assert copies is not None
        while not found[0]:
            found[0] += advanced(driver, first)
        assert not copies.worth(40) and copies.worth(64)
        copies._seconds, copies._pace = 0.0, 1.0
        second = driver.open([*BASE[:40], 5, 6], params)
        assert second is not None and second.lease is not None and first.lease is not None
        assert (second.cached, copies.copies) == (40, 1) and second.lease.row != first.lease.row
        while first.finish_reason is None or second.finish_reason is None:
            for place, sequence in enumerate((first, second)):
                if sequence.finish_reason is None:
                    found[place] += advanced(driver, sequence)
        assert [found[0], found[1]] == expected
        assert driver.use().reused == 40


def advanced(driver: Driver, sequence: Sequence) -> Answer:
    """What a step gives one sequence, committed."""
    (result,) = driver.step([sequence])
    for token in result.given:
        driver.commit(sequence, token)
    return [(t, found.logprob, found.top) for t, found in zip(result.given, result.logprobs, strict=True)]


@pytest.mark.parametrize(("layout", "kept"), [(Layout.PAGED, 64), (Layout.CONTIGUOUS, 69)])
def test_several_answers_of_one_prompt_read_it_once(
    handle: ModelHandle, monkeypatch: pytest.MonkeyPatch, layout: Layout, kept: int
) -> None:
    """The first one reads it, the others take its blocks, or a copy of its row; a request beside them is not held up
    meanwhile. Each gets what it gets alone.
    """
    # How long copies take beside steps is not what is tested.
    monkeypatch.setattr(RowCopies, "worth", lambda _, positions: positions > 0)
    prompt, other = (BASE + BASE)[:70], [5, 6, 7]
    each = [SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.9, seed=seed) for seed in range(3)]
    options = {"capacity": 96, "chunk": 16, "layout": layout}
    with (
        fixture.driving(handle, rows=4, prefix_cache=True, **options) as rig,
        fixture.driving(handle, rows=1, prefix_cache=False, **options) as alone,
    ):
        scheduler = Scheduler(rig.driver)
        asked = [(prompt, params) for params in each] + [(other, each[0])]
        answers: dict[Request, list[int]] = {scheduler.add(ids, params): [] for ids, params in asked}
        requests = list(answers)
        order: list[Request] = []
        while scheduler.busy:
            for delivery in scheduler.step():
                answers[delivery.request] += delivery.tokens
                order.append(delivery.request)
        for (ids, params), tokens in zip(asked, answers.values(), strict=True):
            with alone.driver.generate(ids, params) as stream:
                assert tokens == [item.token for item in stream]
        counts = [request.sequence.timings.kept_tokens for request in requests if request.sequence is not None]
        assert counts == [0, kept, kept, 0]
        assert order[0] is requests[3]


def test_a_copy_that_fails_costs_the_states_and_no_answer(handle: ModelHandle) -> None:
    """The device refuses a row that there is none of: everything is computed again."""
    options = {"capacity": 96, "chunk": 8, "rows": 2, "layout": Layout.CONTIGUOUS, "prefix_cache": True}
    with fixture.driving(handle, **options) as rig, fixture.driving(handle, capacity=96, chunk=8) as alone:
        driver, params = rig.driver, PARAMS[0]
        expected, _ = answer(alone.driver, BASE, params)
        sequence = driver.open(BASE, params)
        copies = driver._decoding.copies
        assert sequence is not None and copies is not None
        found: Answer = []
        while len(found) < 2:
            found += advanced(driver, sequence)
        assert not copies.copy(0, 7, 3)
        assert sequence.cached == 0
        while sequence.finish_reason is None:
            found += advanced(driver, sequence)
        assert found == expected
        assert rig.engine.stats().failures >= 1


@pytest.mark.parametrize("device", ["reference:plain", pytest.param("vulkan", marks=pytest.mark.device("vulkan"))])
def test_rows_are_copied_on_kernels(rng: np.random.Generator, device: str) -> None:
    """Some positions of one row, bit by bit; nothing else changes."""
    rows, capacity = 3, 8
    states = {
        StateKey(layer, role): TensorType((rows * capacity, 2, 4), F32) for layer in (0, 1) for role in ("k", "v")
    }
    builder = Builder("fill")
    for place, (key, kind) in enumerate(states.items()):
        builder.state(key, kind)
        builder.next_state(key, builder.slot(SlotKey(SlotKind.INPUT, f"fill{place}"), kind))
        builder.output(f"was{place}", builder.state(key, kind))
    values = {f"fill{i}": rng.normal(size=kind.shape).astype(np.float32) for i, kind in enumerate(states.values())}
    with open_or_skip(device) as opened, Engine(opened) as engine:
        executable = engine.load_weights(fixture.reference.MemoryStore({}), {})
        fill = engine.add_entry(executable, compile(builder.build(), opened.target))
        copy = engine.add_entry(executable, compile(trace_copy(states, rows, capacity), opened.target))
        inputs = {SlotKey(SlotKind.INPUT, name): value for name, value in values.items()}
        engine.step(executable, fill, inputs)
        given = {SOURCE: 2, TARGET: 0, COUNT: 5}
        done = engine.step(executable, copy, {key: np.array([n], np.int32) for key, n in given.items()})
        assert done["copied"].tolist() == [5]
        held = engine.step(executable, fill, inputs)
        for place in range(len(states)):
            expected = values[f"fill{place}"].copy()
            expected[:5] = expected[16:21]
            np.testing.assert_array_equal(held[f"was{place}"], expected)
        for key, n in ((SOURCE, 3), (TARGET, -1), (COUNT, 9)):
            wrong = {k: np.array([n if k is key else v], np.int32) for k, v in given.items()}
            with pytest.raises(CheckFailed):
                engine.step(executable, copy, wrong)
            engine.reset_state(executable)
