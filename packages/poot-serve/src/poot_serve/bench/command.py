"""Measure a server with OpenAI's interface: time to the first token, time per token, throughput."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import math
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from poot_executor.errors import RequestError
from poot_llm.cli.output import write
from poot_llm.cli.parser import whole
from poot_serve.bench.measure import Pace
from poot_serve.bench.measure import run as measure_run
from poot_serve.bench.report import as_json, table
from poot_serve.bench.request import CHAT, COMPLETIONS, BenchError, Target
from poot_serve.bench.summary import summarize
from poot_serve.bench.workload import Workload

GOALS = ("ttft", "tpot", "e2el")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server, what it is sent and how fast, what is printed."""
    add = parser.add_argument
    add("--base-url", default="http://127.0.0.1:8080", metavar="URL", help="the server (default: %(default)s)")
    add("--endpoint", choices=(COMPLETIONS, CHAT), default=COMPLETIONS, help="(default: %(default)s)")
    add("--model", default="", metavar="NAME", help="(default: the first that the server lists)")
    add("--api-key", default=os.environ.get("OPENAI_API_KEY"), metavar="KEY", help="(default: OPENAI_API_KEY)")
    load = parser.add_argument_group("workload")
    add = load.add_argument
    add("--dataset", choices=("random", "shared-prefix"), default="random",
        help="random words, or random words after one of a few long beginnings (default: random)")  # fmt: skip
    add("--input-len", type=whole, default=128, metavar="N", help="tokens of a prompt (default: 128)")
    add("--output-len", type=whole, default=128, metavar="N", help="tokens of an answer (default: 128)")
    add("--range-ratio", type=fraction, default=0.0, metavar="R",
        help="lengths are drawn within this share of themselves (default: 0, all are equal)")  # fmt: skip
    add("--prefix-len", type=whole, default=256, metavar="N", help="tokens of a shared beginning (default: 256)")
    add("--num-prefixes", type=whole, default=4, metavar="N", help="shared beginnings (default: 4)")
    add("--num-prompts", type=whole, default=64, metavar="N", help="requests (default: 64)")
    add("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default: 0)")
    add("--ignore-eos", action=argparse.BooleanOptionalAction, default=True,
        help="ask for answers of the full length, by the field ignore_eos (default: yes)")  # fmt: skip
    add("--temperature", type=float, default=0.0, metavar="T", help="(default: 0)")
    add("--num-warmups", type=int, default=1, metavar="N", help="requests before those that count (default: 1)")
    pace = parser.add_argument_group("pace")
    add = pace.add_argument
    add("--max-concurrency", type=whole, metavar="N", help="requests at once (default: any number)")
    add("--request-rate", type=positive, default=math.inf, metavar="R", help="requests a second (default: inf)")
    add("--burstiness", type=positive, default=1.0, metavar="B",
        help="shape of the gaps between requests: 1 is a Poisson process, more is more even (default: 1)")  # fmt: skip
    add("--timeout", type=positive, default=600.0, metavar="S", help="seconds of a request (default: 600)")
    out = parser.add_argument_group("output")
    add = out.add_argument
    add("--goodput", nargs="+", type=goal, default=[], metavar="NAME:MS",
        help=f"count requests that keep these times: {', '.join(GOALS)}")  # fmt: skip
    add("--metric-percentiles", type=percentages, default=(90.0, 99.0), metavar="P",
        help="with commas between them, beside the median (default: 90,99)")  # fmt: skip
    add("--json", action="store_true", help="one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 1 where a request failed. Raises RequestError, and BenchError where nothing can be sent."""
    if importlib.util.find_spec("aiohttp") is None:
        raise BenchError("aiohttp is not installed: pip install 'poot-serve[bench]'")
    if not arguments.base_url.startswith(("http://", "https://")):
        raise RequestError(f"--base-url {arguments.base_url}: it begins with http:// or https://")
    fields: dict[str, Any] = {"temperature": arguments.temperature}
    if arguments.ignore_eos:
        fields["ignore_eos"] = True
    target = Target(arguments.base_url.rstrip("/").removesuffix("/v1"), arguments.endpoint, arguments.model, fields)
    pace = Pace(arguments.max_concurrency, arguments.request_rate, arguments.burstiness)
    measured = asyncio.run(
        measure_run(
            target, workload(arguments), pace, key=arguments.api_key, warmups=arguments.num_warmups,
            seconds=arguments.timeout, progress=_progress(arguments.num_prompts),
        )
    )  # fmt: skip
    summary = summarize(measured, arguments.metric_percentiles, dict(arguments.goodput))
    write(f"{as_json(summary, about(arguments))}\n" if arguments.json else table(summary, about(arguments)))
    return 1 if summary.failed else 0


def workload(arguments: argparse.Namespace) -> Workload:
    """What the arguments ask for."""
    shared = arguments.dataset == "shared-prefix"
    return Workload(
        arguments.num_prompts, arguments.input_len, arguments.output_len, arguments.range_ratio,
        arguments.num_prefixes if shared else 0, arguments.prefix_len if shared else 0, arguments.seed,
    )  # fmt: skip


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings, as the JSON object has them."""
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "base_url": arguments.base_url,
        "endpoint": arguments.endpoint,
        "dataset": arguments.dataset,
        "input_len": arguments.input_len,
        "output_len": arguments.output_len,
        "num_prompts": arguments.num_prompts,
        "seed": arguments.seed,
        "request_rate": "inf" if math.isinf(arguments.request_rate) else arguments.request_rate,
        "burstiness": arguments.burstiness,
        "max_concurrency": arguments.max_concurrency,
    }


def _progress(count: int) -> Callable[[int], None]:
    """A line on a terminal that says how many requests are done; elsewhere nothing."""
    if not sys.stderr.isatty():
        return lambda _: None

    def show(done: int) -> None:
        sys.stderr.write(f"\r{done} of {count}" + ("\r\x1b[K" if done == count else ""))
        sys.stderr.flush()

    return show


def fraction(text: str) -> float:
    """A number of the command line from 0 up to and without 1."""
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to below 1")
    return number


def positive(text: str) -> float:
    """A number of the command line that is above 0; it may be infinite."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def percentages(text: str) -> tuple[float, ...]:
    """Numbers from 0 to 100, with commas between them."""
    numbers = tuple(float(part) for part in text.split(","))
    if not all(0 <= number <= 100 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text} is not numbers from 0 to 100")
    return numbers


def goal(text: str) -> tuple[str, float]:
    """A name and its most milliseconds, as in ttft:200."""
    name, colon, most = text.partition(":")
    if name not in GOALS or not colon:
        raise argparse.ArgumentTypeError(f"{text} is not NAME:MS with a name of {', '.join(GOALS)}")
    return name, positive(most)
