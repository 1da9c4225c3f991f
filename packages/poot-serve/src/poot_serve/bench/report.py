"""A summary as the table that `vllm bench serve` prints, and as its JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from poot_serve.bench.summary import TITLES, Summary

_WIDTH, _LABEL = 50, 40
_ERRORS = 10
"""Kinds of failure that the table lists."""


def table(summary: Summary, about: Mapping[str, Any]) -> str:
    """The table. `about` has the settings: `max_concurrency` and `request_rate` are part of it."""
    return "\n".join(_lines(summary, about)) + "\n"


def _lines(summary: Summary, about: Mapping[str, Any]) -> Iterator[str]:
    yield " Serving Benchmark Result ".center(_WIDTH, "=")
    yield _line("Successful requests:", summary.completed)
    yield _line("Failed requests:", summary.failed)
    if about["max_concurrency"] is not None:
        yield _line("Maximum request concurrency:", about["max_concurrency"])
    if about["request_rate"] != "inf":
        yield _line("Request rate configured (RPS):", float(about["request_rate"]))
    yield _line("Benchmark duration (s):", summary.duration)
    yield _line("Total input tokens:", summary.total_input_tokens)
    yield _line("Total generated tokens:", summary.total_output_tokens)
    yield _line("Request throughput (req/s):", summary.request_throughput)
    if summary.request_goodput is not None:
        yield _line("Request goodput (req/s):", summary.request_goodput)
    yield _line("Output token throughput (tok/s):", summary.output_throughput)
    yield _line("Peak output token throughput (tok/s):", summary.max_output_tokens_per_s)
    yield _line("Peak concurrent requests:", summary.max_concurrent_requests)
    yield _line("Total token throughput (tok/s):", summary.total_token_throughput)
    for name, title in TITLES.items():
        spread = summary.spreads[name]
        yield title.center(_WIDTH, "-")
        yield _line(f"Mean {name.upper()} (ms):", spread.mean)
        yield _line(f"Median {name.upper()} (ms):", spread.median)
        for percentile, value in spread.percentiles.items():
            yield _line(f"P{percentile:g} {name.upper()} (ms):", value)
    yield "=" * _WIDTH
    kinds = sorted(summary.errors.items(), key=lambda kind: -kind[1])
    for error, count in kinds[:_ERRORS]:
        yield f"{count} failed: {error}"
    if len(kinds) > _ERRORS:
        yield f"and {len(kinds) - _ERRORS} further kinds of failure"


def _line(label: str, value: float) -> str:
    number = str(value) if isinstance(value, int) else f"{value:.2f}"
    return f"{label:<{_LABEL}} {number:<{_WIDTH - _LABEL - 1}}".rstrip()


def as_json(summary: Summary, about: Mapping[str, Any]) -> str:
    """One JSON object: settings, then results. What was not measured is null."""
    result: dict[str, Any] = {
        **about,
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.request_goodput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
        "errors": dict(summary.errors),
    }
    for name, spread in summary.spreads.items():
        numbers = {"mean": spread.mean, "median": spread.median, "std": spread.std}
        numbers |= {f"p{percentile:g}": value for percentile, value in spread.percentiles.items()}
        result |= {f"{what}_{name}_ms": None if math.isnan(value) else value for what, value in numbers.items()}
    return json.dumps(result)
