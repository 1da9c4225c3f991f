"""A prefix-cache hit gives the tokens and the logprobs of a miss."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from poot_llm.driver import Driver, Layout
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
