"""Tokens a second in decoding and prefill on one device: `hatch run bench:decode [MODEL] [--device NAME] ...`.

Greedy tokens are compared with the recorded reference first, in the same process: a fast wrong answer is no result.
Of a mode that rounds coarsely (`vpu:cpu-fast`) the tokens that differ are counted, and printed with their margins.
Then every number is the median of the repeats, with its extremes. Exposed host time is what the engine counts while
the device had nothing to do (`poot_executor.stats`): inside submit and collect, and in the driver between two steps.
With `--peer llama.cpp --peer-python FILE` each repeat is followed by one of llama.cpp's CPU backend (`peers.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from cells import commit_of
from peers import Peer, add_peer, peer_of, ratio

from poot_executor.compile.explain import dispatches_per_layer
from poot_executor.discover import Choice, open_device
from poot_executor.engine import Engine
from poot_executor.settings import read_settings
from poot_executor.stats import EngineStats
from poot_llm.blocks.step import StepShape
from poot_llm.driver import Driver, DriverOptions, compile_step
from poot_llm.pull import MODELS, pull
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams, Suffix

ROOT = Path(__file__).resolve().parents[1]
CHECKED_TOKENS = 16
CHECKED_CASES = ("english-fact", "chat-code")
SAFE_MARGIN = 0.02
"""Reference logits this far apart keep their order in any float32 arithmetic; a nearer pair is not compared."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: one number a repeat."""

    name: str
    unit: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        return f"{self.name:<34} {median(self.values):>10.2f} {low:>10.2f} {high:>10.2f}  {self.unit}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="name, GGUF file or folder (default: smollm2)")
    parser.add_argument("--device", default="auto", help="as for `poot generate` (default: auto)")
    parser.add_argument("--capacity", type=int, default=2048, help="positions (default: 2048)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to decode a repeat (default: 64)")
    parser.add_argument("--prompt", type=int, default=256, help="prompt tokens a repeat (default: 256)")
    parser.add_argument("--repeats", type=int, default=5, help="(default: 5)")
    add_peer(parser)
    return parser.parse_args()


def check(driver: Driver, path: Path) -> str:
    """What the comparison with the reference said. Exits where a token differs."""
    reference = json.loads((ROOT / "references" / "smollm2_greedy.json").read_text())
    if path.is_dir() or hashlib.sha256(path.read_bytes()).hexdigest() != reference["about"]["checkpoint"]["sha256"]:
        return "NOT COMPARED: there is no reference for this checkpoint"
    compared = 0
    for case in reference["cases"]:
        if case["name"] not in CHECKED_CASES:
            continue
        params = SamplingParams(max_tokens=CHECKED_TOKENS, ignore_eos=True)
        tokens = [item.token for item in driver.generate(case["prompt_ids"], params)]
        near = [place for place, margin in enumerate(case["margins"]) if margin < SAFE_MARGIN]
        count = min([CHECKED_TOKENS, *near])
        if tokens[:count] != case["tokens"][:count]:
            sys.exit(f"{case['name']}: {tokens[:count]} is not the reference's {case['tokens'][:count]}")
        compared += count
    return f"{compared} greedy tokens of {len(CHECKED_CASES)} prompts equal the float32 reference"


def flips(driver: Driver, path: Path) -> str:
    """How often a device that is stated to round coarsely gives another token than the reference, with the margins of
    those. Every answer is forced to the reference's, so that each place is judged on its own.
    """
    reference = json.loads((ROOT / "references" / "smollm2_greedy.json").read_text())
    if path.is_dir() or hashlib.sha256(path.read_bytes()).hexdigest() != reference["about"]["checkpoint"]["sha256"]:
        return "NOT COMPARED: there is no reference for this checkpoint"
    margins: list[float] = []
    places = 0
    for case in reference["cases"]:
        if case["name"] not in CHECKED_CASES:
            continue
        sequence = driver.open(case["prompt_ids"], SamplingParams(max_tokens=CHECKED_TOKENS + 1, ignore_eos=True))
        assert sequence is not None
        for place, expected in enumerate(case["tokens"][:CHECKED_TOKENS]):
            token = None
            while token is None:
                (result,) = driver.step([sequence])
                token = result.token
            places += 1
            if token != expected:
                margins.append(case["margins"][place])
            driver.commit(sequence, expected)
        driver.release(sequence)
    worst = f", at margins up to {max(margins):.3f} of logits" if margins else ""
    return f"{len(margins)} of {places} greedy tokens differ from the float32 reference's{worst}"


def decode(driver: Driver, engine: Engine, tokens: int) -> dict[str, float]:
    """One repeat of decoding after a prompt of one token; seconds and rates by name."""
    params = SamplingParams(max_tokens=tokens + 1, ignore_eos=True)
    with driver.generate([1], params) as stream:
        next(stream)
        before, started = engine.stats(), perf_counter()
        made = sum(1 for _ in stream)
        seconds, after = perf_counter() - started, engine.stats()
    require_steady(before, after)
    steps = after.steps - before.steps
    result = {
        "decode": made / seconds,
        "step": 1e3 * seconds / made,
        "exposed, engine": 1e6 * (after.exposed_host_time - before.exposed_host_time) / steps,
        "exposed, driver": 1e6 * (after.between_time - before.between_time) / steps,
    }
    if after.device_time is not None and before.device_time is not None:
        result["device"] = 1e3 * (after.device_time - before.device_time) / steps
    return result


def prefill(driver: Driver, engine: Engine, tokens: int) -> dict[str, float]:
    """One repeat of reading a prompt of random ids, to its first token."""
    ids = np.random.default_rng(0).integers(0, driver.handle.config.vocabulary, tokens).tolist()
    sequence = driver.open(ids, SamplingParams(max_tokens=1, ignore_eos=True))
    assert sequence is not None
    before, started = engine.stats(), perf_counter()
    while sequence.pending:
        (result,) = driver.step([sequence])
        if result.failure is not None:
            raise result.failure
    seconds = perf_counter() - started
    driver.release(sequence)
    require_steady(before, engine.stats())
    return {"prefill": tokens / seconds}


def require_steady(before: EngineStats, after: EngineStats) -> None:
    """Nothing was compiled, recorded or allocated while the clock ran."""
    for name in ("recordings", "allocations", "uploads", "failures"):
        count = getattr(after, name) - getattr(before, name)
        assert count == 0, f"{count} {name} while measuring"


def repeated(measure: Callable[[], dict[str, float]], repeats: int) -> dict[str, tuple[float, ...]]:
    """Every number of `repeats` runs, after one that is not counted."""
    measure()
    runs = [measure() for _ in range(repeats)]
    return {name: tuple(run[name] for run in runs) for name in runs[0]}


def dispatches(handle: ModelHandle, engine: Engine, capacity: int) -> str:
    """Of a greedy decode step."""
    shape = StepShape(1, 1, capacity, capacity)
    program = compile_step(handle, engine.target_set[0], shape, Suffix.GREEDY)
    layer = dispatches_per_layer(program)
    if layer is None:
        return f"{len(program.graph.equations)} equations, lowered by the device"
    return f"{layer:g} a layer, {len(program.dispatches)} in all"


def report(facts: dict[str, str], rows: list[Row]) -> None:
    """Print the table."""
    for name, fact in facts.items():
        print(f"{name:<12} {fact}")
    print(f"\n{'':<34} {'median':>10} {'least':>10} {'most':>10}")
    for row in rows:
        print(row)


def measured(driver: Driver, engine: Engine, peer: Peer | None, arguments: argparse.Namespace) -> list[Row]:
    """Every row of the table. Each repeat of poot's is followed by one of the peer's; turns begin with one that is not
    counted."""
    tokens, prompt = arguments.tokens, arguments.prompt

    def decoding() -> dict[str, float]:
        if peer is not None:
            decode(driver, engine, tokens)
        ours = decode(driver, engine, tokens)
        return ours if peer is None else ours | {"peer": tokens / peer.measure(1, 1, tokens).tokens}

    def reading() -> dict[str, float]:
        if peer is not None:
            prefill(driver, engine, prompt)
        ours = prefill(driver, engine, prompt)
        return ours if peer is None else ours | {"peer": prompt / peer.measure(1, prompt, 0).prompt}

    seen, read = repeated(decoding, arguments.repeats), repeated(reading, arguments.repeats)
    gigabytes = driver.handle.stored_bytes / 1e9
    rows = [
        Row(f"decode, {tokens} tokens", "tokens/s", seen["decode"]),
        Row(f"prefill, {prompt} tokens", "tokens/s", read["prefill"]),
        Row("weights read in decoding", "GB/s", tuple(rate * gigabytes for rate in seen["decode"])),
        Row("wall time of a step", "ms", seen["step"]),
    ]
    if "device" in seen:
        rows.append(Row("device time of a step", "ms", seen["device"]))
    rows += [
        Row("exposed host time, in the engine", "us a step", seen["exposed, engine"]),
        Row("exposed host time, in the driver", "us a step", seen["exposed, driver"]),
    ]
    if peer is not None:
        rows += [
            Row(
                f"peer: decode, {tokens} tokens", "tokens/s; poot " + ratio(seen["decode"], seen["peer"]), seen["peer"]
            ),
            Row(
                f"peer: prefill, {prompt} tokens",
                "tokens/s; poot " + ratio(read["prefill"], read["peer"]),
                read["peer"],
            ),
        ]
    return rows


def main() -> None:
    """Check, measure, print."""
    arguments = parse()
    if arguments.model in MODELS:
        pull(arguments.model)
    handle = Models().open(arguments.model)
    device, choice = open_device(arguments.device, read_settings().device)
    options = DriverOptions(capacity=arguments.capacity)
    with device, Engine(device) as engine, Driver(handle, engine, options) as driver:
        print(choice, file=sys.stderr)
        correct = (flips if choice.selector.endswith("-fast") else check)(driver, handle.path)
        peer = peer_of(arguments, handle.path, 1, driver.capacity)
        with nullcontext() if peer is None else peer:
            rows = measured(driver, engine, peer, arguments)
        facts = {
            "device": name_of(choice),
            "model": f"{handle.name}, {handle.stored_bytes:,} bytes of weights",
            "capacity": f"{driver.capacity} positions, chunks of {driver.options.chunk}",
            "commit": commit_of(ROOT),
            "dispatches": dispatches(handle, engine, driver.capacity),
            "prepared in": f"{driver.prepare_seconds:.1f} s, {len(driver.prepared)} steps",
            "correct": correct,
        } | ({} if peer is None else {"peer": peer.about})
    report(facts, rows)


def name_of(choice: Choice) -> str:
    """The device with its driver, as the device's own probe tells it."""
    return f"{choice.name}:{choice.selector}".rstrip(":") + f", {choice.description}"


if __name__ == "__main__":
    main()
