"""Running a benchmark: finding the model, measuring words, sending every request at its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from poot_serve.bench.request import BenchError, Record, Target, send
from poot_serve.bench.words import Measure, measure
from poot_serve.bench.workload import Prompt, Workload, arrivals, probes, prompts

if TYPE_CHECKING:
    from aiohttp import ClientSession


@dataclass(frozen=True, slots=True)
class Pace:
    """At most `concurrency` requests at once (None: no limit), coming at `rate` a second (infinite: all at once)."""

    concurrency: int | None
    rate: float
    burstiness: float = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured: every request's record, and the seconds from the first one's start to the last one's end.
    `words` is what a word took in tokens there.
    """

    records: tuple[Record, ...]
    seconds: float
    most_at_once: int
    words: Measure = field(default_factory=Measure)


async def run(
    target: Target, workload: Workload, pace: Pace, *, key: str | None, warmups: int, seconds: float,
    progress: Callable[[int], None], words: Measure | None = None,
) -> Run:  # fmt: skip
    """Everything, in order: the measure of words, warm-ups, then what counts. `seconds` bound each request. With
    `words`, which another server gave, prompts are what they were there.

    Raises BenchError where the server does not answer at all or refuses the first request.
    """
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connector = TCPConnector(limit=0, keepalive_timeout=60)
    timeout = ClientTimeout(total=seconds)
    async with ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        if not target.model:
            target = Target(target.base_url, target.endpoint, await _model(session, target), target.fields)
        words = await _measure(session, target, workload.seed) if words is None else words
        made = prompts(workload, words)
        for prompt in made[:1] * warmups:
            record = await send(session, target, prompt)
            if record.error is not None:
                raise BenchError(f"the first request failed: {record.error}")
        times = arrivals(workload.count, pace.rate, pace.burstiness, workload.seed)
        return await _send_all(session, target, made, times, pace.concurrency, progress, words)


async def _send_all(
    session: ClientSession, target: Target, made: Sequence[Prompt], times: Sequence[float], most: int | None,
    progress: Callable[[int], None], words: Measure,
) -> Run:  # fmt: skip
    slots = asyncio.Semaphore(most or len(made))
    at_once = highest = finished = 0
    started = perf_counter()

    async def one(prompt: Prompt, at: float) -> Record:
        nonlocal at_once, highest, finished
        await asyncio.sleep(max(0.0, started + at - perf_counter()))
        async with slots:
            at_once += 1
            highest = max(highest, at_once)
            record = await send(session, target, prompt)
            at_once -= 1
        finished += 1
        progress(finished)
        return record

    records = await asyncio.gather(*(one(prompt, at) for prompt, at in zip(made, times, strict=True)))
    return Run(tuple(records), perf_counter() - started, highest, words)


async def _model(session: ClientSession, target: Target) -> str:
    """The first model that the server lists."""
    listing = await _ask(session, "GET", f"{target.base_url}/v1/models", None)
    try:
        return str(listing["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise BenchError("the server lists no model: see --model") from None


async def _measure(session: ClientSession, target: Target, seed: int) -> Measure:
    counts: list[tuple[int, int]] = []
    for words, text in probes(seed):
        answer = await _ask(session, "POST", target.url, target.body(text, 1, stream=False))
        tokens = (answer.get("usage") or {}).get("prompt_tokens")
        if not isinstance(tokens, int):
            raise BenchError("the server does not count tokens (usage.prompt_tokens): how long is a prompt, then?")
        counts.append((words, tokens))
    try:
        return measure(counts)
    except ValueError as error:
        raise BenchError(f"the server's counts make no sense: {error}") from error


async def _ask(session: ClientSession, method: str, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
    from aiohttp import ClientError

    try:
        async with session.request(method, url, json=body) as answer:
            if answer.status != 200:
                text = " ".join((await answer.text()).split())[:300]
                raise BenchError(f"{url} answered with status {answer.status}: {text}")
            return await answer.json(content_type=None)
    except (ClientError, TimeoutError, OSError, ValueError) as error:
        raise BenchError(f"{url}: {type(error).__name__}: {error}") from error
