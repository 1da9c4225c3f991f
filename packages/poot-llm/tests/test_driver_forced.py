"""Jump-ahead: ids that a guide forces are given without a step each, and the answer is the one without it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from poot_llm.blocks.step import StepShape
from poot_llm.driver import Driver, Layout, Scheduler
from poot_llm.driver.forced import PAUSE, Forcing
from poot_llm.guided.compiler import GuideCompiler
from poot_llm.guided.spec import StructuredOutputs
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

PROMPT = [104, 277, 102]
SCHEMA = {
    "type": "object",
    "properties": {"reader_name": {"enum": ["the fox", "né", "東"]}, "weights": {"type": "boolean"}},
    "required": ["reader_name", "weights"],
    "additionalProperties": False,
}
SPECS = [
    StructuredOutputs(json=SCHEMA),
    StructuredOutputs(regex="the quick (brown|red) fox jumps over the lazy dog[.!]"),
    StructuredOutputs(lark='start: "reads on about " ("tokens" | "weights") " and the shape of things"'),
]


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=["paged", "contiguous"])
def rigs(request: pytest.FixtureRequest, handle: ModelHandle) -> Iterator[tuple[fixture.Rig, fixture.Rig]]:
    """With jump-ahead, and without."""
    layout = {"layout": Layout(request.param), "rows": 2, "capacity": 160, "chunk": 8}
    with fixture.driving(handle, **layout) as jumping, fixture.driving(handle, jump_ahead=False, **layout) as plain:
        yield jumping, plain


def answer(driver: Driver, params: SamplingParams) -> tuple[list[int], int]:
    """The tokens, and how many of them were forced."""
    with driver.generate(PROMPT, params) as stream:
        return [item.token for item in stream], stream.sequence.timings.forced_tokens


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 1.3, "seed": 5}, {"temperature": 1.0, "seed": 6, "repetition_penalty": 1.4}]
)
def test_the_answer_is_the_one_without_it_in_fewer_steps(
    rigs: tuple[fixture.Rig, fixture.Rig], spec: StructuredOutputs, fields: dict[str, float]
) -> None:
    jumping, plain = rigs
    params = SamplingParams(structured_outputs=spec, **fields)  # type: ignore[arg-type]
    expected, none = answer(plain.driver, params)
    # Where a step of several ids was slow by chance, the next one is not tried: what was measured is forgotten.
    jumping.driver._decoding.stepper._forcing._seconds.clear()
    before = jumping.engine.stats().steps
    tokens, forced = answer(jumping.driver, params)
    steps = jumping.engine.stats().steps - before
    assert tokens == expected and none == 0
    assert forced > 0 and steps < len(tokens)


def test_each_forced_id_is_the_only_legal_one(handle: ModelHandle, rng: np.random.Generator) -> None:
    """What the law rests on: in its place, the mask has that bit alone."""
    forced = 0
    with GuideCompiler(handle.tokenizer, handle.config.vocabulary) as compiler:
        for spec in (*SPECS, StructuredOutputs(json_object=True), StructuredOutputs(choice=("yes and no", "yes but"))):
            for _ in range(6):
                guide = compiler.compile(spec)
                for _ in range(40):
                    legal = np.flatnonzero(np.unpackbits(guide.mask().view(np.uint8), bitorder="little"))
                    token = int(rng.choice(legal))
                    after = guide.forced_after(token)
                    guide.accept(token)
                    for expected in after:
                        bits = np.flatnonzero(np.unpackbits(guide.mask().view(np.uint8), bitorder="little"))
                        assert bits.tolist() == [expected]
                        guide.accept(expected)
                    forced += len(after)
                    if guide.finished:
                        break
    assert forced > 100


def test_limits_logprobs_and_company(rigs: tuple[fixture.Rig, fixture.Rig]) -> None:
    """An answer ends at its limit; logprobs are of tokens that were waited for; beside others nothing is forced."""
    jumping, plain = rigs
    for most in (2, 3, 5, 6):
        params = SamplingParams(structured_outputs=SPECS[1], max_tokens=most)
        assert answer(jumping.driver, params)[0] == answer(plain.driver, params)[0]
    with_logprobs = SamplingParams(structured_outputs=SPECS[1], logprobs=1)
    with jumping.driver.generate(PROMPT, with_logprobs) as stream:
        assert all(item.logprobs is not None for item in stream)
        assert stream.sequence.timings.forced_tokens == 0
    expected = answer(plain.driver, SamplingParams(structured_outputs=SPECS[1]))[0]
    scheduler = Scheduler(jumping.driver)
    requests = [scheduler.add(PROMPT, SamplingParams(structured_outputs=SPECS[1])) for _ in range(2)]
    given: dict[int, list[int]] = {0: [], 1: []}
    while scheduler.busy:
        for delivery in scheduler.step():
            given[requests.index(delivery.request)] += delivery.tokens
    assert given == {0: expected, 1: expected}
    assert all(r.sequence is not None and r.sequence.timings.forced_tokens == 0 for r in requests)


def test_tokens_that_are_not_committed_are_drawn_again(rigs: tuple[fixture.Rig, fixture.Rig]) -> None:
    jumping, plain = rigs
    params = SamplingParams(structured_outputs=SPECS[1])
    expected = answer(plain.driver, params)[0]
    jumping.driver._decoding.stepper._forcing._seconds.clear()
    sequence = jumping.driver.open(PROMPT, params)
    assert sequence is not None
    while sequence.finish_reason is None:
        (result,) = jumping.driver.step([sequence])
        # Of what is given, half is taken.
        for token in result.given[: -(-len(result.given) // 2)]:
            jumping.driver.commit(sequence, token)
    assert sequence.tokens == expected
    jumping.driver.release(sequence)


def test_what_takes_longer_is_not_done(rigs: tuple[fixture.Rig, fixture.Rig], handle: ModelHandle) -> None:
    jumping, _ = rigs
    forcing: Forcing = jumping.driver._decoding.stepper._forcing
    forcing._seconds.clear()
    rows = 1
    for tokens, seconds in ((1, 1.0), (4, 9.0), (8, 9.0)):
        forcing.took(StepShape(rows, tokens, 160, 160), seconds)
        forcing.took(StepShape(2, tokens, 160, 160), seconds)
    sequence = jumping.driver.open(PROMPT, SamplingParams(structured_outputs=SPECS[1]))
    assert sequence is not None
    guide = sequence.forcing
    assert guide is not None
    first = handle.tokenizer.encode("the quick", add_special=False, parse_special=False)[0]
    assert len(guide.forced_after(first)) >= 3
    forcing._declined = 0
    assert [forcing.after(sequence, first) for _ in range(PAUSE - 1)] == [()] * (PAUSE - 1)
    assert len(forcing.after(sequence, first)) >= 3, "tried again"
    assert forcing.after(sequence, first) == ()
    forcing._seconds.clear()
    assert len(forcing.after(sequence, first)) >= 3
    jumping.driver.release(sequence)
