"""What prepared steps and K and V take in host memory: `hatch run bench:footprint [MODEL] [--rows N] [--capacity N]`.

Each step of `poot serve` is prepared in turn, on a device where steps hold weights of their own, and what the process
holds is read behind it. Then rows are filled, and read once more. The multiples that it prints are those that
`poot_serve.engine.footprint` counts with.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from poot_llm.driver import DriverOptions, Scheduler
from poot_llm.opening import open_driver
from poot_llm.registry import Models
from poot_llm.sampling import SamplingParams
from poot_serve.engine.footprint import KV_SHARE, STEP_SHARE, SUFFIXES, Footprint

ANSWER = 16


def held() -> int:
    """Bytes of memory that this process has of its own: Linux says so."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def main() -> int:
    """Prepare, fill, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("model", nargs="?", default="smollm2", help="a file, or a name that was pulled (default: smollm2)")
    add("--device", default="vpu:cpu", help="(default: vpu:cpu)")
    add("--rows", type=int, default=16, help="(default: 16)")
    add("--capacity", type=int, default=512, help="(default: 512)")
    arguments = parser.parse_args()
    handle = Models().open(arguments.model)
    options = DriverOptions(rows=arguments.rows, capacity=arguments.capacity)
    with open_driver(handle, arguments.device, options) as opened:
        driver = opened.driver
        if not driver.few_programs:
            print(f"{opened.choice}: steps share weights there")
            return 2
        before = last = held()
        print(f"{handle.name}, {opened.choice}, checkpoint {handle.stored_bytes / 1e6:.1f} MB, "
              f"{Footprint.of(handle, options, options.rows)}")  # fmt: skip
        for suffix in SUFFIXES:
            driver.prepare([suffix])
            now, count = held(), len(list(driver.steps.shapes()))
            share = (now - last) / count / handle.stored_bytes
            print(f"{count} {suffix.value} steps: {(now - last) / 1e6:.0f} MB, each {share:.2f} of the checkpoint "
                  f"(counted with {STEP_SHARE})", flush=True)  # fmt: skip
            last = now
        rng, scheduler = np.random.default_rng(0), Scheduler(driver)
        length = arguments.capacity - ANSWER
        for _ in range(arguments.rows):
            prompt = rng.integers(0, handle.config.vocabulary, length).tolist()
            scheduler.add(prompt, SamplingParams(max_tokens=ANSWER, ignore_eos=True))
        while scheduler.busy:
            scheduler.step()
        kv = driver.plan.kv_bytes
        print(f"full rows: {(held() - last) / 1e6:.0f} MB, {(held() - last) / kv:.2f} of the KV's {kv / 1e6:.0f} MB "
              f"(counted with {KV_SHARE}); in all {(held() - before) / 1e6:.0f} MB")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
