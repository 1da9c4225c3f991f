"""The loop: answers are those of requests alone, whatever runs beside them; room comes back within a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import sleep, thread_time
from typing import Any

import numpy as np
import pytest

from poot_executor.errors import DeviceLost
from poot_llm.driver import FinishReason, Layout
from poot_llm.guided.limits import GuideLimits
from poot_llm.guided.spec import StructuredOutputs
from poot_llm.sampling import SamplingParams
from poot_serve.engine import loop
from poot_serve.engine.messages import Accepted, Failed, Tokens
from poot_serve.engine.settings import EngineSettings

BASE = [104, 277, 102, 110, 35, 101, 117, 114, 122, 113, 290, 7, 300, 9, 12, 60] * 3
SHORT = SamplingParams(max_tokens=6, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=5)
Make = Callable[..., Any]
Alone = Callable[[list[int], SamplingParams], list[int]]


def test_random_requests_and_cancels_end_as_they_would_alone(
    turns: Make, alone: Alone, rng: np.random.Generator
) -> None:
    made, asked, cancelled = turns(), {}, set()
    for id in range(12):
        prompt = BASE[: int(rng.integers(1, 45))]
        params = replace([SHORT, DRAWN][id % 2], n=int(rng.integers(1, 4)), seed=int(rng.integers(1 << 40)))
        made.ask(id, prompt, params)
        asked[id] = prompt, params
        for _ in range(int(rng.integers(0, 5))):
            if made.busy:
                made.turn()
        if rng.random() < 0.3:
            victim = int(rng.integers(0, id + 1))
            made.cancel(victim)
            cancelled.add(victim)
    made.until_idle()
    made.check_empty()
    assert not made.failed
    ended = 0
    for id, (prompt, params) in asked.items():
        for choice in range(params.n):
            expected = alone(prompt, replace(params, n=1, seed=params.seed + choice))
            given = made.tokens.get((id, choice), [])
            assert given == expected[: len(given)], (id, choice)
            if (id, choice) in made.ended:
                ended += 1
                assert given == expected and made.ended[id, choice] is FinishReason.LENGTH
            else:
                assert id in cancelled
    stats = made.stats
    taken = sum(params.n for _, params in asked.values())
    assert (stats.finished, stats.finished + stats.cancelled + stats.failed) == (ended, taken)
    assert stats.generated_tokens == sum(map(len, made.tokens.values()))
    assert sum(stats.step_buckets) == sum(stats.host_buckets) == stats.steps


def test_the_time_of_the_loop_is_its_own(turns: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the device's, in beginning and ending steps, nor what nobody uses: of a device that takes the processor for
    both, and then has the loop wait.
    """
    made = turns(rows=2, pool_blocks=24)
    flights = made.driver._flights
    submit, collect = flights._executor.submit, flights._executor.collect
    taken = []

    def busy(work: Callable[..., Any], *arguments: Any) -> Any:
        began = thread_time()
        while (spent := thread_time() - began) < 0.01:
            pass
        taken.append(spent)
        return work(*arguments)

    def waiting(*arguments: Any) -> Any:
        sleep(0.01)
        return busy(collect, *arguments)

    monkeypatch.setattr(flights._executor, "submit", lambda *arguments: busy(submit, *arguments))
    monkeypatch.setattr(flights._executor, "collect", waiting)
    made.ask(1, BASE[:9], SHORT)
    began = thread_time()
    made.until_idle()
    whole = thread_time() - began
    stats = made.stats
    assert len(taken) == 2 * stats.steps > 0
    assert stats.device_seconds >= sum(taken) and stats.wait_seconds >= 0.01 * stats.steps
    assert 0 < stats.host_seconds <= whole - stats.device_seconds
    assert stats.step_seconds >= stats.wait_seconds


def test_counts_are_said_where_more_than_tokens_is_new(turns: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = turns(rows=1)
    said = []
    monkeypatch.setattr(made.loop, "_send", lambda report: (said.append(report.stats), made.reports.append(report)))
    monkeypatch.setattr(loop, "monotonic", lambda: 7.0)
    made.ask(1, BASE[:9], replace(SHORT, max_tokens=12))
    while not made.tokens:
        made.turn()
    said.clear()
    for _ in range(4):
        made.turn()
    assert said == [None] * 4
    made.ask(2, BASE[:9], SHORT)
    made.turn()
    assert said[-1] is not None and (said[-1].running, said[-1].waiting) == (1, 1)
    made.turn()
    assert said[-1] is None
    monkeypatch.setattr(loop, "monotonic", lambda: 7.0 + loop.COUNT_SECONDS)
    made.turn()
    assert said[-1] is not None and said[-1].generated_tokens == len(made.tokens[1, 0])
    made.until_idle()
    assert said[-1] is not None and (said[-1].finished, said[-1].running) == (2, 0)


def test_several_answers_share_one_reading_of_the_prompt(turns: Make, alone: Alone) -> None:
    made = turns(rows=4, pool_blocks=24)
    prompt, params = BASE[:40], replace(DRAWN, n=4)
    made.ask(1, prompt, params)
    made.until_idle()
    for choice in range(4):
        assert made.tokens[1, choice] == alone(prompt, replace(params, n=1, seed=5 + choice))
    # Two blocks of 16 are found; the rest, and the last one's logits, are computed again.
    assert [made.first[1, choice].cached for choice in range(4)] == [0, 32, 32, 32]
    assert made.stats.prefix_tokens == 3 * 32 and made.stats.prompt_tokens == 4 * 40
    made.check_empty()


def test_several_answers_share_it_by_default_where_kv_is_contiguous(turns: Make, alone: Alone) -> None:
    cache = EngineSettings("model").driver.prefix_cache
    made = turns(rows=3, layout=Layout.CONTIGUOUS, pool_blocks=None, prefix_cache=cache)
    assert made.driver.kv.shares
    prompt, params = BASE[:40], replace(DRAWN, n=3)
    made.ask(1, prompt, params)
    made.until_idle()
    for choice in range(3):
        assert made.tokens[1, choice] == alone(prompt, replace(params, n=1, seed=5 + choice))
    made.check_empty()


def test_a_request_that_gives_way_ends_as_it_would_have(turns: Make, alone: Alone) -> None:
    """Three rows that grow, and a pool for less: the last ones give their room to the first."""
    made = turns(pool_blocks=6)
    params = replace(SHORT, max_tokens=30)
    prompts = [BASE[start : start + 20] for start in (0, 3, 7)]
    for id, prompt in enumerate(prompts):
        made.ask(id, prompt, params)
    made.until_idle()
    assert made.stats.preemptions > 0
    for id, prompt in enumerate(prompts):
        assert made.tokens[id, 0] == alone(prompt, params)
    made.check_empty()


def test_a_request_whose_answers_are_refused_fails_once_and_leaves_nothing(turns: Make) -> None:
    made = turns()
    made.ask(1, [], replace(SHORT, n=3))
    made.turn()
    assert made.failed[1].kind == "RequestError" and "empty" in made.failed[1].message
    assert made.stats.failed == 3
    made.check_empty()


@pytest.mark.parametrize("state", ["compiling", "queued", "held", "reading", "answering"])
def test_a_request_that_is_given_up_frees_its_room_within_a_step(turns: Make, state: str) -> None:
    made = turns(rows=1, loop={"prefill_tokens": 8})
    params = replace(SHORT, max_tokens=20)
    match state:
        case "compiling":
            slow = StructuredOutputs(regex="(a|b|c){1,900}x(d|e|f){1,900}")
            made.ask(1, BASE[:4], replace(params, ignore_eos=False, structured_outputs=slow))
        case "queued":
            made.ask(0, BASE[:4], params)
            made.ask(1, BASE[:4], params)
            made.turn()
            assert made.stats.waiting == 1
        case "held":
            made.ask(1, BASE[:40], replace(params, n=3))
            made.turn()
            assert (made.stats.running, made.stats.waiting) == (1, 2)
        case "reading":
            made.ask(1, BASE[:40], params)
            made.turn()
            assert (made.driver.use().rows_taken, made.tokens) == (1, {})
        case "answering":
            made.ask(1, BASE[:4], params)
            while len(made.tokens.get((1, 0), [])) < 3:
                made.turn()
    before = made.tokens.get((1, 0))
    made.cancel(1)
    made.turn()
    if state == "queued":
        assert made.stats.running == 1
        made.until_idle()
    assert made.tokens.get((1, 0)) == before and 1 not in made.failed
    assert made.stats.cancelled == (3 if state == "held" else 1)
    made.check_empty()


def test_one_answer_of_several_is_given_up_alone(turns: Make) -> None:
    made = turns(pool_blocks=24)
    made.ask(1, BASE[:20], replace(SHORT, n=3, max_tokens=20))
    while not {(1, 0), (1, 1), (1, 2)} <= set(made.tokens):
        made.turn()
    made.cancel(1, 1, done=True)
    made.until_idle()
    assert set(made.ended) == {(1, 0), (1, 2)}
    assert (made.stats.finished, made.stats.cancelled) == (3, 0)
    made.check_empty()


def test_a_long_prompt_is_not_starved_by_short_ones(turns: Make) -> None:
    """Short requests come without end, and fill the rows; the long one gets its row in its turn and is read a chunk a
    step, beside them.
    """
    made = turns(rows=3, pool_blocks=24, loop={"prefill_tokens": 8})
    next_id = 0

    def keep_up() -> None:
        nonlocal next_id
        while next_id - len(made.ended) < 6:
            made.ask(next_id, BASE[next_id % 7 : next_id % 7 + 6], SHORT)
            next_id += 1

    keep_up()
    for _ in range(3):
        made.turn()
    ahead = next_id - len(made.ended)
    made.ask(1000, BASE[:48], SHORT)
    asked_at = made.turns
    while (1000, 0) not in made.tokens:
        keep_up()
        made.turn()
    # Those before it need two rounds of the rows, each of a chunk and six tokens; then six chunks.
    assert made.turns - asked_at <= (ahead // 3 + 1) * 8 + 7
    made.until_idle()
    made.check_empty()


def test_short_requests_are_answered_while_a_long_prompt_is_read(turns: Make) -> None:
    made = turns(rows=3, pool_blocks=24)
    made.ask(0, BASE[:8], replace(SHORT, max_tokens=30))
    made.turn()
    made.ask(1, BASE[:48], SHORT)
    while (1, 0) not in made.tokens:
        events = made.turn()
        assert any(isinstance(event, Tokens) and event.id == 0 for event in events)
    assert made.turns >= 6


def test_constraints_compile_beside_the_steps(turns: Make) -> None:
    """Those that cannot be compiled hold nobody up and fail nobody else."""
    made = turns()
    guided = replace(SHORT, max_tokens=12, ignore_eos=False)
    made.ask(0, BASE[:4], replace(SHORT, max_tokens=40))
    made.turn()
    made.ask(1, BASE[:4], replace(guided, structured_outputs=StructuredOutputs(regex="(a")))
    made.ask(2, BASE[:4], replace(guided, structured_outputs=StructuredOutputs(choice=("yes", "no"))))
    deep = '{"items":' * 200 + "{}" + "}" * 200
    made.ask(3, BASE[:4], replace(guided, structured_outputs=StructuredOutputs(json=deep)))
    made.until_idle()
    while made.stats.compiling:
        made.turn()
    made.until_idle()
    assert set(made.failed) == {1, 3} and "structured_outputs.regex" in made.failed[1].message
    assert {event.kind for event in made.failed.values()} == {"RequestError"}
    assert [event.id for event in made.others if isinstance(event, Accepted)] == [2]
    text = made.driver.handle.tokenizer.decode(made.tokens[2, 0], continues=True)
    assert text in ("yes", "no") and made.ended[2, 0] is FinishReason.STOP
    assert len(made.tokens[0, 0]) == 40
    made.check_empty()


def test_a_constraint_that_is_late_fails_its_request(turns: Make) -> None:
    made = turns(loop={"guides": GuideLimits(seconds=1e-6)})
    guided = replace(SHORT, ignore_eos=False, structured_outputs=StructuredOutputs(regex="(a|b|c){1,900}x"))
    made.ask(0, BASE[:4], SHORT)
    made.ask(1, BASE[:4], guided)
    made.until_idle()
    assert made.failed[1].kind == "RequestError" and "not compiled within" in made.failed[1].message
    assert len(made.tokens[0, 0]) == 6
    made.check_empty()


def test_a_request_that_breaks_a_step_fails_alone(turns: Make, alone: Alone) -> None:
    """A token id that slipped past the host: the device's own check rejects the step, and the state is reset."""
    made = turns(rows=3, pool_blocks=24)
    for id in range(3):
        made.ask(id, BASE[id : id + 20], SHORT)
    while len(made.tokens) < 3:
        made.turn()
    broken = made.loop._jobs[1].live[0].sequence
    broken.tokens[-1] = made.driver.handle.config.vocabulary
    broken.repeat()
    made.until_idle()
    # Whoever was in the step fails with it; the others go on.
    assert made.failed[1].kind == "CheckFailed"
    for id in set(range(3)) - set(made.failed):
        assert made.tokens[id, 0] == alone(BASE[id : id + 20], SHORT)
    made.ask(5, BASE[:9], SHORT)
    made.until_idle()
    assert made.tokens[5, 0] == alone(BASE[:9], SHORT)
    made.check_empty()


def test_a_flood_of_requests_does_not_stop_those_that_run(turns: Make) -> None:
    made = turns(rows=1)
    made.ask(0, BASE[:4], replace(SHORT, max_tokens=20))
    made.turn()
    for id in range(1, 1200):
        made.ask(id, BASE[:4], SHORT)
        made.cancel(id)
    for _ in range(3):
        assert any(isinstance(event, Tokens) for event in made.turn())
    assert not made.inbox.empty()
    made.until_idle()
    assert (made.stats.finished, made.stats.cancelled) == (1, 1199)
    made.check_empty()


def test_what_the_device_cannot_go_on_after_ends_the_loop(turns: Make) -> None:
    made = turns()
    made.ask(0, BASE[:4], SHORT)
    made.turn()

    def lost() -> None:
        raise DeviceLost("the device went away")

    made.driver._executor._device.before_wait = lost
    with pytest.raises(DeviceLost):
        made.until_idle()


def test_texts_are_refused_by_a_model_that_generates(turns: Make) -> None:
    from poot_serve.engine.messages import Encode

    made = turns()
    made.inbox.put(Encode(4, (((1, 2), 2),)))
    assert made.turn() == [Failed(4, "RequestError", "this model generates: it encodes no texts")]
