"""Many clients of `poot serve`, beside llama-server on the same file: `hatch run bench:serve [MODEL] [--peer FILE]`.

Both servers run at once, each in a process of its own on loopback, and are measured in turn: each repeat sends the same
prompts of the same lengths to one, then to the other, by what `poot bench serve` measures with. No two repeats share a
prompt. Before that one greedy answer of each is compared. `--peer llama-server` names the program; without it poot is
measured alone. Of poot's loop it prints what a step took of the processor. Exit status 1 where a request
failed, where an answer had another length than was asked for, or where the servers count a prompt's tokens differently.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from statistics import median

import served
from aiohttp import ClientSession, ClientTimeout
from cells import commit_of

from poot_llm.registry import Models
from poot_serve.bench.measure import Pace, Run, run
from poot_serve.bench.request import COMPLETIONS, Target
from poot_serve.bench.summary import Summary, summarize
from poot_serve.bench.words import Measure
from poot_serve.bench.workload import Workload

ROOT = Path(__file__).resolve().parent.parent
FIELDS = {"temperature": 0.0, "ignore_eos": True}
STORY = "Once upon a time there was"
BUDGET_SECONDS = 0.0004
"""What a step of the loop may take of the processor, the device's part apart, at 16 rows."""
DEVICE = ("poot_loop_device_seconds_total", "poot_loop_wait_seconds_total")
"""What the loop's thread did for the device, and how long it waited for it."""
THROUGHPUT, TTFT = 1.0, 0.5
"""The aims: at least this share of the peer's throughput, at most this share of its time to the first token."""


@dataclass(slots=True)
class Server:
    """One of the servers, and what was measured of it at one number of clients."""

    name: str
    target: Target
    summaries: list[Summary] = field(default_factory=list)

    def throughputs(self) -> list[float]:
        """Tokens of answers a second, of each repeat."""
        return [one.output_throughput for one in self.summaries]

    def ttfts(self) -> list[float]:
        """Median milliseconds to the first text, of each repeat."""
        return [one.spreads["ttft"].median for one in self.summaries]

    def line(self) -> str:
        """A line of the table: medians of the repeats, with the least and the most."""
        tpots = [one.spreads["tpot"].median for one in self.summaries]
        return (f"  {self.name:<14} {_spread(self.throughputs())} tok/s   TTFT p50 {_spread(self.ttfts())} ms   "
                f"TPOT p50 {_spread(tpots)} ms")  # fmt: skip


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f}, {max(values):.1f})"


class Comparison:
    """One run: the servers, and what was not as it should be."""

    def __init__(self, arguments: argparse.Namespace, session: ClientSession, servers: list[Server]) -> None:
        self._arguments = arguments
        self._session = session
        self._servers = servers
        self._words: Measure | None = None
        self.faults: list[str] = []

    async def check(self) -> None:
        """One greedy answer of each, compared: they compute the same model, in other arithmetic."""
        texts = []
        for server in self._servers:
            body = {**FIELDS, "prompt": STORY, "max_tokens": 24}
            async with self._session.post(server.target.url, json=body) as answer:
                value = await answer.json()
            if answer.status != 200:
                self.faults.append(f"{server.name} answered with status {answer.status}: {value}")
                return
            texts.append(value["choices"][0]["text"])
        if len(texts) > 1:
            alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
            print(f"a greedy answer is the same for its first {alike} of {min(map(len, texts))} characters")
            if not alike:
                self.faults.append(f"the servers begin a greedy answer differently: {texts}")

    async def measure(self, clients: int) -> None:
        """So many clients, each repeat with prompts of its own, the servers in turn."""
        arguments = self._arguments
        for server in self._servers:
            server.summaries.clear()
        url = self._servers[0].target.base_url
        before = await served.metrics(self._session, url)
        for repeat in range(arguments.repeats):
            count = max(arguments.num_prompts, clients * arguments.rounds)
            seed = arguments.seed + 1000 * repeat + clients
            workload = Workload(count, arguments.input_len, arguments.output_len, seed=seed)
            runs: list[Run] = []
            for server in self._servers:
                made = await run(server.target, workload, Pace(clients, float("inf")), key=None, warmups=1,
                                 seconds=arguments.timeout, progress=lambda _: None, words=self._words)  # fmt: skip
                self._words = made.words
                server.summaries.append(summarize(made, (90.0,), {}))
                self._look(server.name, made)
                runs.append(made)
            counts = [[one.prompt_tokens for one in made.records] for made in runs]
            if any(one != counts[0] for one in counts):
                self.faults.append("the servers count the tokens of a prompt differently")
        self._print(clients, before, await served.metrics(self._session, url))

    def _look(self, name: str, made: Run) -> None:
        errors = {record.error for record in made.records if record.error is not None}
        self.faults += [f"{name}: {error}" for error in errors]
        wrong = {record.output_tokens for record in made.records if record.error is None}
        if wrong - {self._arguments.output_len}:
            self.faults.append(
                f"{name}: answers of {sorted(wrong)} tokens, {self._arguments.output_len} were asked for"
            )

    def _print(self, clients: int, before: dict[str, float], after: dict[str, float]) -> None:
        print(f"{clients} clients")
        for server in self._servers:
            print(server.line())
        steps = after["poot_loop_host_seconds_count"] - before["poot_loop_host_seconds_count"]
        seconds = after["poot_loop_host_seconds_sum"] - before["poot_loop_host_seconds_sum"]
        within = f'poot_loop_host_seconds_bucket{{le="{BUDGET_SECONDS}"}}'
        share = (after[within] - before[within]) / max(steps, 1)
        took = 1e6 * seconds / max(steps, 1)
        begun, waited = (1e6 * (after[name] - before[name]) / max(steps, 1) for name in DEVICE)
        print(f"  poot's loop: {took:.0f} µs of the processor a step on average over {steps:.0f} steps, "
              f"{share:.0%} of them within {1e6 * BUDGET_SECONDS:.0f} µs; its thread took {begun:.0f} µs more to begin "
              f"and end the device's steps, and waited for {waited:.0f} µs of wall time")  # fmt: skip
        if len(self._servers) > 1:
            ours, theirs = self._servers
            faster = _ratios(ours.throughputs(), theirs.throughputs())
            sooner = _ratios(ours.ttfts(), theirs.ttfts())
            reached = median(faster) >= THROUGHPUT, median(sooner) <= TTFT
            print(f"  of the peer's: throughput {_two(faster)} (aim {THROUGHPUT:g} or more: {_said(reached[0])}), "
                  f"TTFT {_two(sooner)} (aim {TTFT:g} or less: {_said(reached[1])})")  # fmt: skip


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Repeat by repeat."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def _two(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f} by repeat)"


def _said(reached: bool) -> str:
    return "reached" if reached else "not reached"


async def compare(arguments: argparse.Namespace) -> int:
    """The whole run; the exit status."""
    path = Models().open(arguments.model).path
    rows = arguments.rows or max(arguments.clients)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=arguments.timeout)))
        options = ["--capacity", str(arguments.capacity), *arguments.serve]
        # One after the other: while steps are compiled nothing else should want the processor.
        url, _ = await stack.enter_async_context(served.poot(str(path), arguments.device, rows, options))
        device = await served.ready(session, url)
        servers = [Server("poot", Target(url, COMPLETIONS, "", FIELDS))]
        if arguments.peer:
            peer = await stack.enter_async_context(
                served.llama_server(
                    arguments.peer,
                    path,
                    max(arguments.clients),
                    arguments.capacity,
                    arguments.threads,
                    arguments.peer_option,
                )
            )
            await served.ready(session, peer, "/health")
            servers.append(Server("llama-server", Target(peer, COMPLETIONS, "", FIELDS)))
        print(f"{path.name}, {device}, commit {commit_of(ROOT)}: prompts of {arguments.input_len} tokens, answers of "
              f"{arguments.output_len}, {rows} rows of {arguments.capacity}, {arguments.threads} threads of the peer, "
              f"{arguments.repeats} repeats; medians (least, most)", flush=True)  # fmt: skip
        comparison = Comparison(arguments, session, servers)
        await comparison.check()
        for clients in arguments.clients:
            if not comparison.faults:
                await comparison.measure(clients)
                sys.stdout.flush()
    for fault in comparison.faults:
        print(f"FAULT {fault}")
    return 1 if comparison.faults else 0


def main() -> int:
    """Parse, run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("model", nargs="?", default="smollm2", help="a file, or a name that was pulled (default: smollm2)")
    add("--device", default="auto", help="(default: auto)")
    add("--clients", type=int, nargs="+", default=[1, 4, 16], help="(default: 1 4 16)")
    add("--rows", type=int, help="of poot; the peer has a slot for each client (default: the most clients)")
    add("--input-len", type=int, default=128, help="tokens of a prompt (default: 128)")
    add("--output-len", type=int, default=128, help="tokens of an answer (default: 128)")
    add("--capacity", type=int, default=512, help="positions of a row, of both (default: 512)")
    add("--num-prompts", type=int, default=4, help="requests of a repeat, at least (default: 4)")
    add("--rounds", type=int, default=2, help="requests of a repeat for each client, at least (default: 2)")
    add("--repeats", type=int, default=3, help="(default: 3)")
    add("--seed", type=int, default=0, help="of the prompts (default: 0)")
    add("--timeout", type=float, default=1200.0, help="seconds of a request (default: 1200)")
    add("--peer", metavar="FILE", help="llama-server, started beside poot (default: poot alone)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of the peer (default: all processors)")
    add("--peer-option", action="append", default=[], metavar="X", help="a further argument of the peer's; repeatable")
    add("--serve", nargs=argparse.REMAINDER, default=[], help="further arguments for `poot serve`")
    return asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
