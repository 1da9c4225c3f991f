"""Tokens a second in reading prompts, device beside device: `hatch run bench:prefill --device vulkan wgpu`.

Before a device is measured, the greedy tokens after a recorded prompt are compared with the float32 reference's, in the
same process. A prompt is random ids, read in chunks to its first token, with nothing cached. Every number is the median
of the repeats, with its extremes. `--peer llama.cpp` measures that in the same run, repeat by repeat; without it
stand figures of llama.cpp that were published or measured elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from peers import Peer, add_peer, peer_of, ratio

from poot_executor.discover import Choice, open_device
from poot_executor.engine import Engine
from poot_executor.settings import read_settings
from poot_llm.driver import Driver, DriverOptions
from poot_llm.pull import MODELS, pull
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams

ROOT = Path(__file__).resolve().parents[1]
CASE = "chat-code"
CHECKED_TOKENS = 4
SAFE_MARGIN = 0.02
"""Reference logits this far apart keep their order in any float32 arithmetic; a nearer pair is not compared."""


@dataclass(frozen=True, slots=True)
class Published:
    """A figure of llama.cpp: what ran where, over how many prompt tokens, and tokens a second (least and most)."""

    what: str
    prompt: int
    least: float
    most: float


LLAMA_CPP = (
    Published("llama.cpp Vulkan, lavapipe 22.3.6, two x86-64 cores, SmolLM2-135M Q4_1", 64, 8.7, 8.7),
    Published("llama.cpp CPU, the same two cores, SmolLM2-135M Q4_1", 512, 263, 338),
    Published("llama.cpp CUDA, H200, 135M bf16", 2048, 61_000, 61_000),
    Published("llama.cpp CUDA, H200, 8B bf16", 2048, 27_100, 27_100),
    Published("llama.cpp Vulkan, RTX 3090, 8B Q4_0, cooperative matrix (pull request 13506)", 512, 3_157, 4_569),
)
"""The first four were measured with the sdist of llama-cpp-python 0.3.36, -fa 1, in runs of their own."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: one rate a repeat."""

    device: str
    prompt: int
    rates: tuple[float, ...]
    exposed: float

    def __str__(self) -> str:
        low, high = min(self.rates), max(self.rates)
        return (
            f"{self.device:<34} {self.prompt:>7} {median(self.rates):>10.1f} {low:>10.1f} {high:>10.1f} "
            f"{self.exposed:>10.1f}"
        )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="name, GGUF file or folder (default: smollm2)")
    parser.add_argument("--device", nargs="+", default=["vulkan", "wgpu"], help="(default: vulkan wgpu)")
    parser.add_argument("--prompt", nargs="+", type=int, default=[64, 512], help="prompt tokens (default: 64 512)")
    parser.add_argument("--chunk", type=int, default=128, help="tokens that a step reads (default: 128)")
    parser.add_argument("--repeats", type=int, default=3, help="(default: 3)")
    add_peer(parser)
    return parser.parse_args()


def check(driver: Driver, handle: ModelHandle, coarse: bool) -> str:
    """What the comparison with the reference said. Exits where a token differs, but on a `coarse` device."""
    reference = json.loads((ROOT / "references" / "smollm2_greedy.json").read_text())
    path = handle.path
    if path.is_dir() or hashlib.sha256(path.read_bytes()).hexdigest() != reference["about"]["checkpoint"]["sha256"]:
        return "NOT COMPARED: there is no reference for this checkpoint"
    (case,) = [case for case in reference["cases"] if case["name"] == CASE]
    params = SamplingParams(max_tokens=CHECKED_TOKENS, ignore_eos=True)
    tokens = [item.token for item in driver.generate(case["prompt_ids"], params)]
    near = [place for place, margin in enumerate(case["margins"]) if margin < SAFE_MARGIN]
    count = min([CHECKED_TOKENS, *near])
    if tokens[:count] != case["tokens"][:count] and coarse:
        return f"it rounds coarsely: {tokens[:count]}, where the float32 reference has {case['tokens'][:count]}"
    if tokens[:count] != case["tokens"][:count]:
        sys.exit(f"{CASE}: {tokens[:count]} is not the reference's {case['tokens'][:count]}")
    return f"{count} greedy tokens after {len(case['prompt_ids'])} equal the float32 reference"


def read(driver: Driver, engine: Engine, ids: list[int]) -> tuple[float, float]:
    """Read a prompt to its first token: seconds, and those in which the host kept the device waiting."""
    sequence = driver.open(ids, SamplingParams(max_tokens=1, ignore_eos=True))
    assert sequence is not None
    before, started = engine.stats(), perf_counter()
    while sequence.pending:
        (result,) = driver.step([sequence])
        if result.failure is not None:
            raise result.failure
    seconds, after = perf_counter() - started, engine.stats()
    driver.release(sequence)
    for name in ("recordings", "allocations", "uploads", "failures"):
        assert getattr(after, name) == getattr(before, name), f"{name} while measuring"
    exposed = after.exposed_host_time - before.exposed_host_time + after.between_time - before.between_time
    return seconds, exposed / max(1, after.steps - before.steps)


def measured(
    driver: Driver, engine: Engine, device: str, prompt: int, repeats: int, peer: Peer | None
) -> tuple[Row, Row | None]:
    """A line of the table, and the peer's: every repeat another prompt, after one that is not counted."""
    rng = np.random.default_rng(prompt)
    runs, theirs = [], []
    for _ in range(repeats + 1):
        counted, ids = rng.integers(0, driver.handle.config.vocabulary, (2, prompt)).tolist()
        if peer is not None:
            read(driver, engine, ids)
        runs.append(read(driver, engine, counted))
        if peer is not None:
            theirs.append(prompt / peer.measure(1, prompt, 0).prompt)
    rates = tuple(prompt / seconds for seconds, _ in runs[1:])
    ours = Row(device, prompt, rates, 1e6 * median(exposed for _, exposed in runs[1:]))
    return ours, None if peer is None else Row("peer", prompt, tuple(theirs[1:]), 0.0)


def main() -> None:
    """Check, measure, print."""
    arguments = parse()
    if arguments.model in MODELS:
        pull(arguments.model)
    handle = Models().open(arguments.model)
    print(f"{handle.name}, {handle.stored_bytes:,} bytes of weights, chunks of {arguments.chunk}")
    head = f"{'':<34} {'prompt':>7} {'tok/s':>10} {'least':>10} {'most':>10} {'host µs':>10}"
    print(head)
    for name in arguments.device:
        device, choice = open_device(name, read_settings().device)
        options = DriverOptions(capacity=max(arguments.prompt) + 64, chunk=arguments.chunk, prefix_cache=False)
        with device, Engine(device) as engine, Driver(handle, engine, options) as driver:
            coarse = choice.selector.endswith("-fast")
            print(f"{told(choice)}: {check(driver, handle, coarse)}", flush=True)
            peer = peer_of(arguments, handle.path, 1, driver.capacity)
            with nullcontext() if peer is None else peer:
                for prompt in arguments.prompt:
                    ours, theirs = measured(driver, engine, choice.name, prompt, arguments.repeats, peer)
                    print(ours, flush=True)
                    if theirs is not None:
                        print(f"{theirs}\n  {ratio(ours.rates, theirs.rates)}", flush=True)
            if peer is not None:
                print(f"peer: {peer.about}")
    print("\nnot of this run:")
    for figure in LLAMA_CPP:
        rate = f"{figure.least:,g}" if figure.least == figure.most else f"{figure.least:,g} to {figure.most:,g}"
        print(f"{figure.what}: {rate} tok/s over {figure.prompt} tokens")


def told(choice: Choice) -> str:
    """The device with its driver, as its own probe tells it."""
    return f"{choice.name}:{choice.selector}".rstrip(":") + f", {choice.description}"


if __name__ == "__main__":
    main()
