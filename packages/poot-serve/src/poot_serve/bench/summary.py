"""Numbers of a run, by the names that `vllm bench serve` gives them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from poot_serve.bench.measure import Run
from poot_serve.bench.request import Record

TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds: NaN where nothing was measured. Percentiles interpolate linearly."""

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the requests that completed, throughputs over the whole time. `errors` counts the others by what they met."""

    completed: int
    failed: int
    duration: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    request_goodput: float | None
    spreads: Mapping[str, Spread]
    errors: Mapping[str, int] = field(default_factory=dict)


def summarize(run: Run, percentiles: Sequence[float], goals: Mapping[str, float]) -> Summary:
    """`goals` are the most milliseconds of ttft, tpot or e2el; a request that keeps all of them counts as good."""
    good = [record for record in run.records if record.error is None]
    output = sum(record.output_tokens for record in good)
    received = sum(record.prompt_tokens or 0 for record in good)
    times = {
        "ttft": [record.ttft for record in good],
        "tpot": [record.tpot for record in good if record.tpot is not None],
        "itl": [gap for record in good for gap in record.gaps],
        "e2el": [record.latency for record in good],
    }
    kept = sum(_keeps(record, goals) for record in good)
    return Summary(
        completed=len(good),
        failed=len(run.records) - len(good),
        duration=run.seconds,
        total_input_tokens=received,
        total_output_tokens=output,
        request_throughput=len(good) / run.seconds,
        output_throughput=output / run.seconds,
        total_token_throughput=(output + received) / run.seconds,
        max_output_tokens_per_s=_peak(good),
        max_concurrent_requests=run.most_at_once,
        request_goodput=kept / run.seconds if goals else None,
        spreads={name: _spread(values, percentiles) for name, values in times.items()},
        errors=Counter(record.error for record in run.records if record.error is not None),
    )


def _keeps(record: Record, goals: Mapping[str, float]) -> bool:
    seconds = {"ttft": record.ttft, "tpot": record.tpot or 0.0, "e2el": record.latency}
    return all(1e3 * seconds[name] <= most for name, most in goals.items())


def _spread(seconds: Sequence[float], percentiles: Sequence[float]) -> Spread:
    if not seconds:
        return Spread(math.nan, math.nan, math.nan, dict.fromkeys(percentiles, math.nan))
    values = 1e3 * np.asarray(seconds)
    at = {p: float(np.percentile(values, p)) for p in percentiles}
    return Spread(float(values.mean()), float(np.median(values)), float(values.std()), at)


def _peak(records: Sequence[Record]) -> float:
    """Tokens of the second that had most, seconds being counted from the first request's start.

    A piece counts as its share of the answer's tokens: several may come as one.
    """
    if not any(record.pieces for record in records):
        return 0.0
    start = min(record.sent for record in records)
    seconds: defaultdict[int, float] = defaultdict(float)
    for record in records:
        share = record.output_tokens / len(record.pieces) if record.pieces else 0.0
        for piece in record.pieces:
            seconds[int(piece - start)] += share
    return max(seconds.values())
