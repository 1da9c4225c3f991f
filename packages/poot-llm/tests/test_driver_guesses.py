"""Prompt lookup: what is guessed, when guessing stops, and that windows save steps and change no token."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from poot_executor.errors import SettingsError
from poot_llm.blocks.step import StepShape
from poot_llm.driver import DriverOptions, Layout, Sequence
from poot_llm.driver.guesses import PAUSE, TRIALS, Guesser, lookup
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
driving, greedy = fixture.driving, fixture.greedy


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("ids", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 3, (3, 4, 1)),
        ([1, 2, 3, 4, 1, 2], 1, (3,)),
        ([1, 2, 9, 1, 2, 8, 1, 2], 2, (8, 1)),
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1, (7,)),
        ([4, 4, 4, 4], 2, (4,)),
        ([1, 2, 3, 4], 3, ()),
        ([2, 1, 3, 1], 3, ()),
        ([1], 3, ()),
    ],
)
def test_what_followed_before_is_guessed(ids: list[int], count: int, expected: tuple[int, ...]) -> None:
    """The longest run of two to four ids counts, of equal ones the latest."""
    assert lookup(ids, count) == expected


def sequence(**more: Any) -> Sequence:
    made = Sequence((1, 2, 3, 1), SamplingParams(**more), 0, frozenset(), 9, tokens=[2])
    made.cached = 4
    return made


def test_guessing_rests_where_it_does_not_pay() -> None:
    guesser, one = Guesser(3), sequence()
    guesser.took(StepShape(1, 1, 32, 32), 1.0)
    guesser.took(StepShape(1, 4, 32, 32, window=True), 2.5)
    assert guesser.cost == 2.5
    for _ in range(TRIALS):
        assert guesser.guess(one) == (3, 1, 2)
        guesser.checked(one, 3, 1)
    for _ in range(PAUSE):
        assert guesser.guess(one) == ()
    assert guesser.guess(one) == (3, 1, 2)
    other = sequence()
    for _ in range(4 * TRIALS):
        assert guesser.guess(other)
        guesser.checked(other, 3, 2)


def test_only_where_nothing_but_the_draw_depends_on_the_tokens() -> None:
    guesser = Guesser(3)
    assert guesser.guess(sequence(temperature=1.0))
    assert guesser.guess(sequence(repetition_penalty=1.2)) == ()
    assert guesser.guess(sequence(min_tokens=2)) == ()
    ending = sequence()
    ending.limit = 3
    assert guesser.guess(ending) == (3,)
    ending.limit = 2
    assert guesser.guess(ending) == ()
    reading = sequence()
    reading.cached = 2
    assert guesser.guess(reading) == ()


@pytest.mark.parametrize("layout", [Layout.CONTIGUOUS, Layout.PAGED])
def test_windows_save_steps_and_change_no_token(handle: ModelHandle, layout: Layout) -> None:
    """The second time the answer stands in the prompt, so that all of it is guessed right."""
    prompt = [104, 277, 102, 110]
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    answer = greedy(handle, prompt, 16)
    again = [*prompt, *answer, *prompt]
    expected = greedy(handle, again, 16)
    with driving(handle, capacity=64, window=4, layout=layout) as rig:
        stream = rig.driver.generate(again, params)
        prepared, before = rig.driver.prepared, rig.engine.stats()
        assert [item.token for item in stream] == expected
        timings, after = stream.sequence.timings, rig.engine.stats()
        assert rig.driver.prepared == prepared and after.allocations == before.allocations
        windows = sum("window" in name for name in rig.device.replayed)
        assert windows > 0 and timings.guessed_tokens >= windows
        assert after.steps - before.steps == -(-len(again) // 4) + 15 - timings.accepted_tokens
        assert timings.decode_tokens == 15


def test_logprobs_of_guessed_tokens(handle: ModelHandle) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2)
    prompt = [9, 8, 9, 8, 9, 8]
    got = []
    for window in (None, 4):
        with driving(handle, window=window) as rig:
            items = list(rig.driver.generate(prompt, params))
            assert all(item.logprobs is not None for item in items)
            got.append([(i.token, i.logprobs.logprob) for i in items if i.logprobs is not None])
    assert [token for token, _ in got[0]] == [token for token, _ in got[1]]
    assert [value for _, value in got[0]] == pytest.approx([value for _, value in got[1]], abs=1e-5)


def test_a_window_that_is_none() -> None:
    with pytest.raises(SettingsError, match="window is 1"):
        DriverOptions(window=1)
