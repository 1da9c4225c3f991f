"""The parts of `poot bench serve`: workloads, arrivals, words, records and summaries."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise

import pytest

from poot_serve.bench.measure import Run
from poot_serve.bench.report import as_json, table
from poot_serve.bench.request import Record
from poot_serve.bench.summary import summarize
from poot_serve.bench.words import WORDS, Measure, measure
from poot_serve.bench.workload import Workload, arrivals, prompts

ABOUT = {"max_concurrency": 4, "request_rate": "inf"}


def test_words_are_words() -> None:
    assert len(WORDS) > 100
    assert all(word.isalpha() and word.islower() for word in WORDS)


def test_a_measure_is_a_line_through_two_counts() -> None:
    found = measure([(144, 320), (16, 64)])
    assert found == Measure(fixed=32.0, each=2.0)
    assert found.words(232) == 100
    assert found.words(5) == 1
    with pytest.raises(ValueError, match="144 words"):
        measure([(16, 64), (144, 64)])


def test_prompts_have_the_lengths_that_were_asked_for() -> None:
    made = prompts(Workload(50, 100, 20, seed=3), Measure(fixed=10.0, each=1.0))
    assert [len(prompt.text.split()) for prompt in made] == [90] * 50
    assert {prompt.output_tokens for prompt in made} == {20}
    assert len({prompt.text for prompt in made}) == 50
    assert made == prompts(Workload(50, 100, 20, seed=3), Measure(fixed=10.0, each=1.0))
    assert made != prompts(Workload(50, 100, 20, seed=4), Measure(fixed=10.0, each=1.0))


def test_lengths_spread_as_far_as_they_may() -> None:
    made = prompts(Workload(400, 100, 20, spread=0.5), Measure())
    inputs = {len(prompt.text.split()) for prompt in made}
    outputs = {prompt.output_tokens for prompt in made}
    assert min(inputs) >= 50 and max(inputs) <= 150 and len(inputs) > 60
    assert outputs == set(range(10, 31))


def test_shared_prefixes_take_turns() -> None:
    made = prompts(Workload(9, 10, 5, prefixes=3, prefix_tokens=40), Measure(each=2.0))
    assert [len(prompt.text.split()) for prompt in made] == [25] * 9
    heads = [" ".join(prompt.text.split()[:20]) for prompt in made]
    assert heads == heads[:3] * 3 and len(set(heads)) == 3
    assert len({prompt.text for prompt in made}) == 9


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0)])
def test_arrivals_have_their_rate_and_their_spread(burstiness: float, variation: float) -> None:
    """Of a gamma distribution of shape k the standard deviation is the mean over the square root of k."""
    times = arrivals(20_001, 50.0, burstiness, seed=1)
    assert times[0] == 0.0 and len(times) == 20_001
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(0.02 * variation, rel=0.06)
    assert arrivals(20_001, 50.0, burstiness, seed=1) == times != arrivals(20_001, 50.0, burstiness, seed=2)


def test_without_a_rate_all_come_at_once() -> None:
    assert arrivals(3, math.inf, 1.0, seed=0) == [0.0, 0.0, 0.0]


def record(sent: float, *pieces: float, tokens: int | None = None) -> Record:
    ended = pieces[-1] if pieces else sent + 1
    return Record(sent, ended, list(pieces), prompt_tokens=10, counted_tokens=tokens)


def test_times_of_a_record() -> None:
    one = record(1.0, 1.5, 1.75, 2.5)
    assert (one.ttft, one.latency, one.tpot, one.gaps) == (0.5, 1.5, 0.5, [0.25, 0.75])
    several_a_piece = record(0.0, 1.0, 2.0, tokens=5)
    assert (several_a_piece.output_tokens, several_a_piece.tpot) == (5, 0.25)
    alone, silent = record(0.0, 1.0), record(0.0)
    assert (alone.tpot, alone.gaps, silent.ttft, silent.output_tokens) == (None, [], 1.0, 0)


def test_a_summary() -> None:
    bad = Record(0.0, 9.0, [1.0], error="status 500: no")
    run = Run((record(0.0, 0.5, 1.0, 1.5), record(1.0, 1.25, 1.5), bad), seconds=2.0, most_at_once=3)
    found = summarize(run, (50.0, 100.0), {"ttft": 300.0, "tpot": 400.0})
    assert (found.completed, found.failed, found.errors) == (2, 1, {"status 500: no": 1})
    assert (found.total_input_tokens, found.total_output_tokens) == (20, 5)
    assert (found.request_throughput, found.output_throughput, found.total_token_throughput) == (1.0, 2.5, 12.5)
    assert found.request_goodput == 0.5
    assert found.max_output_tokens_per_s == 4.0 and found.max_concurrent_requests == 3
    ttft = found.spreads["ttft"]
    assert (ttft.mean, ttft.median, ttft.std, ttft.percentiles) == (375.0, 375.0, 125.0, {50.0: 375.0, 100.0: 500.0})
    assert found.spreads["tpot"].mean == 375.0
    assert found.spreads["itl"].percentiles == {50.0: 500.0, 100.0: 500.0}
    assert found.spreads["e2el"].mean == 1000.0
    assert summarize(run, (50.0,), {}).request_goodput is None


def test_the_table_has_the_names_that_people_know() -> None:
    run = Run((record(0.0, 0.5, 1.0, 1.5),), seconds=2.0, most_at_once=1)
    shown = table(summarize(run, (99.0,), {"ttft": 1000.0}), ABOUT)
    lines = shown.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests:                     1" in lines
    assert "Request goodput (req/s):                 0.50" in lines
    assert "Output token throughput (tok/s):         1.50" in lines
    assert "---------------Time to First Token----------------" in lines
    assert "P99 TTFT (ms):                           500.00" in lines
    assert "Median ITL (ms):                         500.00" in lines
    assert "Mean E2EL (ms):                          1500.00" in lines
    assert max(map(len, lines)) <= 50


def test_the_json_has_the_same_numbers_and_no_nan() -> None:
    run = Run((record(0.0, 0.5),), seconds=2.0, most_at_once=1)
    found = json.loads(as_json(summarize(run, (99.0,), {}), ABOUT), parse_constant=pytest.fail)
    assert found["mean_ttft_ms"] == found["p99_ttft_ms"] == 500.0
    assert found["median_tpot_ms"] is None and found["request_goodput"] is None
    assert found["output_throughput"] == 0.5 and found["max_concurrency"] == 4
