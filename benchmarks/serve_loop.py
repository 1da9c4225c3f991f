"""What a turn of the server's loop costs beside the device: `hatch run bench:serve-loop [MODEL] [--rows N] ...`.

The loop of an engine process runs on an executor that takes no time, with rows that decode, and its reports go through
a pipe to a process that reads them, as they go to the server. A turn reads the inbox, steps, commits, counts and hands
its report over; every report is checked to hold a token of each row. Microseconds a turn: `wall`, median and first
decile; `thread`, the processor time of the loop's own thread on average, in which other processes' time is not.
`benchmarks/host.py` measures the part of it that scheduler and driver are.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from host import KINDS, FreeExecutor

from poot_llm.driver import Driver, DriverOptions, Layout
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams
from poot_serve.engine.loop import Loop
from poot_serve.engine.messages import Generate, Report
from poot_serve.engine.outbox import Outbox

AIM = 400
"""Microseconds of a turn at 16 rows."""
WARM_TURNS = 20
READER = "import os\nwhile os.read(0, 1 << 20): pass"


class Reports:
    """Passes on what a loop says. `given` are the answers that its last report has tokens of."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.given = 0

    def send(self, report: Report) -> None:
        """As `Outbox.send`."""
        self.given = len(report.tokens) + len(report.events)
        self._outbox.send(report)


def measure(
    handle: ModelHandle, params: SamplingParams, rows: int, turns: int, profile: cProfile.Profile | None
) -> tuple[list[float], float]:
    """Wall seconds of each turn, and processor seconds of the thread in all of them."""
    options = DriverOptions(rows=rows, capacity=2048, layout=Layout.PAGED, pool_blocks=rows * 128 + 1)
    rng = np.random.default_rng(0)
    reader = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE)
    assert reader.stdin is not None
    outbox = Outbox(os.dup(reader.stdin.fileno()))
    reader.stdin.close()
    reports = Reports(outbox)
    with Driver(handle, FreeExecutor(), options) as driver:
        driver.prepare_batch(rows, params.suffix)
        inbox: SimpleQueue[Any] = SimpleQueue()
        loop = Loop(driver, inbox, reports.send, prefill_tokens=512, prepared=False)
        for place in range(rows):
            prompt = rng.integers(5, handle.config.vocabulary, 100).tolist()
            inbox.put(Generate(place + 1, tuple(prompt), params))
        while reports.given < rows:
            loop.turn()
        for _ in range(WARM_TURNS):
            loop.turn()
        times = []
        spent = thread_time()
        if profile is not None:
            profile.enable()
        for _ in range(turns):
            started = perf_counter()
            loop.turn()
            times.append(perf_counter() - started)
            assert reports.given == rows
        if profile is not None:
            profile.disable()
        spent = thread_time() - spent
    outbox.close(10)
    return times, spent


def main() -> None:
    """Measure each kind of request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="(default: smollm2)")
    parser.add_argument("--rows", type=int, default=16, help="(default: 16)")
    parser.add_argument("--turns", type=int, default=500, help="of each kind (default: 500)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="(default: all)")
    parser.add_argument("--profile", action="store_true", help="where the time goes, function by function")
    arguments = parser.parse_args()
    handle = Models().open(arguments.model)
    print(f"{handle.name}, {arguments.rows} rows, microseconds a turn; the aim is {AIM} at 16 rows")
    print(f"{'':12}{'wall':>16}{'thread':>10}")
    for name in arguments.kinds:
        profile = cProfile.Profile() if arguments.profile else None
        times, spent = measure(handle, KINDS[name], arguments.rows, arguments.turns, profile)
        wall = f"{np.median(times) * 1e6:.0f} ({np.percentile(times, 10) * 1e6:.0f})"
        print(f"{name:12}{wall:>16}{spent / arguments.turns * 1e6:>10.0f}", flush=True)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    main()
