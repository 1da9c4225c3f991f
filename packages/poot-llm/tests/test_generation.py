"""Answers as text: pieces that join to the whole, and stop strings that are never shown."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from poot_executor.errors import RequestError
from poot_llm.driver import FinishReason
from poot_llm.generation import StopStrings, TextStream, complete
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
driving, greedy = fixture.driving, fixture.greedy

PROMPT = [104, 277, 102, 110, 35]


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


# Stop strings


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        ((), ["a", "b"], ["a", "b"], None),
        (("END",), ["some E", "N", "D more"], ["some ", "", ""], "END"),
        (("END",), ["some E", "Nd"], ["some ", "ENd"], None),
        (("ab", "abc"), ["xabc"], ["x"], "ab"),
        (("bc", "abcd"), ["abcd"], ["a"], "bc"),
        (("bc", "abc"), ["abc"], [""], "abc"),
        (("aab",), ["aa", "aab"], ["", "aa"], "aab"),
        (("\n\n",), ["x\n", "y\n", "\nz"], ["x", "\ny", ""], "\n\n"),
    ],
)
def test_pieces(stops: tuple[str, ...], pieces: list[str], shown: list[str], found: str | None) -> None:
    watch = StopStrings(stops)
    assert [watch.push(piece) for piece in pieces] == shown
    assert watch.found == found


def test_what_is_held_back_comes_at_the_end() -> None:
    watch = StopStrings(("END",))
    assert watch.push("so EN") == "so "
    assert watch.finish() == "EN" and watch.finish() == ""


def test_how_a_text_is_cut_does_not_matter(rng: np.random.Generator) -> None:
    """Any cutting shows what the text shows character by character, and no stop string."""
    for _ in range(400):
        alphabet = np.array(list("ab"))
        text = "".join(rng.choice(alphabet, rng.integers(0, 14)))
        stops = tuple("".join(rng.choice(alphabet, rng.integers(1, 5))) for _ in range(rng.integers(0, 3)))
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        whole = text[: min(ends)] if ends else text
        matched = [stop for stop in stops if ends and whole.endswith(stop)]
        expected = whole.removesuffix(max(matched, key=len)) if matched else whole
        watch, shown, at = StopStrings(stops), "", 0
        while at < len(text):
            size = int(rng.integers(1, 6))
            shown += watch.push(text[at : at + size])
            assert expected.startswith(shown)
            at += size
        shown += watch.finish()
        assert shown == expected
        assert (watch.found is not None) == bool(ends)
        assert not any(stop in shown for stop in stops)


# Answers


def test_pieces_join_to_the_decoded_text(handle: ModelHandle) -> None:
    expected = greedy(handle, PROMPT, 20)
    with driving(handle) as rig:
        with TextStream(rig.driver, PROMPT, SamplingParams(max_tokens=20, ignore_eos=True)) as stream:
            pieces = list(stream)
            assert stream.tokens == tuple(expected)
        text = "".join(piece.text for piece in pieces)
        assert text == handle.tokenizer.decode(expected, continues=True)
        assert [piece.token for piece in pieces] == expected
        assert [piece.finish_reason for piece in pieces] == [None] * 19 + [FinishReason.LENGTH]
        answer = complete(rig.driver, PROMPT, SamplingParams(max_tokens=20, ignore_eos=True))
        assert (answer.text, list(answer.tokens)) == (text, expected)
        assert answer.prompt_ids == tuple(PROMPT) and answer.timings.decode_tokens == 19


def test_a_stop_string_ends_the_answer_and_frees_the_row(handle: ModelHandle) -> None:
    expected = greedy(handle, PROMPT, 20)
    whole = handle.tokenizer.decode(expected, continues=True)
    stop = whole[5:8]
    cut = whole.find(stop)
    with driving(handle) as rig:
        params = SamplingParams(max_tokens=20, ignore_eos=True, stop=(stop,))
        answer = complete(rig.driver, PROMPT, params)
        assert answer.text == whole[:cut] and answer.finish_reason is FinishReason.STOP
        assert len(answer.tokens) < 20 and list(answer.tokens) == expected[: len(answer.tokens)]
        shown = ""
        for piece in TextStream(rig.driver, PROMPT, params):
            shown += piece.text
            assert whole[:cut].startswith(shown)
        assert shown == whole[:cut]
        assert rig.driver.open(PROMPT) is not None


def test_the_token_that_ends_an_answer_is_not_shown(handle: ModelHandle) -> None:
    expected = greedy(handle, PROMPT, 8)
    last = expected[4]
    count = expected.index(last) + 1
    with driving(handle) as rig:
        params = SamplingParams(max_tokens=8, ignore_eos=True, stop_token_ids=(last,))
        answer = complete(rig.driver, PROMPT, params)
        assert answer.tokens == tuple(expected[:count]) and answer.finish_reason is FinishReason.STOP
        assert answer.text == handle.tokenizer.decode(expected[: count - 1], continues=True)


def test_the_seed_of_an_answer_repeats_it(handle: ModelHandle) -> None:
    drawn = SamplingParams(max_tokens=10, temperature=2.0, ignore_eos=True)
    with driving(handle) as rig:
        first = complete(rig.driver, PROMPT, drawn)
        seeded = SamplingParams(max_tokens=10, temperature=2.0, ignore_eos=True, seed=first.seed)
        assert complete(rig.driver, PROMPT, seeded).tokens == first.tokens


def test_a_stream_that_is_dropped_frees_its_row(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        stream = TextStream(rig.driver, PROMPT, SamplingParams(max_tokens=20))
        next(stream)
        with pytest.raises(RequestError, match="rows are taken"):
            TextStream(rig.driver, PROMPT)
        del stream
        TextStream(rig.driver, PROMPT).close()


def test_control_tokens_have_no_text_unless_it_is_asked_for(handle: ModelHandle) -> None:
    control = min(handle.tokenizer.control_ids)
    params = {"max_tokens": 3, "ignore_eos": True, "allowed_token_ids": (control,)}
    with driving(handle) as rig:
        assert complete(rig.driver, PROMPT, SamplingParams.of(params)).text == ""
        shown = complete(rig.driver, PROMPT, SamplingParams.of({**params, "skip_special_tokens": False}))
        assert shown.tokens == (control,) * 3
        assert shown.text == handle.tokenizer.token_text(control) * 3
